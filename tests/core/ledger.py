"""A ledger of one partition around the real fold, with time under the test's control. Shared by tests of the fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from amends.processors.emission import Emission
from amends.processors.partition import Partition
from amends.processors.state import Step
from amends.processors.terms import Terms
from amends.processors.workflow import Workflow
from amends.schemas.codec import Record, decode, encode
from amends.schemas.commands import Incident, ProbeCommand, ResendCommand, UndoCommand, WorkflowEcho
from amends.schemas.contract import CallTerms, Contract, Effect, Idempotency, ProbeTerms, UndoTerms, VerifyTerms
from amends.schemas.facts import (
    Carry,
    Decision,
    Fact,
    Failure,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    Timeout,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)

R = TypeVar("R", bound=Record)
LEASE_MS = 30_000


def contract_of(
    tool: str,
    *,
    effect: Effect = Effect.COMPENSABLE,
    call: Idempotency = Idempotency.NEITHER,
    undo: Idempotency | None = Idempotency.KEY,
    probe: bool = False,
    verify: bool = False,
    attempts_max: int = 3,
    lane: str = "default",
    window_ms: int | None = None,
) -> Contract:
    terms = None
    if undo is not None:
        terms = UndoTerms(
            tool,
            lane,
            idempotency=undo,
            attempts_max=attempts_max,
            backoff_ms=100,
            settle_ms=1_000,
            window_ms=window_ms,
        )
    return Contract(
        tool,
        effect,
        call=CallTerms(idempotency=call, settle_ms=1_000),
        undo=terms,
        probe=ProbeTerms(tool, attempts_max=2, backoff_ms=100) if probe else None,
        verify=VerifyTerms(tool) if verify else None,
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as an engine would hand it over."""

    offset: int
    appended_at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass
class Ledger:
    """Appends facts, folds them, and keeps what the fold sends."""

    terms: Terms = field(default_factory=Terms)
    now_ms: int = 1_000_000
    entries: list[Entry] = field(default_factory=list)
    sent: list[Record] = field(default_factory=list)
    raw: list[Emission] = field(default_factory=list)
    workflow_id: str = "w"
    ledger_start: int = 0  # older facts are gone
    refolds: bool = True  # what is wanted again is read at once

    def __post_init__(self) -> None:
        self.partition = Partition(0, self.terms)
        self.changelog: dict[bytes, bytes] = {}

    # --- driving ---

    def append(self, fact: Fact | None, *, raw: bytes | None = None, key: bytes | None = b"") -> int:
        value = encode(fact) if fact is not None else raw
        key = fact.workflow_id.encode() if fact is not None else key
        entry = Entry(len(self.entries), self.now_ms, key, value)
        self.entries.append(entry)
        self.partition.fold(entry)
        self.look()
        return entry.offset

    def look(self) -> None:
        if self.refolds:
            self.refold()
        for emission in self.partition.outputs(self.now_ms):
            self.raw.append(emission)
            if emission.value is not None and not emission.topic.startswith("dlq.amends.ledger"):
                self.sent.append(decode(emission.value))

    def refold(self) -> None:
        """Read again what the fold wants read again, as an engine does."""
        while (stretch := self.partition.refolding()) is not None:
            if stretch.from_ms is not None:
                kept = self.entries[self.ledger_start :]
                later = (e.offset for e in kept if e.appended_at_ms >= stretch.from_ms)
                stretch.located(next(later, len(self.entries)))
            stretch.begins_at(self.ledger_start)
            for entry in self.entries[stretch.from_offset : stretch.to_offset + 1]:
                stretch.take(entry)
            self.partition.refolded(stretch)

    def wait(self, ms: int, *, step_ms: int = 250, until: Callable[[], bool] | None = None) -> None:
        """Let time pass; Timeouts that are due are written on the ledger, as an engine does."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms and not (until is not None and until()):
            self.now_ms = min(self.now_ms + step_ms, end_ms)
            self.look()
            for emission in self.partition.timeouts(self.now_ms):
                found = decode(emission.value)
                assert isinstance(found, Timeout | Carry)
                self.append(found)

    def checkpoint(self) -> None:
        for key, value in self.partition.changes():
            if value is None:
                self.changelog.pop(key, None)
            else:
                self.changelog[key] = value

    def crash(self, *, checkpoint: bool = True) -> None:
        """Lose the partition's memory; a new owner restores the changelog and folds what lies behind it."""
        if checkpoint:
            self.checkpoint()
            self._committed = self.partition.folded_to
        committed = getattr(self, "_committed", -1)
        self.partition = Partition(0, self.terms)
        for key, value in self.changelog.items():
            self.partition.restore(key, value)
        self.partition.restored(committed)
        for entry in self.entries[committed + 1 :]:
            self.partition.fold(entry)
        self.look()

    # --- facts ---

    def start(self, *, lease_ms: int = LEASE_MS, **attributes: str) -> int:
        return self.append(
            WorkflowEvent(
                self.workflow_id, 0, WorkflowStatus.STARTED, agent_id="a", lease_ms=lease_ms, attributes=attributes
            )
        )

    def started(self, step: str, contract: Contract, *, attempt: str = "p1", epoch: int = 0, **more: object) -> int:
        fields: dict[str, object] = {"undo_arguments": b"{}", **more}
        return self.append(
            StepEvent(
                self.workflow_id,
                step,
                attempt,
                epoch,
                StepStatus.STARTED,
                contract.tool_name,
                side_effect_classification=contract.effect,
                contract=encode(contract),
                **fields,  # type: ignore[arg-type]
            )
        )

    def ended(self, step: str, status: StepStatus, *, attempt: str = "p1", epoch: int = 0, **more: object) -> int:
        return self.append(StepEvent(self.workflow_id, step, attempt, epoch, status, step, **more))  # type: ignore[arg-type]

    def did(self, step: str, contract: Contract, *, epoch: int = 0, **more: object) -> None:
        self.started(step, contract, epoch=epoch)
        self.ended(step, StepStatus.SUCCEEDED, epoch=epoch, **more)  # type: ignore[arg-type]

    def said(self, status: WorkflowStatus, *, epoch: int = 0, writer: Party = Party.AGENT) -> int:
        return self.append(WorkflowEvent(self.workflow_id, epoch, status, writer=writer, by="someone"))

    def savepoint(self, name: str, *, epoch: int = 0) -> int:
        return self.append(WorkflowEvent(self.workflow_id, epoch, WorkflowStatus.SAVEPOINT, savepoint=name))

    def undo_to(self, name: str, *, epoch: int = 0, writer: Party = Party.AGENT) -> int:
        status = WorkflowStatus.ROLLBACK_REQUESTED
        return self.append(WorkflowEvent(self.workflow_id, epoch, status, writer=writer, by="someone", savepoint=name))

    def undo(
        self, step: str, status: UndoStatus, *, generation: int = 0, attempt: int = 0, owner: str = "o", **more: object
    ) -> int:
        error = Failure("X", "no") if status in (UndoStatus.FAILED, UndoStatus.UNKNOWN) else None
        return self.append(
            UndoEvent(self.workflow_id, step, generation, attempt, status, owner, error=error, **more)  # type: ignore[arg-type]
        )

    def undone(self, step: str, **more: int) -> None:
        self.undo(step, UndoStatus.STARTED, **more)  # type: ignore[arg-type]
        self.undo(step, UndoStatus.UNDONE, **more)  # type: ignore[arg-type]

    def resolve(
        self, step: str, decision: Decision, *attempts: str, writer: Party = Party.COMPENSATOR, **more: object
    ) -> int:
        return self.append(
            Resolution(self.workflow_id, decision, writer, "someone", step_id=step, attempts=attempts, **more)  # type: ignore[arg-type]
        )

    # --- looking ---

    @property
    def workflow(self) -> Workflow:
        found = self.partition.workflow(self.workflow_id)
        assert found is not None
        return found

    @property
    def phase(self) -> str:
        return self.workflow.header.phase.value

    def step(self, step_id: str) -> Step:
        found = self.workflow.find(step_id)
        assert found is not None
        return found

    def of(self, kind: type[R]) -> list[R]:
        return [record for record in self.sent if isinstance(record, kind)]

    def commanded(self) -> list[list[tuple[str, int, int]]]:
        """Every undo command so far, as (step, generation, attempt) of its entries."""
        return [[(e.step_id, e.generation, e.attempt) for e in c.entries] for c in self.of(UndoCommand)]

    def probes(self) -> list[ProbeCommand]:
        return self.of(ProbeCommand)

    def resends(self) -> list[ResendCommand]:
        return self.of(ResendCommand)

    def echoes(self) -> list[str]:
        return [echo.phase.value for echo in self.of(WorkflowEcho)]

    def incidents(self) -> dict[str, str]:
        """The last state of each incident, by kind."""
        return {incident.kind: incident.state.value for incident in self.of(Incident)}
