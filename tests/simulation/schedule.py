"""Virtual time, and processes that can be killed, frozen and woken between any two things they do.

Every effect of every generator is one atom. Before it is performed the `Faults` of the run are asked what becomes of
the process at this point. What was sent before stays under way: a record in flight is appended, a request in flight
lands, whether or not its sender lives.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Kill:
    """The process ends here, as by kill -9."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """The process stands still here for so long, and then goes on as if nothing had been."""

    duration_ms: int


Fault = Kill | Freeze | None


class Faults(Protocol):
    """Decides what becomes of a process before it performs its next effect."""

    def at(self, process: Process, effect: object) -> Fault: ...


@dataclass(eq=False)
class Process:
    """Something with a memory of its own. `point` counts its atoms."""

    role: str
    name: str
    alive: bool = True
    frozen_until_ms: int = 0
    points: int = 0
    written_at_ms: int = 0  # its records reach the broker in the order they were sent


class Schedule:
    """Runs what is due, in the order of time, and of asking where times are equal."""

    def __init__(self, faults: Faults, say: Callable[[int, str, str], None], *, tells: bool = True) -> None:
        self.tells = tells  # somebody hears what is said; words that cost something are made only then
        self.now_ms = 1_000_000
        self.events = 0
        self.on_kill: Callable[[Process], None] = lambda process: None
        self.on_freeze: Callable[[Process, int], None] = lambda process, ms: None
        self._faults = faults
        self._say = say
        self._count = 0
        self._due: list[tuple[int, int, Process | None, Callable[[], None]]] = []

    def say(self, who: str, what: str) -> None:
        self._say(self.now_ms, who, what)

    def after(self, delay_ms: int, do: Callable[[], None], process: Process | None = None) -> None:
        """Do it then; for a process: when it is awake, and never once it is dead."""
        self._count += 1
        heappush(self._due, (self.now_ms + delay_ms, self._count, process, do))

    def run(self, until: Callable[[], bool] | None, end_ms: int) -> bool:
        """Run until the condition holds (True) or time is over (False)."""
        due = self._due
        while until is None or not until():
            if not due or due[0][0] > end_ms:
                return False
            at_ms, number, process, do = heappop(due)
            if at_ms > self.now_ms:
                self.now_ms = at_ms
            if process is not None:
                if not process.alive:
                    continue
                if process.frozen_until_ms > self.now_ms:
                    heappush(due, (process.frozen_until_ms, number, process, do))
                    continue
            self.events += 1
            do()
        return True

    def passes(self, process: Process, effect: object) -> bool:
        """Let the faults decide at a point of `process`. False: it is dead. It may be frozen afterwards."""
        process.points += 1
        fault = self._faults.at(process, effect)
        if fault is None:
            return True
        if isinstance(fault, Kill):
            self.say(process.name, f"is killed before {described(effect)}")
            self.kill(process)
            return False
        self.say(process.name, f"freezes for {fault.duration_ms} ms before {described(effect)}")
        process.frozen_until_ms = self.now_ms + fault.duration_ms
        self.on_freeze(process, fault.duration_ms)
        return True

    def kill(self, process: Process) -> None:
        process.alive = False
        self.on_kill(process)


@dataclass(eq=False)
class Task:
    """A generator of effects run by a process. `perform` takes an effect and what to call with the answer."""

    schedule: Schedule
    process: Process
    steps: Generator[Any, Any, Any]
    perform: Callable[[Any, Callable[[Any], None]], None]
    ended: Callable[[Any], None] = field(default=lambda value: None)

    def start(self) -> None:
        self._go_on(self.steps.send, None)

    def answer(self, value: Any) -> None:
        self._go_on(self.steps.send, value)

    def throw(self, error: BaseException) -> None:
        self._go_on(self.steps.throw, error)

    def _go_on(self, advance: Callable[[Any], Any], value: Any) -> None:
        try:
            effect = advance(value)
        except StopIteration as stop:
            self.ended(stop.value)
            return
        process, schedule = self.process, self.schedule
        if not schedule.passes(process, effect):
            return
        if process.frozen_until_ms > schedule.now_ms:
            schedule.after(0, lambda: self.perform(effect, self.answer), process)
        else:
            self.perform(effect, self.answer)


def described(effect: object) -> str:
    """Return an effect in a few words."""
    if isinstance(effect, str):
        return effect
    found = getattr(effect, "fact", None) or getattr(effect, "facts", None) or ()
    facts = found if isinstance(found, tuple) else (found,)
    words = [str(getattr(fact, "status", None) or getattr(fact, "decision", "")) for fact in facts]
    return f"{type(effect).__name__}({', '.join(words)})" if words else type(effect).__name__
