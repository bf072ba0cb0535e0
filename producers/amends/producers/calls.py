"""Which step a call belongs to: the calls this agent has made, here and in earlier instances of itself.

One step is at most one effect. A call is known by its id: the caller's own, a model's, or what it asks and how often
this scope has asked it before. A call that is met again is its step:

    its step is   takes a key, or natural            neither
    PRESENT       the recorded result                the recorded result
    OPEN          here: pending; elsewhere: again    pending
    UNKNOWN       again, under the same key          pending
    ABSENT        again, under the same key          a new step

"again" is a new attempt of the step. A step that a turn condemned is over: its call is a new step. After a turn to a
savepoint, calls without an id of their own are counted on from where they were there, so that an agent that is resumed
later meets the same ones. So is every call
of a tool that was declared repeatable, and that of an absent step with a before-image, which shows a world gone by.

A model that plans again gives the same call another id. So a call with a model's id is also met by what it asks: an
equal one that is PRESENT, OPEN or UNKNOWN is its step, or it is refused, as its tool declares (`duplicates`). Not so if
the step was taken back by the agent's own undo since. A step of which a person was asked and that was never sent is met
by what it asks, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from amends.producers.effects import (
    Admission,
    Admit,
    AdmitAgain,
    Admitted,
    Closed,
    Pending,
    Recorded,
    Repeated,
    Standing,
)
from amends.producers.known_steps import WITHOUT_EFFECT, KnownStep, answer_to, is_forgotten
from amends.producers.savepoints import IN_FLIGHT, Place, Savepoints
from amends.schemas.commands import Phase
from amends.schemas.contract import ALLOW, REFUSE, Contract, Idempotency
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


class CallBook:
    """The calls of one workflow, as far as its agent knows them. Not locked: the caller holds the scope's lock."""

    def __init__(self, workflow_id: str) -> None:
        self._workflow_id = workflow_id
        self._counts: Counter[str] = Counter()
        self._steps: dict[str, KnownStep] = {}
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
                self._savepoints.remembered(fact.savepoint, Place(fact.epoch, offset), fact.timestamp_ms)
            elif isinstance(fact, Resolution):
                self._resolve(fact)
            elif isinstance(fact, Timeout) and fact.kind is TimeoutKind.STEP and fact.step_id in self._steps:
                attempts = self._steps[fact.step_id].attempts
                if fact.attempt is not None and attempts.get(fact.attempt) is StepStatus.STARTED:
                    attempts[fact.attempt] = StepStatus.UNKNOWN

    def admit(self, call: Admit, attempt: str, wall_ms: int) -> Admission:
        """Return which step and attempt a call is, or why it is not made."""
        identity, step = self._named(call)
        if step is not None and step.present and identity != step.call_id and call.contract.duplicates == REFUSE:
            return Repeated(step.step_id, step.payload)
        if step is not None and identity != step.call_id and call.contract.duplicates == REFUSE and not step.unsent():
            return Pending(step.step_id, open=step.open())
        known = None if step is None else answer_to(call, step, wall_ms)
        if known is not None:
            return known
        if call.standing.phase is not Phase.RUNNING:
            return Closed()
        epoch = call.standing.epoch
        keyed = call.contract.call.idempotency is not Idempotency.NEITHER
        past = step is not None and call.contract.captures and not (step.open() or step.unknown())
        if step is None or ((not keyed or past) and not _is_first(step, call.contract)):
            own = attempt if call.repeatable or not keyed else None
            named = step_id(self._workflow_id, call.standing.workflow_offset, identity, epoch, own)
            kept = call.call_id is not None or call.tool_call_id is not None
            step = KnownStep(named, identity, epoch, wall_ms, True, kept, call.contract.tool_name, call.call_digest)
            self._steps[named] = step
        self._newest[identity] = step.step_id
        again = step.open() or step.unknown()
        step.here, step.call_digest = True, call.call_digest
        step.attempts[attempt] = StepStatus.STARTED
        step.places[attempt] = Place(epoch, IN_FLIGHT)
        return Admitted(step.step_id, step.call_id, attempt, self._told(call.after), step.captured, again)

    def admit_again(self, again: AdmitAgain) -> Admission:
        """Return whether a call is still to be made now that its intent stands on the ledger, and what other processes
        had written before it is known: the first one there makes it."""
        call, admitted = again.asked, again.admitted
        if call.repeatable:
            return admitted
        by_what_it_asks = call.tool_call_id is not None and call.contract.duplicates != ALLOW
        terms = call.contract.call
        keyed = terms.idempotency is not Idempotency.NEITHER
        for step in self._steps.values():
            same = step.call_id == admitted.call_id or (by_what_it_asks and step.call_digest == call.call_digest)
            if not same or step.condemned(call.standing.turns) or self._taken_back(step, call.contract):
                continue
            own = step.step_id == admitted.step_id
            statuses = step.statuses_before(again.offset, admitted.attempt) - WITHOUT_EFFECT
            once = own and keyed and not is_forgotten(terms, step, again.wall_ms)  # to its remote it is one call
            if not statuses or (once and not step.present):
                continue
            if step.present:
                refused = call.contract.duplicates == REFUSE and step.call_id != admitted.call_id
                return Repeated(step.step_id, step.payload) if refused else Recorded(step.step_id, step.payload)
            return Pending(step.step_id, open=StepStatus.STARTED in statuses)
        return admitted

    def withdraw(self, admitted: Admitted) -> None:
        """Forget an attempt of which nothing was written."""
        step = self._steps.get(admitted.step_id)
        if step is not None:
            step.attempts.pop(admitted.attempt, None)
            step.places.pop(admitted.attempt, None)
            if not step.attempts and not step.requested:
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
            if not step.present or fact.attempt in step.places:  # another send of what is known to stand adds nothing
                known = step.places.get(fact.attempt)
                first = offset if known is None else min(known.offset, offset)  # a record may come again, far behind
                step.places[fact.attempt] = Place(fact.epoch, first)
            if step.kept:
                step.uses = fact.uses

    def name_savepoints(self, standing: Standing) -> tuple[str, ...]:
        """Return the names of the savepoints that may be undone to, oldest first."""
        return self._savepoints.names(standing.turns)

    def meet_savepoint(self, name: str, standing: Standing) -> bool:
        """Count a savepoint; return whether an earlier instance took it at this place."""
        return self._savepoints.meet(name, standing.turns, self._counts)

    def keep_savepoint(self, name: str, place: Place) -> None:
        """A savepoint stands on the ledger. What had ended before it was owed before it, and so stands before it: an
        intent, too, of which no acknowledgement came."""
        for step in self._steps.values():
            step.ended_before(place.offset)
        self._savepoints.kept(name, place, self._counts)

    def go_on(self, standing: Standing) -> None:
        """Part of what was done was undone: count on from the savepoint."""
        counts = self._savepoints.undone_to(standing.turns, standing.workflow_offset, standing.savepoint)
        if counts is not None:
            self._counts = counts

    def note(self, fact: StepEvent) -> None:
        """Take an outcome of one of our own attempts into account."""
        self._join(fact, here=True, kept=False)
        step = self._steps.get(fact.step_id)
        if step is not None and not step.kept and not step.open() and not step.unsent():
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

    def _named(self, call: Admit) -> tuple[str, KnownStep | None]:
        """Return the id of a call, and its step if it is met again."""
        asked = self._asked_for(call) if call.approval else None
        if call.call_id is not None:
            identity, step = call.call_id, self._met(call.call_id, call.standing)
        elif call.tool_call_id is not None:
            identity, step = self._planned(call, call.tool_call_id, asked)
        elif asked is not None and asked.here:  # this instance has counted it
            identity, step = asked.call_id, asked
        else:
            identity = self._counted(call.canonical)
            step = self._met(identity, call.standing)
        if call.repeatable and step is not None and not step.unsent():
            step = None
        return identity, step

    def _planned(self, call: Admit, tool_call_id: str, asked: KnownStep | None) -> tuple[str, KnownStep | None]:
        """A model's call: by its id, if that names an equal call, else by what it asks."""
        identity, step = tool_call_id, self._met(tool_call_id, call.standing)
        if step is not None and step.call_digest != call.call_digest:  # ids are used again, by some for each message
            identity = f"{tool_call_id}/{call.call_digest}"
            step = self._met(identity, call.standing)
        if step is None and not call.repeatable and call.contract.duplicates != ALLOW:
            step = self._equal(call)
        return identity, step or asked

    def _equal(self, call: Admit) -> KnownStep | None:
        """Return the newest equal call that has an effect that stands; if none has, the newest that may have one.

        Of two that were begun side by side one may be known to be done and the other not: to make that sure would be a
        second effect.
        """
        maybe: KnownStep | None = None
        for step in reversed(self._steps.values()):
            if not step.kept or step.call_digest != call.call_digest or step.condemned(call.standing.turns):
                continue
            if not step.may_stand() or self._taken_back(step, call.contract):
                continue
            if step.present:
                return step
            maybe = maybe or step
        return maybe

    def _taken_back(self, step: KnownStep, contract: Contract) -> bool:
        """Whether the agent has undone `step` by itself, with the tool that does the same as its undo."""
        tool = contract.undo.agent_tool if contract.undo is not None else ""
        if not tool or not step.present:
            return False
        made = set(step.makes)
        return any(
            s.tool_name == tool and s.present and s.sent_at() > step.sent_at() and not made.isdisjoint(s.uses)
            for s in self._steps.values()
        )

    def _asked_for(self, call: Admit) -> KnownStep | None:
        """Return an equal call of which a person was asked and that is neither made nor under way."""
        for step in self._steps.values():
            if step.call_digest == call.call_digest and step.unsent() and step.epoch == call.standing.epoch:
                return step
        return None

    def _met(self, identity: str, standing: Standing) -> KnownStep | None:
        step = self._steps.get(self._newest.get(identity, ""))
        if step is not None and (not step.may_stand() or step.condemned(standing.turns)):
            # Another process may have given up what this one had done, or have made it anew behind what is taken back.
            others = (s for s in reversed(self._steps.values()) if s.call_id == identity and s.may_stand())
            step = next((s for s in others if not s.condemned(standing.turns)), step)
        if step is None or step.condemned(standing.turns):
            return None
        return None if step.unsent() and step.epoch != standing.epoch else step  # what was asked before is void

    def _join(self, fact: StepEvent, *, here: bool, kept: bool) -> None:
        step = self._steps.get(fact.step_id)
        if step is None:
            step = KnownStep(fact.step_id, fact.call_id, fact.epoch, fact.timestamp_ms, here, kept)
            self._steps[fact.step_id] = step
            if fact.call_id:
                self._newest[fact.call_id] = fact.step_id
        before = step.attempts.get(fact.attempt)
        step.tool_name = step.tool_name or fact.tool_name
        step.call_digest = step.call_digest or fact.call_digest
        step.requested = step.requested or fact.status is StepStatus.REQUESTED
        if fact.status is StepStatus.SUCCEEDED:
            step.present = True
            if step.kept:
                step.makes = fact.makes
            whole = fact.payload_digest is None and (step.kept or kept)
            step.payload = fact.output_payload if whole else None
            step.captured = None
        if fact.status is StepStatus.STARTED:
            step.first_wall_ms = min(step.first_wall_ms, fact.timestamp_ms or step.first_wall_ms)
            if step.captured is None:
                step.captured = fact.captured
            step.attempts.setdefault(fact.attempt, fact.status)
        elif fact.status in _ENDS and before not in WITHOUT_EFFECT and before is not StepStatus.SUCCEEDED:
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


def _is_first(step: KnownStep, contract: Contract) -> bool:
    """Whether the next attempt of a step is the first of which anything can be known: nothing was sent, and no
    before-image was taken."""
    return step.unsent() and not (contract.captures and step.attempts)
