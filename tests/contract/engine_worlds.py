"""Worlds in which an engine is put to its contract: processes that share a ledger, and what happens to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

from tests.contract.tally import Count, Tally, decode

from amends.processors.engine import EngineError
from amends.processors.memory import MemoryBroker, MemoryEngine
from amends.schemas.keys import partition_for
from amends.schemas.topics import Topics

PARTITIONS = 2
Fault = Literal["kill", "freeze"]


class World(Protocol):
    """Processes that run one engine over one ledger of two partitions."""

    def append(self, key: bytes, value: bytes) -> int:
        """Append a fact to the key's partition; return its offset."""
        ...

    def start(self, name: str, *, fault: Fault | None = None, at: str = "") -> None:
        """Start a process. With `fault`, it is killed or frozen when it first comes to the point `at`."""
        ...

    def kill(self, name: str) -> None: ...

    def stop(self, name: str) -> None:
        """Stop it as SIGTERM does, and wait for its end."""
        ...

    def wake(self, name: str) -> None: ...

    def await_fault(self, name: str) -> None:
        """Wait until the process was killed or frozen by its own fault."""
        ...

    def await_session(self, name: str) -> None:
        """Wait until the group has noticed that the process is gone or frozen, and others own its partitions."""
        ...

    def await_owners(self, *names: str) -> None:
        """Wait until these processes own all partitions between them, each at least one."""
        ...

    def await_folded(self, facts: int) -> None:
        """Wait until `facts` facts are in the durable state."""
        ...

    def await_state(self, state: dict[bytes, Count]) -> None:
        """Wait until this is the durable state."""
        ...

    def await_refused(self, name: str) -> None:
        """Wait until a checkpoint of the process was refused."""
        ...

    def state(self) -> dict[bytes, Count]:
        """Return the durable state."""
        ...

    def emitted(self) -> list[tuple[bytes, Count]]:
        """Return what was emitted, in order within a key."""
        ...

    def forget_ledger(self, key: bytes, before_offset: int) -> None:
        """Let retention drop the facts of the key's partition below the offset."""
        ...

    def why_it_ended(self, name: str) -> str:
        """Wait until the process has ended by itself; return its words."""
        ...

    def close(self) -> None: ...


class _FaultHappenedError(Exception):
    pass


@dataclass(slots=True)
class _Process:
    engine: MemoryEngine
    state: Literal["running", "frozen", "dead"] = "running"
    words: str = ""


def _fault_at(point: str, wanted: str, happened: list[str]) -> None:
    if point == wanted and not happened:
        happened.append(point)
        raise _FaultHappenedError


@dataclass
class MemoryWorld:
    """Everything in this process; a session is over as soon as somebody waits for that."""

    topics: Topics = field(default_factory=Topics)
    now_ms: int = 1_000_000

    def __post_init__(self) -> None:
        self.broker = MemoryBroker(PARTITIONS, lambda: self.now_ms)
        self._processes: dict[str, _Process] = {}
        self._faults: dict[str, Fault | None] = {}

    def append(self, key: bytes, value: bytes) -> int:
        self.now_ms += 1
        return self.broker.append(self.topics.ledger, key=key, value=value).offset

    def start(self, name: str, *, fault: Fault | None = None, at: str = "") -> None:
        happened: list[str] = []
        engine = MemoryEngine(
            self.broker,
            self.topics,
            lambda partition: Tally(partition, self.topics),
            lambda: self.now_ms,
            faults=lambda point: _fault_at(point, at, happened),
        )
        self._processes[name] = _Process(engine)
        self._faults[name] = fault
        self._share_out()

    def kill(self, name: str) -> None:
        self._processes[name].engine.crash()
        self._processes[name].state = "dead"

    def stop(self, name: str) -> None:
        engine = self._processes[name].engine
        for partition in engine.partitions:
            engine.release(partition)
        self._processes[name].state = "dead"
        self._share_out()

    def wake(self, name: str) -> None:
        self._processes[name].state = "running"

    def await_fault(self, name: str) -> None:
        self._until(lambda: self._processes[name].state != "running")

    def await_session(self, name: str) -> None:
        assert self._processes[name].state != "running"
        self._share_out()

    def await_owners(self, *names: str) -> None:
        owned = [set(self._processes[name].engine.partitions) for name in names]
        assert all(owned)
        assert set.union(*owned) == set(range(PARTITIONS))

    def await_folded(self, facts: int) -> None:
        self._until(lambda: sum(count.count for count in self.state().values()) >= facts)

    def await_state(self, state: dict[bytes, Count]) -> None:
        self._until(lambda: self.state() == state)

    def await_refused(self, name: str) -> None:
        self._until(lambda: self._processes[name].engine.refused > 0)

    def state(self) -> dict[bytes, Count]:
        found: dict[bytes, Count] = {}
        for partition in range(PARTITIONS):
            for record in self.broker.read(self.topics.changelog(), partition):
                assert record.key is not None
                found.pop(record.key, None)
                if record.value is not None:
                    found[record.key] = decode(record.value)
        return found

    def emitted(self) -> list[tuple[bytes, Count]]:
        records = [r for p in range(PARTITIONS) for r in self.broker.read(self.topics.workflows, p)]
        return [(record.key or b"", decode(record.value or b"")) for record in records]

    def forget_ledger(self, key: bytes, before_offset: int) -> None:
        self.broker.forget(self.topics.ledger, partition_for(key, PARTITIONS), before_offset)

    def why_it_ended(self, name: str) -> str:
        self._until(lambda: self._processes[name].state == "dead")
        return self._processes[name].words

    def close(self) -> None:
        pass

    def _running(self) -> list[tuple[str, _Process]]:
        return [(name, process) for name, process in self._processes.items() if process.state == "running"]

    def _share_out(self) -> None:
        """Rebalance: running processes own the partitions in turn; the frozen keep what they think they own."""
        running = self._running()
        for partition in range(PARTITIONS):
            for index, (name, process) in enumerate(running):
                owns, shall = partition in process.engine.partitions, partition % len(running) == index
                if owns and not shall:
                    process.engine.release(partition)
                elif shall and not owns:
                    self._guarded(name, process, partial(process.engine.take, partition))

    def _until(self, true: Callable[[], bool]) -> None:
        for _ in range(1_000):
            if true():
                return
            self.now_ms += 100
            for name, process in self._running():
                for partition in process.engine.partitions:
                    if process.state == "running":
                        self._guarded(name, process, partial(process.engine.step, partition))
        raise AssertionError("it did not become true")

    def _guarded(self, name: str, process: _Process, act: Callable[[], object]) -> None:
        try:
            act()
        except _FaultHappenedError:
            if self._faults[name] == "kill":
                self.kill(name)
            process.state = "dead" if self._faults[name] == "kill" else "frozen"
        except EngineError as error:
            process.words = str(error)
            self.kill(name)
