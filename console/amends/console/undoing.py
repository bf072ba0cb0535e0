"""A person asks that workflows be undone: whose instance is meant, what the request says, and why it would do nothing.
Pure.

The fold takes a person's request in every phase that goes forward or has succeeded, and condemns what the workflow did,
or what it did after a savepoint. It is written for the instance that was looked at, and does nothing to a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amends.console.steps import Placed
from amends.schemas.commands import Phase, WorkflowEcho
from amends.schemas.facts import UNKNOWN_OFFSET, Party, WorkflowEvent, WorkflowStatus

UNDOABLE = frozenset({Phase.RUNNING, Phase.FINISHING, Phase.SUCCEEDED})


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks for, and why."""

    by: str
    reason: str
    savepoint: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """An instance of a workflow, as it was looked at. `phase` is None where it was forgotten."""

    workflow_id: str
    workflow_offset: int
    phase: Phase | None
    agent_id: str = ""


def subject_of(echo: WorkflowEcho) -> Subject:
    """Return the instance that an echo speaks of."""
    return Subject(echo.workflow_id, echo.workflow_offset, echo.phase, echo.agent_id)


def forgotten(workflow_id: str, placed: Sequence[Placed]) -> Subject | None:
    """Return the newest instance of a workflow that only the ledger remembers; None if it holds none."""
    named = [item.fact.workflow_offset for item in placed if item.fact is not None]
    starts = [
        item.offset
        for item in placed
        if isinstance(item.fact, WorkflowEvent) and item.fact.status is WorkflowStatus.STARTED
    ]
    offset = max((o for o in named if o != UNKNOWN_OFFSET), default=max(starts, default=UNKNOWN_OFFSET))
    return None if offset == UNKNOWN_OFFSET else Subject(workflow_id, offset, None)


def in_vain(subject: Subject) -> str:
    """Return why a request would do nothing, "" if it does something."""
    if subject.phase is None or subject.phase in UNDOABLE:
        return ""
    if subject.phase is Phase.TURNED:
        return "it is being undone already"
    if subject.phase is Phase.NONE:
        return "no start of it is known"
    return "it was undone already" if subject.phase is Phase.COMPENSATED else "it is closed, with a loss"


def fact_of(subject: Subject, request: Request, now_ms: int) -> WorkflowEvent:
    """Return the request as a fact for the ledger."""
    return WorkflowEvent(
        workflow_id=subject.workflow_id,
        epoch=0,  # a person's request ends whatever epoch there is
        status=WorkflowStatus.ROLLBACK_REQUESTED,
        workflow_offset=subject.workflow_offset,
        writer=Party.PERSON,
        by=request.by,
        reason=request.reason,
        savepoint=request.savepoint,
        timestamp_ms=now_ms,
    )
