"""A child workflow, begun inside another: who its parent is, and how it is announced there.

    parent:  AwaitStanding -> Reference
    child:   (Follow) -> ReadClock -> WriteFact(CHILD_STARTED, on the parent's key) -> ReadClock -> WriteFact(STARTED)

The child's STARTED is sent within half of the parent's lease after CHILD_STARTED, or not at all: a parent's fold that
finds no STARTED tells the parent that there is nothing to undo. No echo of the parent is needed for that: a parent that
has turned meanwhile asks for the child's undoing whatever became of it, and the child is told before its first effect.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Self

from amends.producers import refusals
from amends.producers.effects import (
    Acknowledged,
    AwaitStanding,
    Effect,
    Instant,
    ReadClock,
    Standing,
    Write,
    WriteFact,
)
from amends.producers.flow import ScopeTerms
from amends.schemas.commands import Phase
from amends.schemas.facts import WorkflowEvent, WorkflowStatus

_NAME = "amends-parent"


@dataclass(frozen=True, slots=True)
class Reference:
    """A workflow that others may begin children of, wherever they run."""

    workflow_id: str
    workflow_offset: int
    epoch: int
    lease_ms: int

    def __str__(self) -> str:
        return f"{_NAME}:{self.workflow_offset}:{self.epoch}:{self.lease_ms}:{self.workflow_id}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Return what `str` gave. Raises ValueError if this is nothing of that kind."""
        name, *numbers = text.split(":", 4)
        workflow_id = numbers.pop() if len(numbers) == 4 else ""
        if name != _NAME or not workflow_id or not all(n.isascii() and n.isdigit() for n in numbers):
            raise ValueError(f"parent={text!r} is no reference to a workflow: take that of `wf.reference()`, unchanged")
        offset, epoch, lease_ms = (int(number) for number in numbers)
        return cls(workflow_id, offset, epoch, lease_ms)


@dataclass(frozen=True, slots=True)
class Announced:
    """A child stands on its parent's key."""

    parent: Reference
    offset: int
    at_ms: int  # append time
    begin_by_ms: int  # by the clock that only grows: until then the child's STARTED may be sent


ReferenceFlow = Generator[Effect, Any, Reference]
AnnounceFlow = Generator[Effect, Any, Announced]


def reference_flow(terms: ScopeTerms) -> ReferenceFlow:
    """Refer to the workflow of a scope.

    Raises: LedgerUnavailable; WorkflowTurned if nobody goes on in it; Rejected if it has claimed success.
    """
    standing: Standing | None = yield AwaitStanding()
    if standing is None:
        raise refusals.no_processor(terms.workflow_id, terms.standing_within_ms)
    if standing.phase in refusals.TURNED or not standing.known:
        raise refusals.turned(terms.workflow_id, standing, "it begins no child.")
    if standing.phase is not Phase.RUNNING:
        raise refusals.finished(terms.workflow_id, standing)
    return Reference(terms.workflow_id, standing.workflow_offset, standing.epoch, terms.lease_ms)


def announce_flow(terms: ScopeTerms, parent: Reference) -> AnnounceFlow:
    """Announce the workflow of `terms` as a child. Raises: LedgerUnavailable, LedgerUncertain."""
    now: Instant = yield ReadClock()
    fact = WorkflowEvent(
        workflow_id=parent.workflow_id,
        epoch=parent.epoch,
        status=WorkflowStatus.CHILD_STARTED,
        agent_id=terms.agent_id,
        workflow_offset=parent.workflow_offset,
        instance=terms.instance,
        child_workflow_id=terms.workflow_id,
        timestamp_ms=now.wall_ms,
        traceparent=terms.traceparent,
    )
    write: Write = yield WriteFact(fact)
    if not isinstance(write, Acknowledged):
        what = f"the child workflow {terms.workflow_id!r} of {parent.workflow_id!r}"
        raise refusals.not_written(what, write)
    return Announced(parent, write.offset, write.appended_at_ms, now.elapsed_ms + parent.lease_ms // 2)
