"""A ledger in memory with the real fold behind it, for tests of agents that are told what the fold decided.

`undoing` says whether a compensator is there: one that does at once what it is told, and always succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.core.ledger import Entry

from amends.processors.partition import Partition
from amends.processors.terms import Terms
from amends.producers import clock
from amends.producers.effects import Acknowledged
from amends.producers.outside import use
from amends.producers.runtime import Runtime
from amends.producers.settings import ProducerSettings
from amends.producers.testing import MemoryLedger
from amends.schemas.codec import decode, encode
from amends.schemas.commands import Phase, UndoCommand, WorkflowEcho
from amends.schemas.facts import Fact, StepEvent, UndoEvent, UndoStatus, WorkflowEvent


class FoldedLedger(MemoryLedger):
    """Facts are folded as they are written, and echoes come before the write returns."""

    def __init__(self) -> None:
        super().__init__()
        self.partition = Partition(0, Terms(lanes=frozenset({"default", "shop"})))
        self.undoing = True
        self.undone: list[str] = []  # step ids, in the order they were undone
        self._waiting: list[UndoCommand] = []
        self._entries: list[Entry] = []

    def phase(self, workflow_id: str) -> Phase:
        found = self.partition.workflow(workflow_id)
        assert found is not None
        return found.header.phase

    def add(self, fact: Fact) -> int:
        """Append any fact, as any part would."""
        with self._lock:
            offset, now_ms = len(self._facts), clock.wall_ms()
            record = decode(encode(fact))
            self._facts.append(record)  # type: ignore[arg-type]
            self._entries.append(Entry(offset, now_ms, fact.workflow_id.encode(), encode(fact)))
            self.partition.fold(self._entries[-1])
            self._fold_again()
            of_the_family: list[WorkflowEvent] = []
            for emission in self.partition.outputs(now_ms):
                sent = decode(emission.value)
                if isinstance(sent, WorkflowEcho) and self.answering:
                    self.echo(sent)
                elif isinstance(sent, UndoCommand):
                    self._waiting.append(sent)
                elif isinstance(sent, WorkflowEvent):
                    of_the_family.append(sent)
            for event in of_the_family:
                self.add(event)
            if self.undoing:
                self.compensate()
        return offset

    def _fold_again(self) -> None:
        """Read what the fold wants read, as an engine does."""
        while (stretch := self.partition.refolding()) is not None:
            for entry in self._entries[stretch.from_offset : stretch.to_offset + 1]:
                stretch.take(entry)
            self.partition.refolded(stretch)

    def compensate(self) -> None:
        """Do every undo that was commanded and is not done."""
        while self._waiting:
            command = self._waiting.pop(0)
            for entry in command.entries:
                if entry.step_id in self.undone:
                    continue
                self.undone.append(entry.step_id)
                started = UndoEvent(
                    command.workflow_id, entry.step_id, entry.generation, entry.attempt, UndoStatus.STARTED, "o"
                )
                self.add(started)
                self.add(replace(started, status=UndoStatus.UNDONE))

    def _append(self, fact: StepEvent | WorkflowEvent) -> Acknowledged:
        return Acknowledged(self.add(fact), clock.wall_ms())


@dataclass(frozen=True, slots=True)
class Folded:
    """A runtime on such a ledger."""

    runtime: Runtime
    ledger: FoldedLedger = field(default_factory=FoldedLedger)


@contextmanager
def folded_runtime(**settings: int) -> Iterator[Folded]:
    """Make such a ledger the one of this process, for the time of the block."""
    waits = {"standing_within_ms": 500, "owed_within_ms": 500, "confirm_within_ms": 500, **settings}
    ledger = FoldedLedger()
    runtime = Runtime(ProducerSettings(**waits), ledger)
    before = use(runtime)
    try:
        yield Folded(runtime, ledger)
    finally:
        use(before)
        runtime.close()
