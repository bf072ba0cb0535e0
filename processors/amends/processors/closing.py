"""When a workflow is closed: nothing open is left, and a claim of success is true."""

from __future__ import annotations

from typing import Final

from amends.processors import acknowledging, asking, attempts, failing
from amends.processors.state import TURNED_PHASES, Standing, Step, UndoState, replace, standing
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase

_FINISHING: Final = Phase.FINISHING


def close(workflow: Workflow, offset: int, at_ms: int) -> None:
    """Close what has nothing open, and open again what has. A running workflow is never closed by its plan."""
    if workflow.header.phase is _FINISHING:
        _finish(workflow, offset, at_ms)
    if workflow.header.phase not in TURNED_PHASES:
        return
    phase = _closing_phase(workflow)
    if phase is not workflow.header.phase:
        closed_at_ms = 0 if phase is Phase.TURNED else at_ms
        workflow.put_header(replace(workflow.header, phase=phase, closed_at_ms=closed_at_ms))
    if workflow.header.family is not None:
        asking.answer(workflow)


def _closing_phase(workflow: Workflow) -> Phase:
    """COMPENSATED only if every candidate is undone or proven absent; where only looked on, what is owed is a loss."""
    header = workflow.header
    if header.unread or (workflow.live if header.observe else workflow.owing or workflow.undoing):
        return Phase.TURNED
    lost = (
        workflow.owing
        or asking.is_gone(header)
        or any(s.undo is not None and s.undo.state is UndoState.LOSS for s in workflow.steps)
    )
    return Phase.CLOSED_WITH_LOSS if lost else Phase.COMPENSATED


def _finish(workflow: Workflow, offset: int, at_ms: int) -> None:
    """A claim of success is judged when nothing is open or unknown, and what was condemned before is closed."""
    header = workflow.header
    waits = workflow.unsure if header.observe else workflow.expected() or workflow.is_unwinding
    if waits or header.unread:
        return
    denied = next((s for s in workflow.steps if _is_denied(s, workflow)), None)
    if denied is not None:
        reason = f"a false claim of success: {denied.tool_name} is proven not to have happened"
        failing.fail(workflow, None, reason, offset, at_ms)
        return
    for step in workflow.steps:
        if step.number not in workflow.condemned:
            workflow.put(attempts.without_trouble(step, "unknown", at_ms, "it came to light"))
    acknowledging.moot(workflow, at_ms, "it succeeded")
    workflow.put_header(replace(workflow.header, phase=Phase.SUCCEEDED, closed_at_ms=at_ms))


def _is_denied(step: Step, workflow: Workflow) -> bool:
    """Evidence says that a call the agent could not be sure of did not happen, and it was not done again: no later call
    of the same tool with the same arguments is present. Where a STARTED does not say which call it was (one written by
    0.1.0), any later call of the tool counts.

    A FAILED step is no objection: the agent was told and went another way. Nor is a condemned one: its epoch is over,
    and the agent was told what became of it.
    """
    if step.number in workflow.condemned or standing(step) is not Standing.ABSENT:
        return False
    if not any(a.absent for a in step.attempts):
        return False
    return not any(
        other.tool_name == step.tool_name
        and (other.call_digest == step.call_digest or not (other.call_digest and step.call_digest))
        and other.first_offset > step.first_offset
        and standing(other) is Standing.PRESENT
        for other in workflow.steps
    )
