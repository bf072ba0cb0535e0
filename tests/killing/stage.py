"""The parts of amends as processes: two processors, two compensators; killed, frozen, woken, replaced."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psutil

from amends.local.children import free_port
from amends.local.errors import ServerUnavailable
from amends.local.parts import Part, Parts
from amends.local.story.tools import LANES
from amends.local.wire import answers, wait_for

READY_DEADLINE_MS = 90_000
PROCESSORS, COMPENSATORS = 2, 2


@dataclass
class Stage:
    """Who runs. Used from many threads. `told` gets what happens, in words."""

    parts: Parts
    told: Callable[[str], None]
    module: str = "amends.local.story.tools"
    lanes: tuple[str, ...] = LANES
    processors_wanted: int = PROCESSORS
    compensators_wanted: int = COMPENSATORS
    excused: frozenset[int] = frozenset()  # exit codes of parts that end by themselves, and may
    processors: list[Part] = field(default_factory=list)
    compensators: list[Part] = field(default_factory=list)
    frozen: set[str] = field(default_factory=set)
    crashed: list[str] = field(default_factory=list)
    _retired: list[Part] = field(default_factory=list)
    _were_frozen: set[str] = field(default_factory=set)
    _count: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _timers: list[threading.Timer] = field(default_factory=list)

    def start(self) -> None:
        """Start all and wait until they answer. Raises ServerUnavailable."""
        ports = [self._start_processor() for _ in range(self.processors_wanted)]
        ports += [self._start_compensator() for _ in range(self.compensators_wanted)]
        for part, port in zip((*self.processors, *self.compensators), ports, strict=True):
            ready = functools.partial(answers, port)
            if not wait_for(ready, alive=functools.partial(_runs, part), deadline_ms=READY_DEADLINE_MS):
                raise ServerUnavailable(f"{part.name} did not start:\n{part.last_words()}")

    def groups(self) -> tuple[list[Part], ...]:
        """Return who runs, by what they are."""
        return (self.processors, self.compensators)

    def everybody(self) -> list[Part]:
        """Return who runs."""
        return [part for among in self.groups() for part in among]

    def kill(self, part: Part) -> None:
        """SIGKILL a part and start another in its place."""
        with self._lock:
            if not self._leaves(part):
                return
            part.kill()
            self.told(f"SIGKILL to {part.name}")
            self._replace(part)

    def retire(self, part: Part) -> None:
        """SIGTERM a part, as when a new release is rolled out; another is started in its place at once."""
        with self._lock:
            if part.name in self.frozen or not self._leaves(part):
                return
            part.child.process.send_signal(signal.SIGTERM)
            self.told(f"SIGTERM to {part.name}")
            self._retired.append(part)
            self._replace(part)

    def kill_processor(self, chance: int) -> None:
        with self._lock:
            self.kill(self.processors[chance % len(self.processors)])

    def freeze_processor(self, chance: int, for_ms: int) -> None:
        with self._lock:
            self.freeze(self.processors[chance % len(self.processors)], for_ms)

    def freeze(self, part: Part, for_ms: int) -> None:
        """SIGSTOP a part with its children; it is woken `for_ms` later, from a thread."""
        with self._lock:
            if part.name in self.frozen or not part.child.alive:
                return
            self.frozen.add(part.name)
            self._were_frozen.add(part.name)
            signal_tree(part.pid, signal.SIGSTOP)
            self.told(f"SIGSTOP to {part.name}, for {for_ms / 1000:.0f} s")
            timer = threading.Timer(for_ms / 1000, self._wake, (part,))
            timer.daemon = True
            self._timers.append(timer)
            timer.start()

    def look(self) -> None:
        """Replace what ended by itself, and note it."""
        with self._lock:
            for part in self.parts.dead(self.everybody()):
                code = part.child.exit_code
                thawed = "after it was frozen" if part.name in self._were_frozen else "NEVER FROZEN"
                self.told(f"{part.name} ended by itself with {code} ({thawed})")
                if part.name not in self._were_frozen and not self._may_end(part, code):
                    self.crashed.append(f"{part.name} ended by itself with {code}:\n{part.last_words()}")
                    self.told(f"its last words: {part.last_words(3)}")
                self._leaves(part)
                self._replace(part)
            for part in self.parts.dead(self._retired):
                self._retired.remove(part)
                code = part.child.exit_code
                unheard = code == -signal.SIGTERM  # told while it was starting: who is up ends with 0
                if code != 0 and not unheard and not self._may_end(part, code):
                    self.crashed.append(f"{part.name}, told to end, ended with {code}:\n{part.last_words()}")

    def _may_end(self, part: Part, code: int | None) -> bool:
        """Whether a part may end with `code`, by itself or told to end."""
        return code in self.excused

    def stop(self) -> None:
        """Wake whoever is frozen and stop all."""
        for timer in self._timers:
            timer.cancel()
        with self._lock:
            for part in self.everybody():
                if part.name in self.frozen:
                    self._wake(part)
        self.parts.stop()

    def await_awake(self) -> None:
        """Block until nobody is frozen."""
        while True:
            with self._lock:
                if not self.frozen:
                    return
            time.sleep(0.1)

    def _wake(self, part: Part) -> None:
        with self._lock:
            self.frozen.discard(part.name)
            signal_tree(part.pid, signal.SIGCONT)
            self.told(f"SIGCONT to {part.name}")

    def _leaves(self, part: Part) -> bool:
        """Take a part off the list; return whether it was on one."""
        for among in self.groups():
            if part in among:
                among.remove(part)
                self.frozen.discard(part.name)
                return True
        return False

    def _replace(self, part: Part) -> None:
        if part.name.startswith("processor"):
            self._start_processor()
        else:
            self._start_compensator()

    def _start_processor(self) -> int:
        return self._start_part("processor", self.processors)

    def _start_compensator(self) -> int:
        lanes = [argument for lane in self.lanes for argument in ("--lane", lane)]
        return self._start_part("compensator", self.compensators, self.module, *lanes)

    def _start_part(self, what: str, among: list[Part], *arguments: str) -> int:
        self._count += 1
        port = free_port()
        part = self.parts.amends(f"{what}-{self._count}", what, *arguments, "--health-port", str(port))
        among.append(part)
        self.told(f"started {part.name} (pid {part.pid})")
        return port


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and all its descendants."""
    for process in _family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _family(pid: int) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        yield from [process, *process.children(recursive=True)]


def _runs(part: Part) -> bool:
    return part.child.alive
