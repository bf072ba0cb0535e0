"""Facts of a step: the table of an attempt, and evidence.

| attempt      | STARTED | UNKNOWN, Timeout | SUCCEEDED | FAILED, NOT_EXECUTED | HEARTBEAT     |
|--------------|---------|------------------|-----------|----------------------|---------------|
| none         | open    | unknown          | succeeded | as said              |               |
| open         |         | unknown          | succeeded | as said              | lease renewed |
| unknown      |         |                  | succeeded | as said              |               |
| succeeded    |         |                  |           | incident, stays      |               |
| failed, not… |         |                  | incident, succeeded | (first wins) |             |

An attempt never goes back. Of two different ends, SUCCEEDED counts and a person is told. One that the remote took, to
do it later, is unknown and *accepted*: what it answered is kept, for the probe is asked with it. So is one whose answer
was lost, at a remote that does later what it takes, unless that takes a key.
"""

from __future__ import annotations

from typing import Any, Final

from amends.processors.state import (
    ATTEMPT_OPEN,
    ATTEMPT_SUCCEEDED,
    ATTEMPT_UNKNOWN,
    BLANK_ATTEMPT,
    CLOSED_UNDO,
    DEFAULT_STEP_LEASE_MS,
    NOWHERE,
    PRESENT,
    Attempt,
    AttemptState,
    DataFlow,
    Step,
    Trouble,
    Undo,
    UndoState,
    in_words,
    is_covered,
    open_trouble,
    replace,
    standing,
)
from amends.schemas.contract import Contract, Idempotency
from amends.schemas.data_flow import IDS_MAX, RULES, bounded
from amends.schemas.facts import ACCEPTED, Decision, Party, Resolution, StepEvent, StepStatus

_STARTED: Final = StepStatus.STARTED
_SUCCEEDED: Final = StepStatus.SUCCEEDED
_NOT_EXECUTED: Final = AttemptState.NOT_EXECUTED
_COMPENSATOR: Final = Party.COMPENSATOR

DIGEST_KEPT = 16
"""Digits of a call's digest that are kept: calls of one workflow are told apart by it, nothing else."""

_END: dict[StepStatus, AttemptState] = {
    StepStatus.UNKNOWN: AttemptState.UNKNOWN,
    StepStatus.SUCCEEDED: AttemptState.SUCCEEDED,
    StepStatus.FAILED: AttemptState.FAILED,
    StepStatus.NOT_EXECUTED: AttemptState.NOT_EXECUTED,
}

# (state, end that is told) -> (state after, is it a contradiction)
_TABLE: dict[tuple[AttemptState | None, AttemptState], tuple[AttemptState, bool]] = {
    **{(None, end): (end, False) for end in _END.values()},
    **{(AttemptState.OPEN, end): (end, False) for end in _END.values()},
    **{(AttemptState.UNKNOWN, end): (end, False) for end in _END.values()},
    **{(AttemptState.SUCCEEDED, end): (AttemptState.SUCCEEDED, False) for end in _END.values()},
    (AttemptState.SUCCEEDED, AttemptState.FAILED): (AttemptState.SUCCEEDED, True),
    (AttemptState.SUCCEEDED, AttemptState.NOT_EXECUTED): (AttemptState.SUCCEEDED, True),
    **{
        (state, end): (state, False)
        for state in (AttemptState.FAILED, AttemptState.NOT_EXECUTED)
        for end in (AttemptState.UNKNOWN, AttemptState.FAILED, AttemptState.NOT_EXECUTED)
    },
    (AttemptState.FAILED, AttemptState.SUCCEEDED): (AttemptState.SUCCEEDED, True),
    (AttemptState.NOT_EXECUTED, AttemptState.SUCCEEDED): (AttemptState.SUCCEEDED, True),
}


def fold_step_event(step: Step, fact: StepEvent, contract: Contract | None, offset: int, at_ms: int) -> Step:
    """Return the step after `fact`."""
    status, index, attempt = fact.status, *_find(step, fact.attempt)
    changes = _description(step, fact, offset, at_ms)  # put in together with the attempt: a copy costs what a fact does
    if status is _STARTED:
        started = _started(attempt, fact, contract, offset, at_ms)
        if attempt is None:
            if _is_known(step, contract):
                started = replace(started, repeats=True)
            changes["probes"] = 0  # a new send: what probes said before says nothing about it
            if fact.writer is _COMPENSATOR:
                changes["resends"] = step.resends + 1
        if step.flow is not None and "flow" not in changes and fact.writer is not _COMPENSATOR:
            flow = _with_named(step.flow, _flow(fact))
            if flow != step.flow:
                changes["flow"] = flow
        return _put(step, index, started, changes)
    if status is StepStatus.REQUESTED:
        return _put(step, index, attempt, changes)
    if status is StepStatus.HEARTBEAT:
        if attempt is not None and attempt.state is ATTEMPT_OPEN:
            attempt = replace(attempt, armed_offset=offset, armed_at_ms=at_ms)
        return _put(step, index, attempt, changes)
    return _ended(step, index, attempt, fact, contract, offset, at_ms, changes)


def time_out(step: Step, name: str, contract: Contract | None, offset: int, at_ms: int) -> Step:
    """Return the step after the lease of its open attempt `name` ran out."""
    index, attempt = _find(step, name)
    if attempt is None or attempt.state is not ATTEMPT_OPEN:
        return step
    ended = replace(attempt, state=AttemptState.UNKNOWN, ended_offset=offset, ended_at_ms=at_ms)
    ended = _with_effect(ended, contract)
    return _put(step, index, replace(ended, accepted=True) if _may_be_taken(contract) else ended)


def fold_evidence(step: Step, fact: Resolution, offset: int, at_ms: int) -> Step:
    """Return the step after evidence of a probe or a person. It speaks only for the attempts it names."""
    if fact.probe_number is not None and fact.probe_number >= step.probes:
        step = replace(step, probes=fact.probe_number + 1, probed_at_ms=at_ms)
    named = set(fact.attempts)
    if fact.decision is Decision.PRESENT:
        step = replace(
            step,
            present=True,
            attempts=tuple(_seen(a, step.undo) if a.name in named else a for a in step.attempts),
            outcome_offset=offset if fact.output_payload is not None else step.outcome_offset,
            undo_arguments=step.undo_arguments if _is_commanded(step) else fact.undo_arguments or step.undo_arguments,
        )
        step = replace(step, flow=_with_makes(step.flow, fact))
    elif fact.decision in (Decision.ABSENT, Decision.MARK_ABSENT):
        # A callback may come before the call has ended; whose word it is that it did not happen counts when it does.
        spoken_of = (AttemptState.UNKNOWN,) + ((AttemptState.OPEN,) if fact.decision is Decision.ABSENT else ())
        attempts = tuple(
            replace(a, absent=True) if a.name in named and a.state in spoken_of else a for a in step.attempts
        )
        contradicted = any(a.name in named and a.state is AttemptState.SUCCEEDED for a in step.attempts)
        step = replace(step, attempts=attempts)
        if contradicted:
            step = with_trouble(
                step, "contradiction", f"{fact.by} says absent of a call that reported success", offset, at_ms
            )
    return step


def _seen(attempt: Attempt, undo: Undo | None) -> Attempt:
    """Return an attempt that evidence says is present: taken no longer, but there. Behind a closed undo it counts by
    itself, for what was present before has been undone."""
    if attempt.accepted:
        attempt = replace(attempt, accepted=False)
    if undo is None or undo.state not in CLOSED_UNDO or is_covered(attempt, undo):
        return attempt
    return replace(attempt, state=AttemptState.SUCCEEDED) if attempt.state is AttemptState.UNKNOWN else attempt


def _is_commanded(step: Step) -> bool:
    """Whether an attempt of the undo may be under way: it keeps its arguments, for they go with its key."""
    undo = step.undo
    return step.undo_arguments is not None and undo is not None and undo.state in (UndoState.DUE, UndoState.OPEN)


def with_trouble(step: Step, kind: str, reason: str, offset: int, at_ms: int) -> Step:
    """Return the step with an open incident of `kind`; one that is open already stays as it is."""
    if open_trouble(step.troubles, kind) is not None:
        return step
    version = 1 + max((t.version for t in step.troubles if t.kind == kind), default=0)
    kept = tuple(t for t in step.troubles if t.kind != kind)
    return replace(step, troubles=(*kept, Trouble(kind, version, reason, offset, at_ms)))


def without_trouble(step: Step, kind: str, at_ms: int, by: str) -> Step:
    """Return the step with its incident of `kind` closed, if one is open."""
    if open_trouble(step.troubles, kind) is None:
        return step
    return replace(
        step,
        troubles=tuple(
            replace(t, closed_at_ms=at_ms, closed_by=by) if t.kind == kind and t.closed_at_ms is None else t
            for t in step.troubles
        ),
    )


def _description(step: Step, fact: StepEvent, offset: int, at_ms: int) -> dict[str, Any]:
    """Return the fields of the step that the fact changes beside its attempt: what its STARTED says, and where its
    output and undo arguments stand."""
    changes: dict[str, Any] = {}
    output, undo_arguments = fact.output_payload, fact.undo_arguments
    succeeded = fact.status is _SUCCEEDED
    if fact.status is _STARTED:
        if all(a.started_offset == NOWHERE for a in step.attempts):
            changes = {
                "first_offset": offset,
                "first_at_ms": at_ms,
                "epoch": fact.epoch,
                "tool_name": in_words(fact.tool_name),
                "tool_version": in_words(fact.tool_version),
                "call_id": in_words(fact.call_id),
                "effect": fact.side_effect_classification,
                "flow": _flow(fact),
                "call_digest": fact.call_digest[:DIGEST_KEPT],
            }
    elif succeeded or _is_accepted(fact):
        if succeeded:
            stands_here = output is not None or undo_arguments is not None
        else:
            stands_here = output is not None and step.outcome_offset == NOWHERE
        if stands_here:
            changes["outcome_offset"] = offset
        flow = _with_makes(step.flow, fact)
        if flow is not step.flow:
            changes["flow"] = flow
    if undo_arguments is not None and (step.undo_arguments is None or succeeded):
        changes["undo_arguments"] = undo_arguments
    return changes


def _is_accepted(fact: StepEvent) -> bool:
    return fact.error is not None and fact.error.type == ACCEPTED and fact.status is StepStatus.UNKNOWN


def _may_be_taken(contract: Contract | None) -> bool:
    """Whether the remote may have said that it took a call that nobody heard the answer of, and do it later, as its
    contract says that it does. Not so where it takes a key: sent again, that brings the answer, and is one call."""
    return contract is not None and contract.accepted_when != "" and contract.call.idempotency is not Idempotency.KEY


def _flow(fact: StepEvent) -> DataFlow | None:
    """What the STARTED names, if it was looked for by the rules that we know."""
    if fact.data_flow != RULES or max(len(fact.uses), len(fact.touches), len(fact.after)) > IDS_MAX:
        return None
    return DataFlow(fact.uses, fact.touches, None, fact.after)


def _with_named(flow: DataFlow, more: DataFlow | None) -> DataFlow | None:
    """What all sends of a step name: an agent that resumes may know more, and whichever send took effect was built on
    what it named. None: nobody looked."""
    if more is None or (more.uses, more.touches, more.after) == (flow.uses, flow.touches, flow.after):
        return flow if more is not None else None
    after = tuple(dict.fromkeys((*flow.after, *more.after)))
    if len(after) > IDS_MAX:
        return None
    uses, touches = bounded((*flow.uses, *more.uses)), bounded((*flow.touches, *more.touches))
    return DataFlow(uses, touches, flow.makes, after)


def _with_makes(flow: DataFlow | None, fact: StepEvent | Resolution) -> DataFlow | None:
    if flow is None or fact.data_flow != RULES or len(fact.makes) > IDS_MAX:
        return flow
    made = flow.makes
    return flow._replace(makes=fact.makes if made is None else bounded((*made, *fact.makes)))


def _started(attempt: Attempt | None, fact: StepEvent, contract: Contract | None, offset: int, at_ms: int) -> Attempt:
    lease_ms = fact.lease_ms or (contract.call.lease_ms if contract is not None else DEFAULT_STEP_LEASE_MS)
    if attempt is None:
        return replace(
            BLANK_ATTEMPT,
            name=fact.attempt,
            epoch=fact.epoch,
            started_offset=offset,
            armed_offset=offset,
            armed_at_ms=at_ms,
            lease_ms=lease_ms,
        )
    if attempt.started_offset != NOWHERE:  # a repeat
        return attempt
    return replace(attempt, started_offset=offset, epoch=min(attempt.epoch, fact.epoch))


def _is_known(step: Step, contract: Contract | None) -> bool:
    """Whether the call is known to have happened, and another send of it has no effect of its own: its remote takes it
    for the same, or it was approved, and of an approved call one attempt is accepted."""
    if contract is None or (contract.call.idempotency is Idempotency.NEITHER and contract.approval_ms is None):
        return False
    return bool(step.attempts) and standing(step) is PRESENT


def _ended(
    step: Step,
    index: int | None,
    attempt: Attempt | None,
    fact: StepEvent,
    contract: Contract | None,
    offset: int,
    at_ms: int,
    changes: dict[str, Any],
) -> Step:
    after, contradiction = _TABLE[attempt.state if attempt else None, _END[fact.status]]
    anew = attempt is None or attempt.state is ATTEMPT_OPEN
    if attempt is None:
        repeats = _is_known(step, contract)
        ended = Attempt(fact.attempt, after, fact.epoch, ended_offset=offset, ended_at_ms=at_ms, repeats=repeats)
    elif attempt.state is ATTEMPT_OPEN:
        ended = replace(attempt, state=after, ended_offset=offset, ended_at_ms=at_ms)
    elif attempt.state is after:  # a repeat changes nothing; neither does an end that contradicts what counts
        ended = attempt
    elif after is ATTEMPT_SUCCEEDED and step.undo is not None and step.undo.state is UndoState.NOTHING:
        # The undo found nothing, and then the effect came to light: the close does not speak for it.
        ended = replace(attempt, state=after, ended_offset=offset, ended_at_ms=at_ms)
    else:
        ended = replace(attempt, state=after)
    if (
        ended.state is ATTEMPT_UNKNOWN
        and not ended.accepted
        and (_is_accepted(fact) or (anew and _may_be_taken(contract)))
    ):
        ended = replace(ended, accepted=True)
    ended = _with_effect(ended, contract)
    given_up = ended.state is _NOT_EXECUTED and ended is not attempt
    if given_up and fact.writer is _COMPENSATOR and attempt is not None:
        changes["resends"] = max(0, step.resends - 1)  # like RELEASED: nothing was done, nothing is spent
    step = _put(step, index, ended, changes)
    if contradiction:
        reason = f"attempt {fact.attempt} ended twice: {attempt.state if attempt else ''} and {fact.status.value}"
        step = with_trouble(step, "contradiction", reason, offset, at_ms)
    return step


def _with_effect(ended: Attempt, contract: Contract | None) -> Attempt:
    """Return an attempt that ended: one that was not accepted, and was sent all the same, has an effect of its own."""
    sent = ended.repeats and ended.state in (ATTEMPT_SUCCEEDED, ATTEMPT_UNKNOWN)
    if not sent or contract is None or contract.call.idempotency is not Idempotency.NEITHER:
        return ended
    return replace(ended, repeats=False)


def _find(step: Step, name: str) -> tuple[int | None, Attempt | None]:
    for index, attempt in enumerate(step.attempts):
        if attempt.name == name:
            return index, attempt
    return None, None


def _put(step: Step, index: int | None, attempt: Attempt | None, changes: dict[str, Any] | None = None) -> Step:
    """Return the step with an attempt of it (at `index`, None: a new one) and other fields replaced; the same object
    where nothing changes. An attempt that changed is another object."""
    before = step.attempts
    changes = {} if changes is None else changes
    if attempt is not None:
        if index is None:
            changes["attempts"] = (*before, attempt)
        elif before[index] is not attempt:
            changes["attempts"] = (*before[:index], attempt, *before[index + 1 :])
    return replace(step, **changes) if changes else step
