"""A ledger in memory, so that an agent's tests run without servers: same scopes, same flows, same errors.

    with memory_runtime() as memory:
        with workflow("order-1"):
            charge("cus_1", 500)
    assert memory.ledger.statuses("order-1") == [...]

It answers starts and claims as a processor would, undoes nothing, and has faults on demand. The whole pipeline with
undos is `amends.testing`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from amends.producers import clock
from amends.producers.effects import Acknowledged, Uncertain, Unwritten, Write
from amends.producers.ledger import History, Listener, OnWritten
from amends.producers.outside import use
from amends.producers.runtime import Runtime
from amends.producers.settings import ProducerSettings
from amends.schemas import approvals
from amends.schemas.approvals import Approval
from amends.schemas.codec import decode, encode
from amends.schemas.commands import EndedEpoch, Phase, WorkflowEcho
from amends.schemas.facts import (
    FENCE,
    Decision,
    Fact,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    WorkflowEvent,
    WorkflowStatus,
)
from amends.tools.errors import LedgerUnavailable

Fault = Callable[[StepEvent | WorkflowEvent], Write | None]
"""Asked before each write: None lets it pass, anything else is its answer (`Uncertain` writes it all the same)."""

_ENDING = frozenset({WorkflowStatus.FAILED, WorkflowStatus.ROLLBACK_REQUESTED})
_OPEN = frozenset({StepStatus.STARTED, StepStatus.UNKNOWN, StepStatus.HEARTBEAT})


@dataclass(slots=True)
class _Workflow:
    offset: int
    epoch: int = 0
    phase: Phase = Phase.RUNNING
    attempts: dict[str, StepStatus] = field(default_factory=dict[str, StepStatus])
    savepoints: dict[str, int] = field(default_factory=dict[str, int])
    turns: tuple[EndedEpoch, ...] = ()
    savepoint: str = ""
    asked_offset: int = -1  # the workflow STARTED that was answered last
    approvals: dict[str, Approval] = field(default_factory=dict[str, Approval])  # by step


class MemoryLedger:
    """One partition. Facts go through the codec, as on Kafka; echoes come before the write returns.

    Attributes:
        fault: decides what becomes of a write.
        answering: whether a processor is there to answer.
    """

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.answering = True
        self._facts: list[Fact] = []
        self._workflows: dict[str, _Workflow] = {}
        self._listeners: dict[str, list[Listener]] = defaultdict(list)
        self._lock = threading.RLock()

    # --- Ledger -----------------------------------------------------------------------------------------------------

    def write(self, fact: StepEvent | WorkflowEvent) -> Write:
        fault = self.fault(fact) if self.fault is not None else None
        if isinstance(fault, Unwritten):
            return fault
        written = self._append(fact)
        return fault if fault is not None else written

    async def write_async(self, fact: StepEvent | WorkflowEvent) -> Write:
        return self.write(fact)

    def send(self, fact: StepEvent | WorkflowEvent, on_written: OnWritten) -> None:
        on_written(self.write(fact))

    def follow(self, workflow_id: str, listener: Listener) -> Callable[[], None]:
        with self._lock:
            self._listeners[workflow_id].append(listener)
        return lambda: self._unfollow(workflow_id, listener)

    async def follow_async(self, workflow_id: str, listener: Listener) -> Callable[[], None]:
        return self.follow(workflow_id, listener)

    def history(self, workflow_id: str, from_offset: int, to_offset: int) -> History:
        if self.fault is not None and self.fault(WorkflowEvent(workflow_id, 0, WorkflowStatus.HEARTBEAT)) is not None:
            raise LedgerUnavailable(f"workflow {workflow_id!r}: its history can't be read.")
        found = enumerate(self.all_facts())
        return tuple((o, f) for o, f in found if f.workflow_id == workflow_id and from_offset <= o <= to_offset)

    def close(self) -> None:
        """Nothing is held."""

    def _unfollow(self, workflow_id: str, listener: Listener) -> None:
        with self._lock:
            if listener in self._listeners[workflow_id]:
                self._listeners[workflow_id].remove(listener)

    # --- for tests --------------------------------------------------------------------------------------------------

    def all_facts(self) -> list[Fact]:
        """Return every fact, in ledger order."""
        with self._lock:
            return list(self._facts)

    def facts(self, workflow_id: str) -> list[Fact]:
        """Return the facts of one workflow, in ledger order."""
        return [fact for fact in self.all_facts() if fact.workflow_id == workflow_id]

    def steps(self, workflow_id: str) -> list[StepEvent]:
        """Return the step events of one workflow, in ledger order."""
        return [fact for fact in self.facts(workflow_id) if isinstance(fact, StepEvent)]

    def statuses(self, workflow_id: str) -> list[str]:
        """Return what happened in one workflow, in words: `workflow STARTED`, `payments.charge SUCCEEDED`."""
        return [
            f"{fact.tool_name if isinstance(fact, StepEvent) else 'workflow'} {fact.status}"
            for fact in self.facts(workflow_id)
            if isinstance(fact, StepEvent | WorkflowEvent)
        ]

    def phase(self, workflow_id: str) -> Phase:
        """Return where a workflow stands."""
        return self._workflows[workflow_id].phase

    def turn(self, workflow_id: str, phase: Phase = Phase.TURNED) -> None:
        """Turn a workflow, as a person or a lost heartbeat would, and echo it."""
        with self._lock:
            state = self._workflows[workflow_id]
            state.phase, state.epoch = phase, state.epoch + 1
            self._echo(workflow_id)

    def approve(self, workflow_id: str, *, by: str = "somebody", reason: str = "", stands_ms: int = 3_600_000) -> None:
        """Approve, as a person would, every call of the workflow that waits for one."""
        self._decide(workflow_id, Decision.APPROVE, by, reason, clock.wall_ms() + stands_ms)

    def reject(self, workflow_id: str, *, by: str = "somebody", reason: str = "") -> None:
        """Reject every call of the workflow that waits for a person, or that he has granted and that was not made."""
        self._decide(workflow_id, Decision.REJECT, by, reason, None)

    def echo(self, echo: WorkflowEcho) -> None:
        """Send an echo as it is: stale, of another instance, of a zombie."""
        for listener in tuple(self._listeners[echo.workflow_id]):
            listener(echo)

    def down(self, reason: str = "the ledger is down") -> None:
        """From now on nothing is written."""
        self.fault = lambda _: Unwritten(reason)

    def lose_acknowledgements(self, reason: str = "no answer") -> None:
        """From now on everything is written, and nobody is told."""
        self.fault = lambda _: Uncertain(reason)

    def up(self) -> None:
        """End `down` and `lose_acknowledgements`."""
        self.fault = None

    # --- a processor's share ----------------------------------------------------------------------------------------

    def _append(self, fact: StepEvent | WorkflowEvent) -> Acknowledged:
        record = decode(encode(fact))
        assert isinstance(record, StepEvent | WorkflowEvent)
        with self._lock:
            offset = len(self._facts)
            self._facts.append(record)
            if self._fold(record, offset) and self.answering:
                self._echo(record.workflow_id)
        return Acknowledged(offset, clock.wall_ms())

    def _fold(self, fact: StepEvent | WorkflowEvent, offset: int) -> bool:
        state = self._workflows.get(fact.workflow_id)
        if isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.STARTED:
            if state is None:
                state = self._workflows[fact.workflow_id] = _Workflow(offset)
            state.asked_offset = offset
            return True
        if state is None or fact.workflow_offset != state.offset:
            return False
        fenced = isinstance(fact, StepEvent) and fact.status is StepStatus.STARTED and FENCE in fact.attributes
        if fact.epoch != state.epoch:
            return fenced
        if isinstance(fact, StepEvent):
            if fact.approval is not None or fact.step_id in state.approvals:
                self._approval(state, fact, offset)
            if fact.status is StepStatus.REQUESTED:
                return True
            if fact.status is not StepStatus.HEARTBEAT:
                state.attempts[fact.attempt] = fact.status
        elif fact.status is WorkflowStatus.SUCCEEDED and state.phase is Phase.RUNNING:
            state.phase = Phase.FINISHING
        elif fact.status is WorkflowStatus.SAVEPOINT and fact.savepoint is not None:
            state.savepoints[fact.savepoint] = offset
        elif fact.status is WorkflowStatus.ROLLBACK_REQUESTED and fact.savepoint is not None:
            back_to = state.savepoints[fact.savepoint]
            state.savepoints = {name: at for name, at in state.savepoints.items() if at <= back_to}
            state.turns = (*(t for t in state.turns if t.offset < back_to), EndedEpoch(state.epoch, back_to))
            state.savepoint, state.epoch = fact.savepoint, state.epoch + 1
            return True
        elif fact.status in _ENDING and state.phase in (Phase.RUNNING, Phase.FINISHING):
            state.phase, state.epoch = Phase.TURNED, state.epoch + 1
            return True
        if state.phase is Phase.FINISHING and not _OPEN & set(state.attempts.values()):
            state.phase = Phase.SUCCEEDED
            return True
        return fenced

    def _approval(self, state: _Workflow, fact: StepEvent, offset: int) -> None:
        before, now_ms = state.approvals.get(fact.step_id), clock.wall_ms()
        after: Approval | str | None = before
        if fact.status is StepStatus.REQUESTED and fact.approval is not None:
            after = approvals.requested(before, fact.approval, fact.agent_id, fact.epoch, offset, now_ms)
        elif fact.status is StepStatus.STARTED and before is not None:
            after = approvals.used(before, fact.approval, fact.attempt, fact.epoch, now_ms)
        elif fact.status is StepStatus.NOT_EXECUTED and before is not None:
            after = approvals.given_back(before, fact.attempt)
        if isinstance(after, Approval):
            state.approvals[fact.step_id] = after

    def _decide(self, workflow_id: str, decision: Decision, by: str, reason: str, expires_at_ms: int | None) -> None:
        with self._lock:
            state = self._workflows[workflow_id]
            for step_id, approval in state.approvals.items():
                ruling = Resolution(
                    workflow_id,
                    decision,
                    Party.PERSON,
                    by,
                    step_id=step_id,
                    workflow_offset=state.offset,
                    version=approval.version,
                    reason=reason,
                    timestamp_ms=clock.wall_ms(),
                    step_epoch=approval.epoch,
                    argument_digest=approval.argument_digest,
                    expires_at_ms=expires_at_ms,
                )
                self._facts.append(ruling)
                state.approvals[step_id] = approvals.ruled(approval, ruling, state.epoch, clock.wall_ms())
            self._echo(workflow_id)

    def _echo(self, workflow_id: str) -> None:
        state = self._workflows[workflow_id]
        last = len(self._facts) - 1
        self.echo(
            WorkflowEcho(
                workflow_id,
                state.offset,
                state.epoch,
                state.phase,
                folded_to=last,
                answers_offset=state.asked_offset,
                savepoint=state.savepoint,
                turns=state.turns,
                approvals=tuple(
                    told
                    for step_id, approval in state.approvals.items()
                    if (told := approvals.told_of(step_id, approval, state.epoch)) is not None
                ),
            )
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """A runtime on a ledger in memory."""

    runtime: Runtime
    ledger: MemoryLedger


@contextmanager
def memory_runtime(settings: ProducerSettings | None = None) -> Iterator[Memory]:
    """Make a ledger in memory the one of this process, for the time of the block. Waits are short: a test that waits
    for a processor that is not there has its answer after half a second."""
    chosen = settings or ProducerSettings(
        standing_within_ms=500, owed_within_ms=500, confirm_within_ms=500, approval_within_ms=500
    )
    ledger = MemoryLedger()
    runtime = Runtime(chosen, ledger)
    before = use(runtime)
    try:
        yield Memory(runtime, ledger)
    finally:
        use(before)
        runtime.close()
