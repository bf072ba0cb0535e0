"""A fact in words: who wrote it, and what it says. Attempts count from 1 for people, on the ledger from 0. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from amends.schemas.facts import (
    Carry,
    Decision,
    Fact,
    Failure,
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

_STEP = {
    StepStatus.REQUESTED: "waits for approval",
    StepStatus.STARTED: "is called",
    StepStatus.SUCCEEDED: "succeeded",
    StepStatus.FAILED: "failed, without effect",
    StepStatus.UNKNOWN: "ended, and nobody knows if it happened",
    StepStatus.NOT_EXECUTED: "was not called after all",
    StepStatus.HEARTBEAT: "is still being called",
}
_UNDO = {
    UndoStatus.STARTED: "begins",
    UndoStatus.UNDONE: "undone",
    UndoStatus.NOTHING_TO_UNDO: "nothing to undo",
    UndoStatus.FAILED: "failed",
    UndoStatus.UNKNOWN: "ended, and nobody knows if it took",
    UndoStatus.RELEASED: "given back unused",
    UndoStatus.DEFERRED: "put off",
}
_WORKFLOW = {
    WorkflowStatus.STARTED: "the workflow starts",
    WorkflowStatus.HEARTBEAT: "the agent is alive",
    WorkflowStatus.SAVEPOINT: "savepoint",
    WorkflowStatus.SUCCEEDED: "the agent claims success",
    WorkflowStatus.FAILED: "the agent gives up",
    WorkflowStatus.CHILD_STARTED: "a child workflow starts",
    WorkflowStatus.ROLLBACK_REQUESTED: "everything is asked to be undone",
    WorkflowStatus.CHILD_CLOSED: "a child workflow answers",
}
CLOSED_AS = {
    "": "",
    "COMPENSATED": "undone",
    "CLOSED_WITH_LOSS": "closed with a loss",
    "TURNED": "what is left of it waits for people",
}
_TIMEOUT = {
    TimeoutKind.HEARTBEAT: "the agent was silent for longer than its lease",
    TimeoutKind.DEADLINE: "the workflow took longer than its deadline",
    TimeoutKind.STEP: "the call took longer than its lease",
    TimeoutKind.UNDO: "the undo took longer than its lease",
    TimeoutKind.LADDER: "nothing is left that could find out if the call happened",
    TimeoutKind.WINDOW: "the window of an undo closes soon, or has closed",
}
_DECISION = {
    Decision.PRESENT: "it happened",
    Decision.ABSENT: "it did not happen",
    Decision.UNKNOWN: "can't tell if it happened",
    Decision.RETRY: "try the undo again",
    Decision.MARK_UNDONE: "it is undone, by hand",
    Decision.MARK_ABSENT: "it did not happen",
    Decision.ACCEPT_LOSS: "the loss is accepted",
    Decision.APPROVE: "the call is approved",
    Decision.REJECT: "the call is rejected",
    Decision.EDIT_ARGS: "undo it with other arguments",
    Decision.REPLAY_PLAN: "try all that is dead again",
}


def of_fact(fact: Fact, tools: Mapping[str, str]) -> tuple[str, str]:
    """Return who wrote `fact` and what it says. `tools` names each step by its id: two calls of one tool apart."""
    match fact:
        case StepEvent():
            return _writer(fact.writer, fact.agent_id), _step(fact, tools)
        case WorkflowEvent():
            return _writer(fact.writer, fact.by or fact.agent_id), _workflow(fact)
        case UndoEvent():
            tool = tools.get(fact.step_id) or fact.tool_name or fact.step_id[:8]
            return "compensator", f"undo of {tool}: {_undo(fact)}"
        case Resolution():
            subject = f"{tools.get(fact.step_id, fact.step_id[:8])}: " if fact.step_id else ""
            return _writer(fact.writer, fact.by), subject + _resolution(fact)
        case Timeout():
            subject = f"{tools.get(fact.step_id, fact.step_id[:8])}: " if fact.step_id else ""
            return "processor", f"proposes: {subject}{_TIMEOUT[fact.kind]}"
        case Carry():
            return "processor", "the state is carried on"
        case _:
            assert_never(fact)


def _writer(party: Party, name: str) -> str:
    return f"{party.value} {name}".strip()


def _step(fact: StepEvent, tools: Mapping[str, str]) -> str:
    said = f"{tools.get(fact.step_id, fact.tool_name)} {_STEP[fact.status]}"
    if fact.external_resource_ids:
        said += " (" + ", ".join(f"{name}={value}" for name, value in fact.external_resource_ids.items()) + ")"
    return said + _because(fact.error)


def _undo(fact: UndoEvent) -> str:
    said = _UNDO[fact.status]
    if fact.status is UndoStatus.STARTED:
        said += f", attempt {fact.attempt + 1}" + (f", generation {fact.generation}" if fact.generation > 0 else "")
    if fact.status is UndoStatus.FAILED:
        said += ", may be tried again" if fact.retryable else " for good"
    if fact.verified:
        said += ", verified"
    return said + (f" ({fact.evidence})" if fact.evidence else "") + _because(fact.error)


def _workflow(fact: WorkflowEvent) -> str:
    said = _WORKFLOW[fact.status]
    if fact.savepoint is not None:
        said += f" {fact.savepoint!r}"
    if fact.child_workflow_id is not None:
        closed_as = fact.closed_as or ""
        said += f" ({fact.child_workflow_id})" + (f": {CLOSED_AS.get(closed_as, closed_as)}" if closed_as else "")
    elif fact.parent_workflow_id is not None and fact.status is WorkflowStatus.STARTED:
        said += f", as a child of {fact.parent_workflow_id}"
    return said + (f": {fact.reason}" if fact.reason else "") + _because(fact.error)


def _resolution(fact: Resolution) -> str:
    said = _DECISION[fact.decision]
    for words in (fact.evidence, fact.reason):
        said += f" ({words})" if words else ""
    return said + _because(fact.error)


def _because(error: Failure | None) -> str:
    return "" if error is None else f": {error.type}: {error.message}"
