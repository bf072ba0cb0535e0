"""The rungs for a step of which nobody knows whether it happened: ask the world, or send it again. Pure.

A probe claims nothing and changes nothing; its answer is a Resolution that echoes the attempts it speaks for. A
re-send is an attempt of the step like any other: STARTED, read back, clock, call, outcome. Its attempt is this
delivery's own, so whatever stands in its way ends it as NOT_EXECUTED; the remote takes the key or is idempotent.
"""

from __future__ import annotations

from dataclasses import replace

from amends.compensators.effects import (
    AskProbe,
    CallAnswer,
    CallForward,
    Deferred,
    LedgerFact,
    NotBegun,
    NotDeployed,
    ProbeAnswer,
    ReadBack,
    ReadClock,
    Refused,
    Report,
    Steps,
    Succeeded,
    Uncertain,
    Unreadable,
    Unwritten,
    Write,
    Written,
    half_is_gone,
    is_forgotten,
    write_surely,
)
from amends.compensators.ownership import resend_is_void
from amends.schemas.commands import ProbeCommand, ResendCommand
from amends.schemas.data_flow import RULES, ids_recorded
from amends.schemas.facts import Failure, Party, Resolution, StepEvent, StepStatus


def decide_probe(command: ProbeCommand, by: str) -> Steps[Report]:
    """Ask the world whether the named attempts happened, and write what it says."""
    answer: ProbeAnswer = yield AskProbe(command)
    resolution = Resolution(
        workflow_id=command.workflow_id,
        decision=answer.decision,
        writer=Party.COMPENSATOR,
        by=by,
        step_id=command.step_id,
        workflow_offset=command.workflow_offset,
        attempts=command.attempts,
        probe_number=command.number,
        evidence=answer.evidence,
        output_payload=answer.output_payload,
        undo_arguments=answer.undo_arguments,
        external_resource_ids=answer.external_resource_ids,
        error=answer.error,
        traceparent=command.traceparent,
        data_flow=RULES if answer.output_payload is not None else 0,
        makes=_made(answer),
    )
    yield from write_surely((resolution,))
    return Report(((command.tool_name, f"probe {answer.decision.value}"),))


def decide_resend(command: ResendCommand, attempt: str, by: str) -> Steps[Report]:
    """Send the step's call again with its own key, as `attempt`."""
    started = StepEvent(
        workflow_id=command.workflow_id,
        step_id=command.step_id,
        attempt=attempt,
        epoch=command.epoch,
        status=StepStatus.STARTED,
        tool_name=command.tool_name,
        tool_version=command.tool_version,
        agent_id=by,
        workflow_offset=command.workflow_offset,
        writer=Party.COMPENSATOR,
        lease_ms=command.lease_ms,
        traceparent=command.traceparent,
    )
    started_at_ms: int = yield ReadClock()
    acks: tuple[Written | Unwritten, ...] = yield Write((started,))
    match acks[0]:
        case Written(offset=own_offset):
            outcome = yield from _send(command, started, own_offset, started_at_ms)
        case Unwritten(certain=True):
            return Report(((command.tool_name, "not started"),))
        case Unwritten():
            # The attempt is this delivery's own and was not sent, which an open attempt would leave in doubt.
            outcome = _not_executed(started, "STARTED was not acknowledged")
    yield from write_surely((outcome,))
    return Report(((command.tool_name, f"resend {outcome.status.value}"),))


def _send(command: ResendCommand, started: StepEvent, own_offset: int, started_at_ms: int) -> Steps[StepEvent]:
    facts: tuple[LedgerFact, ...] | Unreadable = yield ReadBack(command.as_of + 1, own_offset)
    if isinstance(facts, Unreadable):
        return _not_executed(started, facts.reason)
    void = resend_is_void(command, started.attempt, own_offset, facts)
    if void is not None:
        return _not_executed(started, void)
    now_ms: int = yield ReadClock()
    if half_is_gone(started_at_ms, now_ms, command.lease_ms):
        return _not_executed(started, "half the lease had gone before the call")
    if (yield from is_forgotten(command.not_after_ms)):
        return _not_executed(started, "the remote no longer remembers the key of the call")
    gone_ms = now_ms - started_at_ms
    begin_within_ms = (command.lease_ms + 1) // 2 - gone_ms
    answer: CallAnswer = yield CallForward(command, begin_within_ms, command.lease_ms - gone_ms, started.attempt)
    return _as_event(started, answer)


def _not_executed(started: StepEvent, reason: str) -> StepEvent:
    return replace(started, status=StepStatus.NOT_EXECUTED, error=Failure("amends.NotSent", reason))


def _as_event(started: StepEvent, answer: CallAnswer) -> StepEvent:
    match answer:
        case Succeeded():
            return replace(
                started,
                status=StepStatus.SUCCEEDED,
                output_payload=answer.output_payload,
                undo_arguments=answer.undo_arguments,
                external_resource_ids=answer.external_resource_ids,
                data_flow=RULES if answer.output_payload is not None else 0,
                makes=_made(answer),
            )
        case Refused():
            return replace(started, status=StepStatus.FAILED, error=answer.error)
        case Uncertain():
            return replace(started, status=StepStatus.UNKNOWN, error=answer.error)
        case NotDeployed():
            return replace(started, status=StepStatus.NOT_EXECUTED, error=answer.error)
        case NotBegun() | Deferred():
            return _not_executed(started, answer.reason)


def _made(answer: ProbeAnswer | Succeeded) -> tuple[str, ...]:
    """What the call gave, as digests: it may be what a later step was built on."""
    if answer.output_payload is None:
        return ()
    return ids_recorded(answer.output_payload, answer.external_resource_ids)
