"""One tool call (protocol, "Forward" 2 to 5), as a pure generator of effects.

    AwaitStanding -> AwaitOwed -> ReadClock -> Admit
        -> (WriteFact(REQUESTED) -> AwaitApproval)              `approving`
        -> (ReadImage) -> WriteFact(STARTED)
        -> (AwaitFold) -> (ReadOthers) -> LookAtEcho -> ReadClock   `fencing`: last before the effect
        -> Invoke(key)
        -> (ReadImage) -> WriteFact(SUCCEEDED | FAILED | UNKNOWN)

- No acknowledgement of STARTED, no call. NOT_EXECUTED is queued; the workflow's calls and its claim of success wait
  until it is written, or a later reader of the intent would do what the agent was told was not done.
- The fence is closed when the echo shows another epoch or an end, or when half a lease has passed since before STARTED
  was sent: a process that slept must not call behind the back of a fold that has given it up (A1).
- The result or exception of the body passes through untouched, whatever becomes of its outcome on the ledger: raising
  there would make the agent do it again. An outcome that is not acknowledged is owed, and further calls wait for it.
- A flow that is interrupted (cancelled, Ctrl-C) writes what it knows in the background and waits for nothing.

`observed_flow` is the same call under `AMENDS_MODE=observe`: everything is queued, nothing is waited for or refused.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from amends.producers import refusals
from amends.producers.approving import approved, check_accepted, is_taken
from amends.producers.effects import (
    Acknowledged,
    Admission,
    Admit,
    Admitted,
    AwaitOwed,
    AwaitStanding,
    CallFlow,
    Closed,
    Effect,
    Instant,
    Invoke,
    NotMade,
    QueueFact,
    Raised,
    ReadClock,
    Recorded,
    Repeated,
    Result,
    Returned,
    Standing,
    Unwritten,
    Write,
    WriteFact,
)
from amends.producers.fencing import fenced, folded, yielded_to
from amends.producers.images import before_image, with_after_image
from amends.producers.intent import ScopeTerms as ScopeTerms
from amends.producers.intent import admit_of, request_of, started_of
from amends.producers.outcome import Call, ended, not_executed, shrunk, undo_arguments_known_before
from amends.schemas.data_flow import canonical_call
from amends.schemas.facts import FENCE, ApprovalTerms, StepEvent
from amends.schemas.keys import digest, forward_key
from amends.schemas.payload import decode_payload, encode_payload
from amends.tools.errors import AmendsError


def call_flow(call: Call, terms: ScopeTerms) -> CallFlow:
    """Make one call.

    Returns the Result of the body, or the recorded one of an earlier instance.

    Raises (thrown out of the generator): LedgerUnavailable, LedgerUncertain, WorkflowTurned, AlreadyRunning,
        OutcomeUnknown, NotApproved, Rejected. In every one of these cases the body was not run.
    """
    subject = f"{call.contract.tool_name} in workflow {terms.workflow_id!r}"
    payload = _recordable(call, terms, subject)
    standing = yield from _runs(terms)
    if not (yield AwaitOwed()):
        raise refusals.still_owed(terms.workflow_id, terms.owed_within_ms)
    asked: Instant = yield ReadClock()
    canonical = canonical_call(call.contract.tool_name, call.arguments)
    stands_ms = terms.approval_ms(call.contract)
    admit = admit_of(call, canonical, standing, approval=stands_ms is not None)
    admission: Admission = yield admit
    if not isinstance(admission, Admitted):
        return _answered(admission, subject, terms, standing)
    started = started_of(call, terms, standing, admit, admission, payload, asked.wall_ms)
    if stands_ms is not None:
        by = terms.requested_by or terms.agent_id
        started = replace(started, approval=ApprovalTerms(digest(canonical.encode()), by, stands_ms))
        if not admission.again:
            within_ms = terms.approval_within_ms if call.approval_within_ms is None else call.approval_within_ms
            made = yield from approved(request_of(started), admit, admission, standing, within_ms, subject)
            if made is not None:
                return _answered(made, subject, terms, standing)
        asked = yield ReadClock()
        started = replace(started, timestamp_ms=asked.wall_ms)
    captured = yield from before_image(call, admission, terms.limits, subject)
    if captured is not None:
        asked = yield ReadClock()  # the half lease begins before STARTED is sent, and the read is behind us
        undo_arguments = undo_arguments_known_before(call, captured)
        started = replace(started, captured=captured, undo_arguments=undo_arguments, timestamp_ms=asked.wall_ms)
    cleared = yield from _cleared(started, asked, admit, admission, terms, subject)
    if not isinstance(cleared, int):
        return _answered(cleared, subject, terms, standing)
    result: Result = yield Invoke(
        forward_key(started.step_id),
        started.step_id,
        started.attempt,
        started.lease_ms or terms.lease_ms,
        started.workflow_offset,
        cleared,
    )
    yield from _told(started, call, result, terms, asked)
    return result


def observed_flow(call: Call, terms: ScopeTerms, standing: Standing) -> CallFlow:
    """Make one call and record it. Refuses nothing and waits for nothing but the body."""
    payload = encode_payload(_named(call))
    asked: Instant = yield ReadClock()
    canonical = canonical_call(call.contract.tool_name, call.arguments)
    admit = admit_of(call, canonical, standing, repeatable=True)
    admission: Admission = yield admit
    assert isinstance(admission, Admitted)  # repeatable: every call is a step of its own
    kept = payload if len(payload) <= terms.limits.input_bytes_max else None
    started = started_of(call, terms, standing, admit, admission, kept, asked.wall_ms)
    started = replace(started, attributes={})  # nobody waits for a strict fence
    yield QueueFact(started)
    result: Result = yield Invoke(
        forward_key(started.step_id), started.step_id, started.attempt, started.lease_ms or terms.lease_ms
    )
    ended_at: Instant = yield ReadClock()
    yield QueueFact(ended(started, call, result, terms.limits, ended_at.wall_ms))
    return result


# --- the parts, in the order they run -------------------------------------------------------------------------------


def _named(call: Call) -> dict[str, Any]:
    return dict(call.arguments)


def _recordable(call: Call, terms: ScopeTerms, subject: str) -> bytes:
    payload = encode_payload(_named(call))
    if len(payload) > terms.limits.input_bytes_max:
        raise refusals.input_too_large(subject, len(payload), terms.limits.input_bytes_max)
    return payload


def _runs(terms: ScopeTerms) -> Generator[Effect, Any, Standing]:
    standing: Standing | None = yield AwaitStanding()
    if standing is None:
        raise refusals.no_processor(terms.workflow_id, terms.standing_within_ms)
    if standing.phase in refusals.TURNED:
        raise refusals.turned(terms.workflow_id, standing, "the tool was not called.")
    if not standing.known:
        raise refusals.epoch_ended(terms.workflow_id, standing, "the tool was not called.")
    return standing


def _answered(admission: NotMade, subject: str, terms: ScopeTerms, standing: Standing) -> Result:
    if isinstance(admission, Recorded):
        if admission.payload is None:
            raise refusals.result_not_kept(subject, admission.step_id)
        return Returned(decode_payload(admission.payload))
    if isinstance(admission, Repeated):
        raise refusals.already_done(subject, admission)
    if isinstance(admission, Closed):
        raise refusals.finished(terms.workflow_id, standing)
    raise refusals.pending(subject, admission)


def _cleared(
    started: StepEvent, asked: Instant, admit: Admit, admission: Admitted, terms: ScopeTerms, subject: str
) -> Generator[Effect, Any, NotMade | int]:
    """Write the intent and look whether the call may be made. Returns where the intent stands, or what is known of the
    call if another makes it."""
    lease_ms = min(started.lease_ms or terms.lease_ms, terms.lease_ms)
    try:
        write: Write = yield WriteFact(started)
        if not isinstance(write, Acknowledged):
            yield QueueFact(not_executed(started, write.reason, asked.wall_ms))
            if isinstance(write, Unwritten) and write.too_large:
                raise refusals.record_too_large(subject, write)
            raise refusals.not_written(subject, write)
        why, taken = "", False
        if FENCE in started.attributes:
            why, taken = yield from _accepted(started, asked, lease_ms, write.offset, subject)
        known = yield from yielded_to(started, admit, admission, write.offset, surely=taken)
        if known is None and why:
            yield QueueFact(not_executed(started, why, asked.wall_ms))
            raise refusals.approval_not_accepted(subject, started.step_id, why)
        if known is None:
            yield from fenced(started, asked, lease_ms, terms.workflow_id, subject)
        return write.offset if known is None else known
    except (GeneratorExit, AmendsError):  # dropped, so that nothing more can be yielded; or said already
        raise
    except BaseException as interruption:
        reason = f"interrupted before the call: {type(interruption).__name__}"
        yield QueueFact(not_executed(started, reason, asked.wall_ms))
        raise


def _accepted(
    started: StepEvent, asked: Instant, lease_ms: int, offset: int, subject: str
) -> Generator[Effect, Any, tuple[str, bool]]:
    """The strict fence. Returns why the approval of the call did not hold ("" if it did), and whether another process
    has used it. That the epoch is over is said by the last look, which sees what this one saw."""
    echo = yield from folded(started, asked, lease_ms, offset, subject)
    why = check_accepted(started, echo)
    if not why or echo.epoch != started.epoch:
        return "", False
    return why, is_taken(started, echo)


def _told(
    started: StepEvent, call: Call, result: Result, terms: ScopeTerms, asked: Instant
) -> Generator[Effect, Any, None]:
    wall_ms = asked.wall_ms
    try:
        now: Instant = yield ReadClock()
        wall_ms = now.wall_ms
        outcome = ended(started, call, result, terms.limits, wall_ms)
        if isinstance(result, Raised) and not isinstance(result.error, Exception):
            # Cancelled or being killed: whoever does that waits for us to go, and may do it again at each wait.
            yield QueueFact(outcome)
            return
        outcome = yield from with_after_image(outcome, call, terms.limits)
        write: Write = yield WriteFact(outcome)
        if isinstance(write, Unwritten) and write.too_large:
            outcome = shrunk(outcome)
            write = yield WriteFact(outcome)
    except GeneratorExit:
        raise
    except BaseException:
        yield QueueFact(ended(started, call, result, terms.limits, wall_ms))
        raise
    if not isinstance(write, Acknowledged):
        yield QueueFact(outcome)
