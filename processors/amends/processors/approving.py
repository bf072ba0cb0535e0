"""Approvals, as the fold keeps them (`schemas.approvals` is the law).

A step that was REQUESTED and never STARTED has no effect: it holds nothing open, and a claim of success over it stands.
While a person is asked an incident of the kind "approval" is open; it is closed by his word, by the call, by an expiry
that the next request finds, and by the end of the epoch.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from amends.processors import attempts
from amends.processors.state import Attempt, AttemptState, Step, in_words, replace
from amends.processors.workflow import Workflow
from amends.schemas import approvals
from amends.schemas.approvals import TROUBLE, Approval, ApprovalState
from amends.schemas.commands import Phase, ToldApproval
from amends.schemas.contract import Idempotency
from amends.schemas.facts import Party, Resolution, StepEvent, StepStatus

NOT_APPROVED = "not_approved"
"""Kind of the incident of a call that was made without an approval that held."""

TOLD_MAX = 64
_STARTED: Final = StepStatus.STARTED
_REQUESTED: Final = StepStatus.REQUESTED
_AGENT: Final = Party.AGENT


def after_step_event(workflow: Workflow, step: Step, fact: StepEvent, offset: int, at_ms: int) -> Step:
    """Return the step, which the fact has changed, with what the fact means for its approval."""
    status, approval = fact.status, step.approval
    if status is _STARTED:
        return _started(workflow, step, fact, offset, at_ms) if fact.writer is _AGENT else step
    if status is _REQUESTED:
        return _requested(workflow, step, fact, offset, at_ms)
    if approval is not None and status is StepStatus.NOT_EXECUTED:
        given = approvals.given_back(approval, fact.attempt)
        step = step if given is approval else replace(step, approval=given)
        if not _sent_beside(step, approval.used_by):
            return attempts.without_trouble(step, NOT_APPROVED, at_ms, "it was not called")
    return step


def _sent_beside(step: Step, but: str) -> str:
    """Return the first attempt that was, or may have been, sent, `but` one; "" for none."""
    return next((a.name for a in step.attempts if a.name != but and _is_sent(a)), "")


def _is_sent(attempt: Attempt) -> bool:
    return attempt.state is not AttemptState.NOT_EXECUTED


def _sent_for_another(workflow: Workflow, step: Step, but: str) -> str:
    """As `_sent_beside`, at a remote that takes every send for a call of its own; "" at others."""
    contract = workflow.contract_of(step)
    if contract is None or contract.call.idempotency is not Idempotency.NEITHER:
        return ""
    return _sent_beside(step, but)


def after_ruling(workflow: Workflow, step: Step, fact: Resolution, at_ms: int) -> Step:
    """Return the step after a person approved or rejected its call, or tried to."""
    before, header = step.approval, workflow.header
    if before is None:
        return step
    ruling = dataclasses.replace(fact, by=in_words(fact.by), reason=in_words(fact.reason))
    after = approvals.ruled(before, ruling, header.epoch, at_ms)
    if header.phase is not Phase.RUNNING and after.state is not before.state:
        after = before._replace(refused=f"the workflow is {header.phase}: its agent makes no more calls")
    step = replace(step, approval=after)
    if after.state is before.state:
        return step
    return attempts.without_trouble(step, TROUBLE, at_ms, f"{after.state} by {ruling.by}")


def lapse(workflow: Workflow, at_ms: int) -> None:
    """Close what a person is asked of epochs that are over, and of workflows that make no more calls."""
    header = workflow.header
    for number in sorted(workflow.asked & workflow.troubled):
        step = workflow.steps[number]
        if step.approval is None or (header.phase is Phase.RUNNING and step.approval.epoch == header.epoch):
            continue
        workflow.put(attempts.without_trouble(step, TROUBLE, at_ms, "it is asked for no more"))


def told(workflow: Workflow) -> tuple[ToldApproval, ...]:
    """Return what the agent must know: what is asked for or granted in this epoch, and all that was rejected."""
    asked = (workflow.steps[number] for number in sorted(workflow.asked))
    epoch = workflow.header.epoch
    found = (approvals.told_of(s.step_id, s.approval, epoch) for s in asked if s.approval is not None)
    return tuple(told for told in found if told is not None)[-TOLD_MAX:]


def attributes_of(step: Step) -> dict[str, str]:
    """Return what a person's ruling on the approval of a call has to name."""
    approval = step.approval
    if approval is None:
        return {}
    return {
        "epoch": str(approval.epoch),
        "argument_digest": approval.argument_digest,
        "requested_by": approval.requested_by,
        "requested_offset": str(approval.requested_offset),
        "until_ms": str(approval.until_ms),
        "version": str(approval.version),
    }


def _requested(workflow: Workflow, step: Step, fact: StepEvent, offset: int, at_ms: int) -> Step:
    header, terms = workflow.header, fact.approval
    if terms is None or fact.epoch != header.epoch or header.phase is not Phase.RUNNING:
        return step
    before = step.approval
    if before is not None and before.state is ApprovalState.USED:
        sent = _sent_for_another(workflow, step, fact.attempt)
        if sent:  # who asks did not know; nobody is asked for a second call in one step
            return replace(step, approval=before._replace(refused=approvals.already_used(sent)))
    after = approvals.requested(before, terms, header.agent_id, fact.epoch, offset, at_ms)
    if after is before:
        return step
    earlier = _rejection_of(workflow, terms.argument_digest)
    if earlier is not None:
        after = after._replace(state=ApprovalState.REJECTED, by=earlier.by, reason=earlier.reason)
        return replace(step, approval=after, effect=fact.side_effect_classification)
    step = replace(step, approval=after, effect=fact.side_effect_classification)
    step = attempts.without_trouble(step, TROUBLE, at_ms, "it is asked for anew")
    who = terms.requested_by or header.agent_id or "its agent"
    return attempts.with_trouble(step, TROUBLE, f"{who} asks for the call of {step.tool_name}", offset, at_ms)


def _rejection_of(workflow: Workflow, argument_digest: str) -> Approval | None:
    """Return the rejection of an equal call, whichever step asked for it, in whatever epoch."""
    found = (workflow.steps[number].approval for number in sorted(workflow.asked))
    return next(
        (a for a in found if a and a.state is ApprovalState.REJECTED and a.argument_digest == argument_digest), None
    )


def _started(workflow: Workflow, step: Step, fact: StepEvent, offset: int, at_ms: int) -> Step:
    approval, contract = step.approval, workflow.contract_of(step)
    if not any(a.name == fact.attempt and a.started_offset == offset and _is_sent(a) for a in step.attempts):
        return step  # a repeat, or known not to have been sent
    if approval is None:
        if workflow.header.observe or (fact.approval is None and (contract is None or contract.approval_ms is None)):
            return step
        why = "nobody was asked"
    elif fact.epoch != workflow.header.epoch:
        why = "its epoch is over, and what was approved in it is void"
    else:
        sent = _sent_for_another(workflow, step, fact.attempt)
        after = approvals.used(approval, fact.approval, fact.attempt, fact.epoch, at_ms, sent=sent)
        if isinstance(after, Approval):
            return replace(step, approval=after) if after is not approval else step
        why = after
        step = replace(step, approval=approval._replace(refused=why))
    reason = f"{step.tool_name} was called without an approval that held: {why}"
    return attempts.with_trouble(step, NOT_APPROVED, reason, offset, at_ms)
