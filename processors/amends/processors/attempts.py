"""Facts of a step: the table of an attempt, and evidence.

| attempt      | STARTED | UNKNOWN, Timeout | SUCCEEDED | FAILED, NOT_EXECUTED | HEARTBEAT     |
|--------------|---------|------------------|-----------|----------------------|---------------|
| none         | open    | unknown          | succeeded | as said              |               |
| open         |         | unknown          | succeeded | as said              | lease renewed |
| unknown      |         |                  | succeeded | as said              |               |
| succeeded    |         |                  |           | incident, stays      |               |
| failed, not… |         |                  | incident, succeeded | (first wins) |             |

An attempt never goes back. Of two different ends, SUCCEEDED counts and a person is told. One that the remote took, to
do it later, is unknown and *accepted*: what it answered is kept, for the probe is asked with it.
"""

from __future__ import annotations

from amends.processors.state import (
    DEFAULT_STEP_LEASE_MS,
    NOWHERE,
    Attempt,
    AttemptState,
    DataFlow,
    Standing,
    Step,
    Trouble,
    UndoState,
    in_words,
    open_trouble,
    replace,
    standing,
)
from amends.schemas.contract import Contract, Idempotency
from amends.schemas.data_flow import IDS_MAX, RULES, bounded
from amends.schemas.facts import ACCEPTED, Decision, Party, Resolution, StepEvent, StepStatus

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
    step = _with_description(step, fact, offset, at_ms)
    index, attempt = _find(step, fact.attempt)
    match fact.status:
        case StepStatus.REQUESTED:
            return step
        case StepStatus.STARTED:
            started = _started(attempt, fact, contract, offset, at_ms)
            if attempt is None and _is_known(step, contract):
                started = replace(started, repeats=True)
        case StepStatus.HEARTBEAT:
            if attempt is None or attempt.state is not AttemptState.OPEN:
                return step
            started = replace(attempt, armed_offset=offset, armed_at_ms=at_ms)
        case _:
            return _ended(step, index, attempt, fact, offset, at_ms, repeats=_is_known(step, contract))
    step = _put(step, index, started)
    if attempt is None:  # a new send: what probes said before says nothing about it
        resent = fact.writer is Party.COMPENSATOR
        step = replace(step, probes=0, resends=step.resends + 1 if resent else step.resends)
    return step


def time_out(step: Step, name: str, offset: int, at_ms: int) -> Step:
    """Return the step after the lease of its open attempt `name` ran out."""
    index, attempt = _find(step, name)
    if attempt is None or attempt.state is not AttemptState.OPEN:
        return step
    return _put(step, index, replace(attempt, state=AttemptState.UNKNOWN, ended_offset=offset, ended_at_ms=at_ms))


def fold_evidence(step: Step, fact: Resolution, offset: int, at_ms: int) -> Step:
    """Return the step after evidence of a probe or a person. It speaks only for the attempts it names."""
    if fact.probe_number is not None and fact.probe_number >= step.probes:
        step = replace(step, probes=fact.probe_number + 1, probed_at_ms=at_ms)
    named = set(fact.attempts)
    if fact.decision is Decision.PRESENT:
        step = replace(
            step,
            present=True,
            outcome_offset=offset if fact.output_payload is not None else step.outcome_offset,
            undo_arguments=step.undo_arguments if _is_commanded(step) else fact.undo_arguments or step.undo_arguments,
        )
        step = _with_makes(step, fact)
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


def _with_description(step: Step, fact: StepEvent, offset: int, at_ms: int) -> Step:
    """Fill in what the step's STARTED says, and keep where its output and undo arguments stand."""
    known = any(a.started_offset != NOWHERE for a in step.attempts)
    if fact.status is StepStatus.STARTED and not known:
        step = replace(
            step,
            first_offset=offset,
            first_at_ms=at_ms,
            epoch=fact.epoch,
            tool_name=in_words(fact.tool_name),
            tool_version=in_words(fact.tool_version),
            call_id=in_words(fact.call_id),
            effect=fact.side_effect_classification,
            flow=_flow(fact),
            call_digest=fact.call_digest[:DIGEST_KEPT],
        )
    if fact.status is StepStatus.SUCCEEDED and (fact.output_payload is not None or fact.undo_arguments is not None):
        step = replace(step, outcome_offset=offset)
    if fact.status is StepStatus.SUCCEEDED:
        step = _with_makes(step, fact)
    elif _is_accepted(fact):
        step = _with_makes(step, fact)
        if step.outcome_offset == NOWHERE and fact.output_payload is not None:
            step = replace(step, outcome_offset=offset)
    if fact.undo_arguments is not None and (step.undo_arguments is None or fact.status is StepStatus.SUCCEEDED):
        step = replace(step, undo_arguments=fact.undo_arguments)
    return step


def _is_accepted(fact: StepEvent) -> bool:
    return fact.status is StepStatus.UNKNOWN and fact.error is not None and fact.error.type == ACCEPTED


def _flow(fact: StepEvent) -> DataFlow | None:
    """What the STARTED names, if it was looked for by the rules that we know."""
    if fact.data_flow != RULES or max(len(fact.uses), len(fact.touches), len(fact.after)) > IDS_MAX:
        return None
    return DataFlow(fact.uses, fact.touches, None, fact.after)


def _with_makes(step: Step, fact: StepEvent | Resolution) -> Step:
    if step.flow is None or fact.data_flow != RULES or len(fact.makes) > IDS_MAX:
        return step
    made = step.flow.makes
    makes = fact.makes if made is None else bounded((*made, *fact.makes))
    return replace(step, flow=step.flow._replace(makes=makes))


def _started(attempt: Attempt | None, fact: StepEvent, contract: Contract | None, offset: int, at_ms: int) -> Attempt:
    lease_ms = fact.lease_ms or (contract.call.lease_ms if contract is not None else DEFAULT_STEP_LEASE_MS)
    if attempt is None:
        return Attempt(fact.attempt, AttemptState.OPEN, fact.epoch, offset, offset, at_ms, lease_ms)
    if attempt.started_offset != NOWHERE:  # a repeat
        return attempt
    return replace(attempt, started_offset=offset, epoch=min(attempt.epoch, fact.epoch))


def _is_known(step: Step, contract: Contract | None) -> bool:
    """Whether the call is known to have happened, and its remote takes another send of it for the same."""
    if contract is None or contract.call.idempotency is Idempotency.NEITHER:
        return False
    return bool(step.attempts) and standing(step) is Standing.PRESENT


def _ended(
    step: Step,
    index: int | None,
    attempt: Attempt | None,
    fact: StepEvent,
    offset: int,
    at_ms: int,
    *,
    repeats: bool,
) -> Step:
    after, contradiction = _TABLE[attempt.state if attempt else None, _END[fact.status]]
    if attempt is None:
        ended = Attempt(fact.attempt, after, fact.epoch, ended_offset=offset, ended_at_ms=at_ms, repeats=repeats)
    elif attempt.state is AttemptState.OPEN:
        ended = replace(attempt, state=after, ended_offset=offset, ended_at_ms=at_ms)
    elif attempt.state is after:  # a repeat changes nothing; neither does an end that contradicts what counts
        ended = attempt
    elif after is AttemptState.SUCCEEDED and step.undo is not None and step.undo.state is UndoState.NOTHING:
        # The undo found nothing, and then the effect came to light: the close does not speak for it.
        ended = replace(attempt, state=after, ended_offset=offset, ended_at_ms=at_ms)
    else:
        ended = replace(attempt, state=after)
    if _is_accepted(fact) and ended.state is AttemptState.UNKNOWN:
        ended = replace(ended, accepted=True)
    step = _put(step, index, ended)
    given_up = ended.state is AttemptState.NOT_EXECUTED and ended is not attempt
    if fact.writer is Party.COMPENSATOR and attempt is not None and given_up:
        step = replace(step, resends=max(0, step.resends - 1))  # like RELEASED: nothing was done, nothing is spent
    if contradiction:
        reason = f"attempt {fact.attempt} ended twice: {attempt.state if attempt else ''} and {fact.status.value}"
        step = with_trouble(step, "contradiction", reason, offset, at_ms)
    return step


def _find(step: Step, name: str) -> tuple[int | None, Attempt | None]:
    for index, attempt in enumerate(step.attempts):
        if attempt.name == name:
            return index, attempt
    return None, None


def _put(step: Step, index: int | None, attempt: Attempt) -> Step:
    if index is None:
        return replace(step, attempts=(*step.attempts, attempt))
    if step.attempts[index] == attempt:
        return step
    return replace(step, attempts=(*step.attempts[:index], attempt, *step.attempts[index + 1 :]))
