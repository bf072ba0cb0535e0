"""One tool call (protocol, "Forward" 2 to 5), as a pure generator of effects.

    AwaitStanding -> AwaitOwed -> ReadClock -> Admit -> (ReadImage -> ReadClock) -> WriteFact(STARTED)
        -> LookAtEcho -> ReadClock            the fence: last before the effect
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
from dataclasses import dataclass, field
from typing import Any

from amends.producers import refusals
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
    LookAtEcho,
    Pending,
    QueueFact,
    Raised,
    ReadClock,
    Recorded,
    Result,
    Returned,
    Standing,
    Unwritten,
    Write,
    WriteFact,
)
from amends.producers.images import before_image, with_after_image
from amends.producers.outcome import Call, Limits, ended, not_executed, shrunk, undo_arguments_known_before
from amends.schemas.commands import Phase
from amends.schemas.data_flow import RULES, call_digest, canonical_call, ids_in
from amends.schemas.facts import StepEvent, StepStatus
from amends.schemas.keys import forward_key
from amends.schemas.payload import decode_payload, encode_payload
from amends.tools.errors import AmendsError
from amends.tools.touches import touches_of


@dataclass(frozen=True, slots=True)
class ScopeTerms:
    """What all calls of a workflow share. Waits are bounds, in milliseconds."""

    workflow_id: str
    agent_id: str = ""
    lease_ms: int = 30_000
    standing_within_ms: int = 10_000
    owed_within_ms: int = 10_000
    confirm_within_ms: int = 10_000
    limits: Limits = field(default_factory=Limits)
    traceparent: str | None = None
    instance: str = ""  # of the process: only the one that runs the workflow claims its success or its failure


def call_flow(call: Call, terms: ScopeTerms) -> CallFlow:
    """Make one call.

    Returns the Result of the body, or the recorded one of an earlier instance.

    Raises (thrown out of the generator): LedgerUnavailable, LedgerUncertain, WorkflowTurned, AlreadyRunning,
        OutcomeUnknown, Rejected. In every one of these cases the body was not run.
    """
    subject = f"{call.contract.tool_name} in workflow {terms.workflow_id!r}"
    payload = _recordable(call, terms, subject)
    standing = yield from _runs(terms)
    if not (yield AwaitOwed()):
        raise refusals.still_owed(terms.workflow_id, terms.owed_within_ms)
    asked: Instant = yield ReadClock()
    canonical = canonical_call(call.contract.tool_name, call.arguments)
    admission: Admission = yield _admit(call, canonical, standing)
    if not isinstance(admission, Admitted):
        return _answered(admission, subject, terms, standing)
    captured = yield from before_image(call, admission, terms.limits, subject)
    if captured is not None:
        asked = yield ReadClock()  # the half lease begins before STARTED is sent, and the read is behind us
    started = _started(call, canonical, terms, standing, admission, payload, asked.wall_ms, captured)
    yield from _cleared(started, asked, terms, subject)
    result: Result = yield Invoke(
        forward_key(started.step_id), started.step_id, started.attempt, started.lease_ms or terms.lease_ms
    )
    yield from _told(started, call, result, terms, asked)
    return result


def observed_flow(call: Call, terms: ScopeTerms, standing: Standing) -> CallFlow:
    """Make one call and record it. Refuses nothing and waits for nothing but the body."""
    payload = encode_payload(_named(call))
    asked: Instant = yield ReadClock()
    canonical = canonical_call(call.contract.tool_name, call.arguments)
    admission: Admission = yield _admit(call, canonical, standing, repeatable=True)
    assert isinstance(admission, Admitted)  # repeatable: every call is a step of its own
    kept = payload if len(payload) <= terms.limits.input_bytes_max else None
    started = _started(call, canonical, terms, standing, admission, kept, asked.wall_ms)
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


def _admit(call: Call, canonical: str, standing: Standing, *, repeatable: bool = False) -> Admit:
    declared = call.contract.repeatable if call.repeatable is None else call.repeatable
    again = repeatable or declared
    return Admit(call.contract, canonical, call.call_id, again, standing, call.after)


def _answered(admission: Recorded | Pending | Closed, subject: str, terms: ScopeTerms, standing: Standing) -> Result:
    if isinstance(admission, Recorded):
        if admission.payload is None:
            raise refusals.result_not_kept(subject, admission.step_id)
        return Returned(decode_payload(admission.payload))
    if isinstance(admission, Closed):
        raise refusals.finished(terms.workflow_id, standing)
    raise refusals.pending(subject, admission)


def _started(
    call: Call,
    canonical: str,
    terms: ScopeTerms,
    standing: Standing,
    admission: Admitted,
    payload: bytes | None,
    wall_ms: int,
    captured: bytes | None = None,
) -> StepEvent:
    contract = call.contract
    return StepEvent(
        workflow_id=terms.workflow_id,
        step_id=admission.step_id,
        attempt=admission.attempt,
        epoch=standing.epoch,
        status=StepStatus.STARTED,
        tool_name=contract.tool_name,
        agent_id=terms.agent_id,
        tool_version=contract.tool_version,
        workflow_offset=standing.workflow_offset,
        side_effect_classification=contract.effect,
        call_id=admission.call_id,
        input_payload=payload,
        contract=call.contract_bytes,
        undo_arguments=undo_arguments_known_before(call, captured),
        captured=captured,
        after=admission.after,
        lease_ms=contract.call.lease_ms if call.lease_ms is None else call.lease_ms,
        timestamp_ms=wall_ms,
        traceparent=terms.traceparent,
        call_digest=call_digest(canonical),
        data_flow=RULES,
        uses=ids_in(call.arguments),
        touches=touches_of(contract, call.arguments),
    )


def _cleared(started: StepEvent, asked: Instant, terms: ScopeTerms, subject: str) -> Generator[Effect, Any, None]:
    try:
        write: Write = yield WriteFact(started)
        if not isinstance(write, Acknowledged):
            yield QueueFact(not_executed(started, write.reason, asked.wall_ms))
            if isinstance(write, Unwritten) and write.too_large:
                raise refusals.record_too_large(subject, write)
            raise refusals.not_written(subject, write)
        yield from _fenced(started, asked, terms, subject)
    except (GeneratorExit, AmendsError):  # dropped, so that nothing more can be yielded; or said already
        raise
    except BaseException as interruption:
        reason = f"interrupted before the call: {type(interruption).__name__}"
        yield QueueFact(not_executed(started, reason, asked.wall_ms))
        raise


def _fenced(started: StepEvent, asked: Instant, terms: ScopeTerms, subject: str) -> Generator[Effect, Any, None]:
    echo: Standing | None = yield LookAtEcho()
    now: Instant = yield ReadClock()
    lease_ms = min(started.lease_ms or terms.lease_ms, terms.lease_ms)
    took_ms = now.elapsed_ms - asked.elapsed_ms
    if echo is not None and (echo.epoch != started.epoch or echo.phase is not Phase.RUNNING):
        yield QueueFact(not_executed(started, f"the workflow is {echo.phase}, epoch {echo.epoch}", now.wall_ms))
        if echo.epoch == started.epoch and echo.phase not in refusals.TURNED:
            raise refusals.finished(terms.workflow_id, echo)
        raise refusals.turned(terms.workflow_id, echo, f"{started.tool_name} was not called.")
    if took_ms * 2 >= lease_ms:
        yield QueueFact(not_executed(started, f"{took_ms} ms of a lease of {lease_ms} ms had passed", now.wall_ms))
        raise refusals.slept(subject, took_ms, lease_ms)


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
