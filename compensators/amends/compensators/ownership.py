"""Who owns an attempt: decided by the order of the ledger, by everyone who reads it, in the same way.

An undo, from the facts of its workflow between the command's `as_of` and one's own STARTED:

- *lost*, if another STARTED of the attempt, anything of a later attempt or generation, an end of the attempt, or
  UNDONE of an earlier one stands there. Nothing more is done, and nothing is written: it may be somebody else's.
- *released*, if it is one's own but the command's ground has moved: a step of the workflow started, or a child of it
  was announced (it may be built on this one), more of the workflow may have been condemned (what goes before this one),
  the time in which it can be undone ran out, a person decided on this undo, an earlier generation turned out to be done
  after all, or it was heard that the remote does an earlier attempt later.
- *owned* otherwise.

A record nobody can read may be another's STARTED, so the attempt counts as lost: writing RELEASED for an attempt that
somebody else runs would let the next one run beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amends.compensators.effects import LedgerFact
from amends.schemas.commands import ResendCommand, UndoCommand, UndoEntry
from amends.schemas.facts import (
    ACCEPTED,
    UNKNOWN_OFFSET,
    Decision,
    Fact,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    Timeout,
    TimeoutKind,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)
from amends.schemas.slots import quick

CLOSING = frozenset({UndoStatus.UNDONE, UndoStatus.NOTHING_TO_UNDO})


@quick
@dataclass(frozen=True, slots=True)
class Owned:
    """The attempt is one's own and the ground it was granted on still holds."""


@quick
@dataclass(frozen=True, slots=True)
class Released:
    """The attempt is one's own, and must not be used."""

    reason: str


@quick
@dataclass(frozen=True, slots=True)
class Lost:
    """The attempt is somebody else's, or over. `closed` if the undo itself is known to be closed."""

    closed: bool


Standing = Owned | Released | Lost


def standing_of_undo(
    command: UndoCommand, entry: UndoEntry, owner: str, own_offset: int, facts: Sequence[LedgerFact]
) -> Standing:
    """Return who owns `entry`, whose STARTED by `owner` stands at `own_offset`."""
    before = [found.fact for found in facts if command.as_of < found.offset < own_offset]
    if not before:
        return Owned()
    if any(_closes(fact, entry) for fact in before):
        return Lost(closed=True)
    if any(_takes(fact, entry, owner) for fact in before):
        return Lost(closed=False)
    reasons = (_moves(fact, command, entry) for fact in before)
    reason = next((reason for reason in reasons if reason), None)
    return Owned() if reason is None else Released(reason)


def _closes(fact: Fact | None, entry: UndoEntry) -> bool:
    if not isinstance(fact, UndoEvent) or (fact.step_id, fact.generation) != (entry.step_id, entry.generation):
        return False
    # Of an earlier attempt only UNDONE closes; a later one's end closes what it was a later attempt of.
    earlier = fact.attempt < entry.attempt
    return fact.status is UndoStatus.UNDONE if earlier else fact.status in CLOSING


def _takes(fact: Fact | None, entry: UndoEntry, owner: str) -> bool:
    own = (entry.generation, entry.attempt)
    match fact:
        case None:
            return True
        case UndoEvent(step_id=entry.step_id):
            other = (fact.generation, fact.attempt)
            mine = fact.status is UndoStatus.STARTED and fact.owner == owner
            return other > own or (other == own and not mine)
        case Timeout(kind=TimeoutKind.UNDO, step_id=entry.step_id, generation=int(), undo_attempt=int()):
            return (fact.generation, fact.undo_attempt) >= own
        case _:
            return False


def _moves(fact: Fact | None, command: UndoCommand, entry: UndoEntry) -> str | None:
    match fact:
        case StepEvent(status=StepStatus.STARTED) if _same_instance(fact.workflow_offset, command.workflow_offset):
            return f"step {fact.step_id} ({fact.tool_name}) started after the undo was planned"
        case WorkflowEvent(status=WorkflowStatus.CHILD_STARTED, detached=False) if _same_instance(
            fact.workflow_offset, command.workflow_offset
        ):
            return f"child {fact.child_workflow_id} was announced after the undo was planned"
        case Timeout(kind=TimeoutKind.WINDOW, step_id=entry.step_id):  # nearly over, or over: then it is a person's
            return "the time in which it can be undone ran low, or out, after the undo was planned"
        case WorkflowEvent() | StepEvent() | Timeout() if _may_condemn(fact, command):
            return "more of the workflow may have been condemned after the undo was planned"
        case Resolution() if _rules_on(fact, entry.step_id):
            return f"{fact.by} decided {fact.decision.value} after the undo was planned"
        case UndoEvent(step_id=entry.step_id, status=UndoStatus.UNDONE):
            return f"generation {fact.generation} turned out to be undone after the undo was planned"
        case UndoEvent(step_id=entry.step_id, status=UndoStatus.UNKNOWN) if not entry.polls and _is_taken(fact):
            return f"the remote has taken attempt {fact.attempt}, which was heard after the undo was planned"
        case _:
            return None


def _may_condemn(fact: WorkflowEvent | StepEvent | Timeout, command: UndoCommand) -> bool:
    """Whether a trigger may have turned the workflow since the plan: an undo that is tried again would then go before
    those of what its agent did since. A repeat can't release for ever: it names an ended epoch, or, a person's or
    parent's request for the whole, finds all condemned."""
    if command.whole or not _same_instance(fact.workflow_offset, command.workflow_offset):
        return False
    is_current = fact.epoch >= command.epoch
    match fact:
        case WorkflowEvent(status=WorkflowStatus.ROLLBACK_REQUESTED, savepoint=None) if fact.writer is not Party.AGENT:
            return True  # in whatever epoch
        case WorkflowEvent(status=WorkflowStatus.FAILED | WorkflowStatus.ROLLBACK_REQUESTED):
            return is_current
        case StepEvent(status=StepStatus.FAILED):  # it may have spent the failure budget
            return is_current
        case Timeout(kind=TimeoutKind.HEARTBEAT | TimeoutKind.DEADLINE):
            return is_current
        case _:
            return False


def _is_taken(fact: UndoEvent) -> bool:
    return fact.error is not None and fact.error.type == ACCEPTED


def _rules_on(fact: Resolution, step_id: str) -> bool:
    """Whether a person ruled on this undo, or on all undos of the workflow; a probe's evidence is no ruling."""
    if fact.writer is Party.COMPENSATOR or fact.unread_offset is not None:
        return False
    return fact.step_id == step_id or fact.step_id is None


def _same_instance(fact_offset: int, command_offset: int) -> bool:
    return fact_offset in (UNKNOWN_OFFSET, command_offset)


def resend_is_void(command: ResendCommand, attempt: str, own_offset: int, facts: Sequence[LedgerFact]) -> str | None:
    """Return why a re-send whose STARTED of `attempt` stands at `own_offset` must not be sent, or None.

    The attempt is nobody else's, so it is always ended by its owner: NOT_EXECUTED.
    """
    before = [found.fact for found in facts if command.as_of < found.offset < own_offset]
    reasons = (_voids(fact, command, attempt) for fact in before)
    return next((reason for reason in reasons if reason), None)


def _voids(fact: Fact | None, command: ResendCommand, attempt: str) -> str | None:
    match fact:
        case None:
            return "a record that cannot be read stands before it"
        case StepEvent(step_id=command.step_id, status=StepStatus.STARTED):
            known = fact.attempt == attempt or fact.attempt in command.attempts
            return None if known else f"attempt {fact.attempt} of the step started first"
        case StepEvent(step_id=command.step_id, status=StepStatus.SUCCEEDED):
            return "the step is known to have happened"
        case UndoEvent(step_id=command.step_id):
            return "the undo of the step has begun"
        case Timeout(kind=TimeoutKind.LADDER, step_id=command.step_id):
            return "it is too late to send it again"
        case Resolution(step_id=command.step_id) if fact.decision is not Decision.UNKNOWN:
            return f"{fact.by} said {fact.decision.value}"
        case _:
            return None
