"""Parents and children on a broker in memory: partitions, two processors that share them, and a compensator that does
at once what it is told, unless it is told to fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.core.ledger import LEASE_MS, contract_of

from amends.processors.memory import MemoryEngine
from amends.processors.memory_broker import MemoryBroker
from amends.processors.partition import Partition
from amends.processors.state import Step
from amends.processors.terms import Terms
from amends.processors.workflow import Workflow
from amends.schemas.codec import decode, encode
from amends.schemas.commands import Incident, UndoCommand, WorkflowEcho
from amends.schemas.contract import Contract
from amends.schemas.facts import (
    Fact,
    Failure,
    Party,
    StepEvent,
    StepStatus,
    Timeout,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)
from amends.schemas.family import CHILD_STARTED_OFFSET
from amends.schemas.keys import partition_for
from amends.schemas.topics import Topics

TOPICS = Topics()
PAY, SHIP, BOOK = contract_of("pay"), contract_of("ship"), contract_of("book")


@dataclass
class Families:
    """Ids are on partitions as on Kafka: "p", "c" and "x" on 2, "d" and "h" on 1, "g" on 3, "parent" on 0. One
    processor has the even partitions, the other the odd ones."""

    terms: Terms = field(default_factory=Terms)
    partitions: int = 4
    now_ms: int = 10_000_000
    failing: set[str] = field(default_factory=set[str])  # tools whose undo is refused for good
    undone: list[str] = field(default_factory=list[str])  # step ids, in order
    starts: dict[str, int] = field(default_factory=dict[str, int])  # of the newest instance

    def __post_init__(self) -> None:
        self.broker = MemoryBroker(self.partitions, lambda: self.now_ms)
        self._read: dict[int, int] = {}
        self.engines = [self._engine(range(0, self.partitions, 2)), self._engine(range(1, self.partitions, 2))]

    def _engine(self, partitions: range) -> MemoryEngine:
        engine = MemoryEngine(
            self.broker, TOPICS, lambda partition: Partition(partition, self.terms), lambda: self.now_ms
        )
        for partition in partitions:
            engine.take(partition)
        return engine

    # --- driving ---

    def add(self, fact: Fact) -> int:
        """Append a fact; nothing is folded yet."""
        key = fact.workflow_id.encode()
        return self.broker.append(TOPICS.ledger, key=key, value=encode(fact)).offset

    def settle(self, *, only: Callable[[int], bool] = lambda _: True) -> None:
        """Fold, send and compensate until nothing moves."""
        for _ in range(200):
            moved = 0
            for engine in self.engines:
                moved += sum(engine.step(partition) for partition in engine.partitions if only(partition))
            if not moved + self._compensate():
                return
        raise AssertionError("still busy")

    def wait(self, ms: int, *, step_ms: int = 1_000) -> None:
        """Let time pass; agents that run here are alive meanwhile only if told so by `beat`."""
        for _ in range(0, ms, step_ms):
            self.now_ms += step_ms
            self.settle()

    def crash(self, number: int) -> None:
        """Kill a processor; its next incarnation takes its partitions from the last checkpoint."""
        partitions = tuple(self.engines[number].partitions)
        self.engines[number] = self._engine(range(partitions[0], partitions[-1] + 1, 2))

    def _compensate(self) -> int:
        done = 0
        for partition in range(self.partitions):
            for record in self.broker.read(TOPICS.undo("default"), partition, self._read.get(partition, 0)):
                self._read[partition] = record.offset + 1
                command = decode(record.value)
                if isinstance(command, UndoCommand):
                    done += self._run(command)
        return done

    def _run(self, command: UndoCommand) -> int:
        for number, entry in enumerate(command.entries):
            if entry.step_id not in self.undone and not self._undo(command, number):
                return number + 1
        return len(command.entries)

    def _undo(self, command: UndoCommand, number: int) -> bool:
        """Undo one step, and return whether that took."""
        entry = command.entries[number]
        started = UndoEvent(
            command.workflow_id,
            entry.step_id,
            entry.generation,
            entry.attempt,
            UndoStatus.STARTED,
            "o",
            command.workflow_offset,
        )
        self.add(started)
        if entry.tool_name in self.failing:
            self.add(replace(started, status=UndoStatus.FAILED, retryable=False, error=Failure("X", "no")))
            return False
        self.undone.append(entry.step_id)
        self.add(replace(started, status=UndoStatus.UNDONE))
        return True

    # --- facts ---

    def start(
        self, id: str, *, parent: str | None = None, announced: int = -1, resumes: bool = False, **more: object
    ) -> int:
        """Begin a workflow, or resume it; as a child of `parent`, announced there at `announced`."""
        attributes = {} if parent is None else {CHILD_STARTED_OFFSET: str(announced)}
        attributes |= {"on_existing": "resume"} if resumes else {}
        fields: dict[str, object] = {"lease_ms": 100 * LEASE_MS, **more}
        if parent is not None and announced >= 0:
            there = self.broker.read(TOPICS.ledger, self.partition_of(parent), announced, 1)
            fields = {"child_started_at_ms": there[0].appended_at_ms, **fields}
        event = WorkflowEvent(
            id,
            0,
            WorkflowStatus.STARTED,
            agent_id="a",
            parent_workflow_id=parent,
            parent_workflow_offset=self.starts[parent] if parent is not None else -1,
            attributes=attributes,
            **fields,  # type: ignore[arg-type]
        )
        self.starts[id] = self.add(event)
        return self.starts[id]

    def announce(self, parent: str, child: str, *, epoch: int = 0, detached: bool = False) -> int:
        return self.add(
            WorkflowEvent(
                parent,
                epoch,
                WorkflowStatus.CHILD_STARTED,
                workflow_offset=self.starts[parent],
                child_workflow_id=child,
                detached=detached,
            )
        )

    def child(self, parent: str, child: str, *, epoch: int = 0) -> int:
        """Announce and begin a child; return where it was announced."""
        announced = self.announce(parent, child, epoch=epoch)
        self.start(child, parent=parent, announced=announced)
        return announced

    def did(self, id: str, step: str, contract: Contract = PAY, *, epoch: int = 0) -> None:
        self.begins(id, step, contract, epoch=epoch)
        self.ends(id, step, contract, epoch=epoch)

    def begins(self, id: str, step: str, contract: Contract = PAY, *, epoch: int = 0) -> None:
        started = StepEvent(
            id,
            step,
            f"{step}-1",
            epoch,
            StepStatus.STARTED,
            contract.tool_name,
            workflow_offset=self.starts[id],
            side_effect_classification=contract.effect,
            contract=encode(contract),
            undo_arguments=b"{}",
        )
        self.add(started)

    def ends(self, id: str, step: str, contract: Contract = PAY, *, epoch: int = 0) -> None:
        status, tool = StepStatus.SUCCEEDED, contract.tool_name
        self.add(StepEvent(id, step, f"{step}-1", epoch, status, tool, workflow_offset=self.starts[id]))

    def said(self, id: str, status: WorkflowStatus, *, epoch: int = 0, **more: object) -> int:
        event = WorkflowEvent(id, epoch, status, workflow_offset=self.starts[id], **more)  # type: ignore[arg-type]
        return self.add(event)

    def succeeded(self, id: str) -> None:
        self.said(id, WorkflowStatus.SUCCEEDED)

    def failed(self, id: str) -> None:
        self.said(id, WorkflowStatus.FAILED)

    # --- looking ---

    def other_id(self, partition: int) -> str:
        """Return a new id on a partition."""
        numbers = itertools.count(len(self.starts))
        return next(id for n in numbers if self.partition_of(id := f"other-{n}") == partition and id not in self.starts)

    def partition_of(self, id: str) -> int:
        return partition_for(id.encode(), self.partitions)

    def held(self, id: str) -> Workflow | None:
        for engine in self.engines:
            if self.partition_of(id) in engine.partitions:
                fold = engine.tenure(self.partition_of(id)).fold
                assert isinstance(fold, Partition)
                return fold.workflow(id)
        raise AssertionError(f"nobody has the partition of {id}")

    def phase(self, id: str) -> str:
        found = self.held(id)
        return "" if found is None else found.header.phase.value

    def record_of(self, parent: str, child: str) -> Step:
        found = self.held(parent)
        assert found is not None
        return next(s for s in reversed(found.steps) if s.child is not None and s.child.workflow_id == child)

    def facts(self, id: str) -> list[Fact]:
        records = self.broker.read(TOPICS.ledger, self.partition_of(id))
        found = [decode(record.value) for record in records if record.key == id.encode()]
        return [fact for fact in found if not isinstance(fact, Timeout)]  # type: ignore[misc]

    def requests(self, id: str) -> list[WorkflowEvent]:
        return [f for f in self.facts(id) if isinstance(f, WorkflowEvent) and f.writer is Party.PARENT]

    def answers(self, id: str) -> list[str]:
        found = [f for f in self.facts(id) if isinstance(f, WorkflowEvent)]
        return [f.closed_as or "" for f in found if f.status is WorkflowStatus.CHILD_CLOSED]

    def echo(self, id: str) -> WorkflowEcho:
        records = self.broker.read(TOPICS.workflows, self.partition_of(id))
        found = decode([record.value for record in records if record.key == id.encode()][-1])
        assert isinstance(found, WorkflowEcho)
        return found

    def incidents(self, id: str) -> dict[str, str]:
        """The last state of each incident of a workflow, by kind."""
        found: dict[str, str] = {}
        for partition in range(self.partitions):
            for record in self.broker.read(TOPICS.incidents, partition):
                incident = decode(record.value)
                if isinstance(incident, Incident) and incident.workflow_id == id:
                    found[incident.kind] = incident.state.value
        return found
