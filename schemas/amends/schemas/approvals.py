"""Approval of a call by a person: one law, for the fold, which decides, and for whoever asks or answers. Pure.

| approval  | REQUESTED again         | approve  | reject   | STARTED               | NOT_EXECUTED |
|-----------|-------------------------|----------|----------|-----------------------|--------------|
| requested | anew if it expired      | granted  | rejected | incident              |              |
| granted   | anew if it expired      |          | rejected | used, or an incident  |              |
| rejected  |                         |          |          | incident              |              |
| used      | anew, or none           |          |          | again, or an incident | granted      |

- A request names a step, its epoch and the digest of its arguments, and stands for a time. Other arguments are another
  request: the one before, and what was said of it, is void.
- A ruling names what it was taken on, and does nothing to anything else. Who asks can't approve.
- A grant is good for one call, until it expires. Two agents of one workflow may wait for it: where a remote takes each
  send for a call of its own, only the first one's STARTED uses it, and the other is told by whom it is used. Where it
  takes them for one, the same step is sent again.
- An expiry is by the broker's clock: the append time of the STARTED.
- A turn makes an unused grant void. What was rejected stays rejected, in every epoch and in every step that asks for
  the same with the same arguments.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from amends.schemas.commands import ToldApproval
from amends.schemas.facts import ApprovalTerms, Decision, Resolution

TROUBLE = "approval"
"""Kind of the incident that is open while a person is asked."""


class ApprovalState(StrEnum):
    REQUESTED = "requested"
    GRANTED = "granted"
    REJECTED = "rejected"
    USED = "used"


class Approval(NamedTuple):
    """How it stands with the approval of one call. Times are the broker's, in milliseconds."""

    state: ApprovalState
    epoch: int
    argument_digest: str
    requested_by: str
    agent_id: str
    requested_offset: int
    until_ms: int  # the request stands until then, and from then on the grant
    version: int  # counts requests
    by: str = ""  # who decided
    reason: str = ""
    used_by: str = ""  # the attempt
    refused: str = ""  # why the last ruling did nothing


def requested(
    before: Approval | None, terms: ApprovalTerms, agent_id: str, epoch: int, offset: int, at_ms: int
) -> Approval:
    """Return the approval after a request; the one before where that still stands."""
    if before is not None and before.argument_digest == terms.argument_digest:
        stands = before.state in (ApprovalState.REQUESTED, ApprovalState.GRANTED)
        if before.state is ApprovalState.REJECTED or (stands and before.epoch == epoch and at_ms < before.until_ms):
            return before
    return Approval(
        ApprovalState.REQUESTED,
        epoch,
        terms.argument_digest,
        terms.requested_by,
        agent_id,
        offset,
        at_ms + terms.stands_ms,
        1 if before is None else before.version + 1,
    )


def refusal(approval: Approval, ruling: Resolution, epoch: int, at_ms: int) -> str:
    """Return why a ruling does nothing, in words; "" if it counts.

    Args:
        epoch: the workflow's, now.
    """
    approves = ruling.decision is Decision.APPROVE
    if approval.state is ApprovalState.USED:
        return f"{approval.by} approved it, and the call was made"
    if approval.state is ApprovalState.REJECTED:
        return f"it was rejected by {approval.by}, and stays rejected"
    if approval.state is ApprovalState.GRANTED and approves:
        return f"it was approved already, by {approval.by}: nothing is added to that"
    if ruling.step_epoch != approval.epoch or approval.epoch != epoch:
        return "the workflow was undone since it was asked for: the agent asks again if it still wants the call"
    if ruling.argument_digest != approval.argument_digest:
        return "the arguments have changed since: look at what is asked for now"
    if ruling.version != approval.version:
        return f"it was taken on request {ruling.version}, and now request {approval.version} is open"
    if at_ms >= approval.until_ms:
        return "it expired: the agent asks again if it still wants the call"
    if not approves:
        return ""
    if _same(ruling.by, approval.requested_by) or _same(ruling.by, approval.agent_id):
        return f"{ruling.by} asks for it: who asks can't approve"
    if ruling.expires_at_ms is None or ruling.expires_at_ms <= at_ms:
        return "the approval had expired before it was given: give it a time to stand"
    return ""


def ruled(approval: Approval, ruling: Resolution, epoch: int, at_ms: int) -> Approval:
    """Return the approval after a ruling; one that does nothing leaves its reason."""
    why = refusal(approval, ruling, epoch, at_ms)
    if why:
        return approval._replace(refused=why)
    if ruling.decision is Decision.REJECT:
        return approval._replace(state=ApprovalState.REJECTED, by=ruling.by, reason=ruling.reason, refused="")
    assert ruling.expires_at_ms is not None
    return approval._replace(
        state=ApprovalState.GRANTED, by=ruling.by, reason=ruling.reason, until_ms=ruling.expires_at_ms, refused=""
    )


def used(
    approval: Approval, terms: ApprovalTerms | None, attempt: str, epoch: int, at_ms: int, *, sent: str = ""
) -> Approval | str:
    """Return the approval after the STARTED of `attempt`, or why that had none.

    Args:
        sent: another attempt of the step that was sent, at a remote that takes both for two calls; "" for none.
    """
    if sent and approval.used_by != attempt:
        return already_used(sent)
    if approval.state is ApprovalState.USED and approval.epoch == epoch:
        return approval  # the same step, sent again
    if approval.state is not ApprovalState.GRANTED:
        return f"it was {approval.state}" + (f" by {approval.by}" if approval.by else "")
    if terms is None or terms.argument_digest != approval.argument_digest:
        return "other arguments were approved"
    if epoch != approval.epoch:
        return "it was approved in an epoch that is over"
    if at_ms >= approval.until_ms:
        return "the approval had expired"
    return approval._replace(state=ApprovalState.USED, used_by=attempt)


def already_used(attempt: str) -> str:
    return f"it was used by another process (attempt {attempt}), and is good for one call"


def given_back(approval: Approval, attempt: str) -> Approval:
    """Return the approval after `attempt` ended NOT_EXECUTED: what was not sent has used nothing."""
    if approval.state is not ApprovalState.USED or approval.used_by != attempt:
        return approval
    return approval._replace(state=ApprovalState.GRANTED, used_by="", refused="")


def told_of(step_id: str, approval: Approval, epoch: int) -> ToldApproval | None:
    """Return what an agent in `epoch` is told: what it asks for or may use, whatever was rejected, and a grant that two
    wanted to use."""
    rejected = approval.state is ApprovalState.REJECTED
    is_used = approval.state is ApprovalState.USED
    if not rejected and ((is_used and not approval.refused) or approval.epoch != epoch):
        return None
    return ToldApproval(
        step_id,
        approval.state.value,
        approval.epoch,
        approval.argument_digest,
        approval.version,
        approval.used_by if is_used else approval.by,
        approval.reason if rejected else approval.refused or approval.reason,
        approval.until_ms,
    )


def _same(one: str, other: str) -> bool:
    return bool(one) and one.strip().casefold() == other.strip().casefold()
