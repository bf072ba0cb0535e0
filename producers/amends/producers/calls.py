"""Which step a call belongs to: the calls this agent has made, here and in earlier instances of itself.

One step is at most one effect. A call is known by its id: the framework's, the caller's own, or what it asks and how
often this scope has asked it before. A call that is met again is its step:

    its step is   takes a key, or natural            neither
    PRESENT       the recorded result                the recorded result
    OPEN          here: pending; elsewhere: again    pending
    UNKNOWN       again, under the same key          pending
    ABSENT        again, under the same key          a new step

"again" is a new attempt of the step. A step that a turn condemned is over: its call is a new step. After a turn to a
savepoint, calls without an id of their own are counted on from where they were there, so that an agent that is resumed
later meets the same ones. So is every call
of a tool that was declared repeatable, and that of an absent step with a before-image, which shows a world gone by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from amends.producers.effects import Admission, Admit, Admitted, Closed, Pending, Recorded, Standing
from amends.producers.savepoints import IN_FLIGHT, Place, Savepoints, is_condemned
from amends.schemas.commands import EndedEpoch, Phase
from amends.schemas.contract import CallTerms, Idempotency
from amends.schemas.facts import (
    Decision,
    Fact,
    Resolution,
    StepEvent,
    StepStatus,
    Timeout,
    TimeoutKind,
    WorkflowEvent,
    WorkflowStatus,
)
from amends.schemas.keys import digest, step_id

_ENDS = frozenset({StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.UNKNOWN, StepStatus.NOT_EXECUTED})
_WITHOUT_EFFECT = frozenset({StepStatus.FAILED, StepStatus.NOT_EXECUTED})


@dataclass(slots=True)
class _Step:
    step_id: str
    call_id: str
    epoch: int
    first_wall_ms: int
    here: bool  # made by this instance
    kept: bool  # may be met again
    attempts: dict[str, StepStatus] = field(default_factory=dict[str, StepStatus])
    places: dict[str, Place] = field(default_factory=dict[str, Place])  # of the STARTED of each attempt
    absent: set[str] = field(default_factory=set[str])
    present: bool = False
    payload: bytes | None = None
    captured: bytes | None = None  # the before-image, until the call is known to have happened

    def open(self) -> bool:
        return StepStatus.STARTED in self.attempts.values()

    def condemned(self, turns: tuple[EndedEpoch, ...]) -> bool:
        return bool(turns) and is_condemned((p for a, p in self.places.items() if a in self.attempts), turns)

    def unknown(self) -> bool:
        return any(s is StepStatus.UNKNOWN and a not in self.absent for a, s in self.attempts.items())


class CallBook:
    """The calls of one workflow, as far as its agent knows them. Not locked: the caller holds the scope's lock."""

    def __init__(self, workflow_id: str) -> None:
        self._workflow_id = workflow_id
        self._counts: Counter[str] = Counter()
        self._steps: dict[str, _Step] = {}
        self._newest: dict[str, str] = {}  # call id -> step id
        self._savepoints = Savepoints()

    def __len__(self) -> int:
        return len(self._steps)

    def remember(self, history: Iterable[tuple[int, Fact]]) -> None:
        """Take over the facts of earlier instances of this agent, in ledger order."""
        for offset, fact in history:
            if isinstance(fact, StepEvent):
                self._join(fact, here=False, kept=True)
                if fact.status is StepStatus.STARTED:
                    self.placed(fact, offset)
            elif isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.SAVEPOINT and fact.savepoint:
                self._savepoints.remembered(fact.savepoint, Place(fact.epoch, offset))
            elif isinstance(fact, Resolution):
                self._resolve(fact)
            elif isinstance(fact, Timeout) and fact.kind is TimeoutKind.STEP and fact.step_id in self._steps:
                attempts = self._steps[fact.step_id].attempts
                if fact.attempt is not None and attempts.get(fact.attempt) is StepStatus.STARTED:
                    attempts[fact.attempt] = StepStatus.UNKNOWN

    def admit(self, call: Admit, attempt: str, wall_ms: int) -> Admission:
        """Return which step and attempt a call is, or why it is not made."""
        terms, epoch = call.contract.call, call.standing.epoch
        identity = call.call_id if call.call_id is not None else self._counted(call.canonical)
        step = None if call.repeatable else self._met(identity, call.standing)
        keyed = terms.idempotency is not Idempotency.NEITHER
        if step is not None:
            if step.present:
                return Recorded(step.step_id, step.payload)
            if step.open() and (step.here or not keyed):
                return Pending(step.step_id, open=True)
            if (step.open() or step.unknown()) and (not keyed or _forgotten(terms, step, wall_ms)):
                return Pending(step.step_id, open=False)
            if (step.open() or step.unknown()) and call.contract.captures and step.captured is None:
                return Pending(step.step_id, open=False)  # what is read now may be its own effect
        if call.standing.phase is not Phase.RUNNING:
            return Closed()
        past = step is not None and call.contract.captures and not (step.open() or step.unknown())
        if step is None or not keyed or past:
            own = attempt if call.repeatable or not keyed else None
            named = step_id(self._workflow_id, call.standing.workflow_offset, identity, epoch, own)
            step = _Step(named, identity, epoch, wall_ms, here=True, kept=call.call_id is not None)
            self._steps[named] = step
            self._newest[identity] = named
        step.here = True
        step.attempts[attempt] = StepStatus.STARTED
        step.places[attempt] = Place(epoch, IN_FLIGHT)
        return Admitted(step.step_id, identity, attempt, self._told(call.after), step.captured)

    def withdraw(self, admitted: Admitted) -> None:
        """Forget an attempt of which nothing was written."""
        step = self._steps.get(admitted.step_id)
        if step is not None:
            step.attempts.pop(admitted.attempt, None)
            if not step.attempts:
                del self._steps[step.step_id]
                self._newest.pop(step.call_id, None)

    def started(self, fact: StepEvent) -> None:
        """Keep the before-image of one of our own attempts, for the next one."""
        step = self._steps.get(fact.step_id)
        if step is not None and step.captured is None:
            step.captured = fact.captured

    def placed(self, fact: StepEvent, offset: int) -> None:
        """Learn where the STARTED of an attempt stands."""
        step = self._steps.get(fact.step_id)
        if step is not None:
            step.places[fact.attempt] = Place(fact.epoch, offset)

    def name_savepoints(self, standing: Standing) -> tuple[str, ...]:
        """Return the names of the savepoints that may be undone to, oldest first."""
        return self._savepoints.names(standing.turns)

    def meet_savepoint(self, name: str, standing: Standing) -> bool:
        """Count a savepoint; return whether an earlier instance took it at this place."""
        return self._savepoints.meet(name, standing.turns, self._counts)

    def keep_savepoint(self, name: str, place: Place) -> None:
        """A savepoint stands on the ledger."""
        self._savepoints.kept(name, place, self._counts)

    def go_on(self, standing: Standing) -> None:
        """Part of what was done was undone: count on from the savepoint."""
        counts = self._savepoints.undone_to(standing.turns, standing.workflow_offset)
        if counts is not None:
            self._counts = counts

    def note(self, fact: StepEvent) -> None:
        """Take an outcome of one of our own attempts into account."""
        self._join(fact, here=True, kept=False)
        step = self._steps.get(fact.step_id)
        if step is not None and not step.kept and not step.open():
            # Its count has passed: this instance never meets it again, and a long run must not hold what it returned.
            del self._steps[fact.step_id]
            self._newest.pop(step.call_id, None)

    def _told(self, after: tuple[str, ...]) -> tuple[str, ...]:
        """The steps of these calls; what no call here is named by is taken for the id of a step."""
        return tuple(self._newest.get(name, name) for name in after)

    def _counted(self, canonical: str) -> str:
        number = self._counts[canonical]
        self._counts[canonical] = number + 1
        return digest(f"{number}\n{canonical}".encode())[:32]

    def _met(self, identity: str, standing: Standing) -> _Step | None:
        step = self._steps.get(self._newest.get(identity, ""))
        return None if step is None or step.condemned(standing.turns) else step

    def _join(self, fact: StepEvent, *, here: bool, kept: bool) -> None:
        step = self._steps.get(fact.step_id)
        if step is None:
            step = _Step(fact.step_id, fact.call_id, fact.epoch, fact.timestamp_ms, here, kept)
            self._steps[fact.step_id] = step
            if fact.call_id:
                self._newest[fact.call_id] = fact.step_id
        before = step.attempts.get(fact.attempt)
        if fact.status is StepStatus.SUCCEEDED:
            step.present = True
            whole = fact.payload_digest is None and (step.kept or kept)
            step.payload = fact.output_payload if whole else None
            step.captured = None
        if fact.status is StepStatus.STARTED:
            if step.captured is None:
                step.captured = fact.captured
            step.attempts.setdefault(fact.attempt, fact.status)
        elif fact.status in _ENDS and before not in _WITHOUT_EFFECT and before is not StepStatus.SUCCEEDED:
            step.attempts[fact.attempt] = fact.status

    def _resolve(self, fact: Resolution) -> None:
        step = self._steps.get(fact.step_id or "")
        if step is None:
            return
        if fact.decision is Decision.PRESENT:
            step.present = True
            step.payload = fact.output_payload
        elif fact.decision in (Decision.ABSENT, Decision.MARK_ABSENT):
            step.absent.update(fact.attempts)


def _forgotten(terms: CallTerms, step: _Step, wall_ms: int) -> bool:
    """Whether the remote no longer remembers the key of `step`: it then counts as one that takes none."""
    if terms.idempotency is not Idempotency.KEY or terms.key_ttl_ms is None:
        return False
    return wall_ms - step.first_wall_ms >= terms.key_ttl_ms
