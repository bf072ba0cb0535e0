"""A call that a person approves first (protocol, "Forward" 1). Pure.

    Admit -> WriteFact(REQUESTED) -> AwaitApproval -> ReadClock -> ... STARTED, fenced strictly

- No lease runs while a person is waited for: the attempt begins with STARTED, after the grant. The agent's own lease is
  renewed by its heart, or is as long as `wf.leave_open` says.
- The wait is bounded. Whoever calls again later meets the same request, in this process or another.
- What a grant is worth is judged by the fold alone, when STARTED stands on the ledger: its epoch, its arguments, its
  expiry, that it was not used. A grant that was not accepted is still told as unused, and the call is not made.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from amends.producers import refusals
from amends.producers.effects import (
    Acknowledged,
    Admit,
    Admitted,
    AwaitApproval,
    Effect,
    NotMade,
    Standing,
    Withdraw,
    Write,
    WriteFact,
)
from amends.producers.fencing import made_by_others
from amends.schemas.approvals import ApprovalState
from amends.schemas.commands import Phase, ToldApproval
from amends.schemas.facts import UNKNOWN_OFFSET, StepEvent


def approved(
    requested: StepEvent, asked: Admit, admitted: Admitted, standing: Standing, within_ms: int, subject: str
) -> Generator[Effect, Any, NotMade | None]:
    """Have a person asked, unless he was, and wait for his word. Returns what is known of the call if another process
    made it with his approval, None if it may be made. Then, and if it raises, the attempt is withdrawn.

    Args:
        requested: the fact that asks.
        within_ms: the longest wait.

    Raises:
        NotApproved: he said no, or nothing yet.
        WorkflowTurned: the epoch is over.
        LedgerUnavailable, LedgerUncertain: he could not be asked.
    """
    try:
        made = yield from _approved(requested, asked, admitted, standing, within_ms, subject)
    except GeneratorExit:
        raise
    except BaseException:
        yield Withdraw(admitted)
        raise
    if made is not None:
        yield Withdraw(admitted)
    return made


def told_of(requested: StepEvent, standing: Standing) -> ToldApproval | None:
    """Return what is known of the approval of this call: of its step, or that an equal one was rejected."""
    assert requested.approval is not None
    asked = requested.approval.argument_digest
    same = [told for told in standing.approvals if told.argument_digest == asked]
    rejected = next((told for told in same if told.state == ApprovalState.REJECTED), None)
    mine = (t for t in same if t.step_id == requested.step_id and t.epoch == requested.epoch)
    return rejected or next(mine, None)


def is_about(told: ToldApproval, step_id: str) -> bool:
    """Whether what is told counts for a call of the same arguments in this step: its own, or a rejection of any."""
    return told.step_id == step_id or told.state == ApprovalState.REJECTED


def _approved(
    requested: StepEvent, asked: Admit, admitted: Admitted, standing: Standing, within_ms: int, subject: str
) -> Generator[Effect, Any, NotMade | None]:
    assert requested.approval is not None
    told, asked_at = told_of(requested, standing), UNKNOWN_OFFSET
    if told is None or (told.state != ApprovalState.REJECTED and _is_over(told, requested.timestamp_ms)):
        write: Write = yield WriteFact(requested)
        if not isinstance(write, Acknowledged):
            raise refusals.not_written(subject, write)
        told, asked_at = None, write.offset
    if told is None or told.state == ApprovalState.REQUESTED:
        digest = requested.approval.argument_digest
        found: Standing | None = yield AwaitApproval(requested.step_id, digest, requested.epoch, within_ms)
        if found is not None and (found.epoch != requested.epoch or found.phase is not Phase.RUNNING):
            if found.epoch == requested.epoch and found.phase not in refusals.TURNED:
                raise refusals.finished(requested.workflow_id, found)
            raise refusals.turned(requested.workflow_id, found, f"{requested.tool_name} was not called.")
        told = None if found is None else told_of(requested, found)
    if told is None or told.state == ApprovalState.REQUESTED:
        raise refusals.not_approved_yet(subject, admitted.step_id, within_ms)
    if told.state == ApprovalState.REJECTED:
        raise refusals.not_approved(subject, admitted.step_id, told)
    if told.state != ApprovalState.USED:
        return None
    made = yield from made_by_others(asked, admitted, asked_at, requested.timestamp_ms, surely=True)
    if made is None:
        raise refusals.approval_not_accepted(subject, admitted.step_id, _not_held(told))
    return made


def _is_over(told: ToldApproval, wall_ms: int) -> bool:
    """Whether to ask anew: it has expired, or another process has used it. If it still has, the answer says so, and its
    call stands before the question."""
    return told.state == ApprovalState.USED or told.until_ms <= wall_ms


def check_accepted(started: StepEvent, folded: Standing) -> str:
    """Return why the fold did not take the approval of a call whose STARTED it has seen, "" if it did: a grant that is
    used is told no more."""
    left = _left_of(started, folded)
    return "" if left is None else _not_held(left)


def is_taken(started: StepEvent, folded: Standing) -> bool:
    """Whether another process used the approval of a call."""
    left = _left_of(started, folded)
    return left is not None and left.state == ApprovalState.USED


def _left_of(started: StepEvent, folded: Standing) -> ToldApproval | None:
    if started.approval is None:
        return None
    left = next((told for told in folded.approvals if told.step_id == started.step_id), None)
    is_ours = left is not None and left.state == ApprovalState.USED and left.by == started.attempt
    return None if is_ours else left


def _not_held(told: ToldApproval) -> str:
    return f"its approval did not hold: {told.reason or told.state}"
