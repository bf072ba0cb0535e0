"""What a parent keeps of its children, and what it asks of them.

An owned child is kept as a step of its own kind (`Step.child`), from the CHILD_STARTED that announced it: it has a
place in the order of undoing, is condemned by turns and savepoints, and costs what a step costs. What a child does
depends on nothing that its parent can see, so it stands in order (LIFO) with all other steps. Its "undo" is a request:

| record     | request due | CHILD_CLOSED: COMPENSATED | CLOSED_WITH_LOSS | TURNED, all that is left waits for people |
|------------|-------------|---------------------------|------------------|-------------------------------------------|
| DUE        | repeated    | UNDONE                    | LOSS             | DEAD, an incident                         |
| DEAD       |             | UNDONE                    | LOSS             |                                           |
| UNDONE     |             |                           | LOSS             | DEAD: a late effect came to light there   |
| LOSS       |             | UNDONE                    |                  | DEAD, unless a person accepted the loss   |

Rules
- The place of CHILD_STARTED on the parent's partition names the child: request and answer carry it, so that an answer
  for an earlier use of the id is not taken for this one.
- An answer says as of which place of the child's partition it is true. One that is older than what is known is that of
  a processor that was replaced, and says nothing.
- A child that failed by itself says nothing to its parent, which decides for itself; nor does a parent's success wait
  for its children.
"""

from __future__ import annotations

import dataclasses

from amends.processors.attempts import with_trouble, without_trouble
from amends.processors.state import (
    CLOSED_UNDO,
    NOWHERE,
    Attempt,
    AttemptState,
    Child,
    Standing,
    Step,
    Undo,
    UndoState,
    in_words,
    replace,
)
from amends.processors.undos import with_undo_due
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase
from amends.schemas.contract import Effect
from amends.schemas.facts import Party, WorkflowEvent, WorkflowStatus
from amends.schemas.family import AS_OF, CHILD_STARTED_OFFSET, SINCE_MS, number_of

CHILD_WAITS = "child_waits"

_ENDS = {
    Phase.COMPENSATED.value: UndoState.UNDONE,
    Phase.CLOSED_WITH_LOSS.value: UndoState.LOSS,
    Phase.TURNED.value: UndoState.DEAD,
}


def step_id_of(child_id: str, started_offset: int) -> str:
    """Return the id of the record of a child that was announced at `started_offset`."""
    return f"child/{started_offset}/{child_id}"


def redriven(fact: WorkflowEvent, original_offset: int) -> WorkflowEvent:
    """Return a CHILD_STARTED that nobody could read at first: the child names the place where it stood then."""
    return dataclasses.replace(fact, attributes={**fact.attributes, CHILD_STARTED_OFFSET: str(original_offset)})


def announced(workflow: Workflow, fact: WorkflowEvent, offset: int, at_ms: int) -> Step | None:
    """Return the record of a child that was announced; None if it stands alone, or is known."""
    child_id, original = fact.child_workflow_id, number_of(fact, CHILD_STARTED_OFFSET)
    if fact.detached or not child_id:
        return None
    named, since_ms = (offset, at_ms) if original == NOWHERE else (original, workflow.header.started_at_ms)
    if workflow.find(step_id_of(child_id, named)) is not None:
        return None
    there = Attempt("", AttemptState.SUCCEEDED, fact.epoch, offset, ended_offset=offset, ended_at_ms=at_ms)
    return Step(
        len(workflow.steps),
        step_id_of(child_id, named),
        in_words(f"workflow {child_id}"),
        fact.epoch,
        offset,
        since_ms,
        effect=Effect.COMPENSABLE,
        attempts=(there,),
        child=Child(child_id),
    )


def brought_on(step: Step, what: Standing, at_ms: int) -> Step:
    """Return the record of a condemned child, of which `what` is owed: it is to be asked."""
    return with_undo_due(step, at_ms) if what is Standing.PRESENT and step.undo is None else step


def answered(workflow: Workflow, fact: WorkflowEvent, offset: int, at_ms: int) -> Step | None:
    """Return the record of a child after its answer; None if that is of nobody who was asked, or says nothing new."""
    started_offset = number_of(fact, CHILD_STARTED_OFFSET)
    step = workflow.find(step_id_of(fact.child_workflow_id or "", started_offset))
    end, as_of = _ENDS.get(fact.closed_as or ""), number_of(fact, AS_OF)
    if step is None or step.child is None or step.number not in workflow.condemned or end is None:
        return None
    if as_of < step.child.as_of:
        return None
    undo, before = step.undo or Undo(), step.child.closed_as
    said = replace(step, child=step.child._replace(closed_as=fact.closed_as or "", as_of=as_of))
    if end is undo.state:
        return said
    if end is not UndoState.DEAD:
        return _ended(said, undo, end, offset, at_ms)
    is_ruled = undo.state in CLOSED_UNDO and before in ("", Phase.TURNED.value)
    return said if is_ruled else _waiting(said, undo, offset, at_ms)


def request_of(workflow: Workflow, step: Step, now_ms: int) -> WorkflowEvent:
    """Return the fact that asks a child to be undone."""
    assert step.child is not None
    header, child_id = workflow.header, step.child.workflow_id
    others = (s for s in workflow.steps if s.child is not None and s.child.workflow_id == child_id)
    since_ms = min((other.first_at_ms for other in others), default=step.first_at_ms)
    return WorkflowEvent(
        workflow_id=child_id,
        epoch=0,
        status=WorkflowStatus.ROLLBACK_REQUESTED,
        writer=Party.PARENT,
        by=in_words(f"its parent {header.workflow_id}"),
        reason=header.turned_reason,
        parent_workflow_id=header.workflow_id,
        parent_workflow_offset=header.started_offset,
        child_started_at_ms=step.first_at_ms,
        timestamp_ms=now_ms,
        traceparent=header.traceparent,
        attributes={CHILD_STARTED_OFFSET: str(_started_offset(step)), SINCE_MS: str(since_ms)},
    )


def _started_offset(step: Step) -> int:
    return int(step.step_id.split("/", 2)[1])


def _ended(step: Step, undo: Undo, end: UndoState, offset: int, at_ms: int) -> Step:
    words = "undone" if end is UndoState.UNDONE else "closed with a loss"
    closed = replace(undo, state=end, covered_before=offset + 1, version=undo.version + 1, evidence=f"it was {words}")
    return without_trouble(replace(step, undo=closed), CHILD_WAITS, at_ms, f"it was {words}")


def _waiting(step: Step, undo: Undo, offset: int, at_ms: int) -> Step:
    reason = in_words(f"{step.tool_name} is not undone, and all that is left of it waits for people")
    dead = replace(
        undo, state=UndoState.DEAD, covered_before=NOWHERE, version=undo.version + 1, last_error=reason, evidence=""
    )
    return with_trouble(replace(step, undo=dead), CHILD_WAITS, reason, offset, at_ms)
