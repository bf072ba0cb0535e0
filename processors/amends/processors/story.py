"""What is told to people and agents, made from the state alone."""

from __future__ import annotations

from amends.processors.state import (
    CLOSED_UNDO,
    Header,
    Standing,
    Step,
    Trouble,
    UndoState,
    is_condemned,
    owed,
    standing,
)
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase
from amends.schemas.decisions import command_for
from amends.schemas.keys import undo_key

LINES_MAX = 40

_TODO: dict[str, str] = {
    "undo_failed": "look at the remote with the undo's key; then retry (a new budget), mark undone with evidence, "
    "or accept the loss",
    "changed_since": "look at what is there now and whose it is: to keep it, accept the loss; to have the old value, "
    "put it back by hand and mark it undone; retry once the world shows again what the call wrote",
    "unknown": "find out at the remote whether the call happened; then mark it present or absent, or accept the loss",
    "irreversible": "put it right by hand and mark it undone, or accept the loss",
    "unclassified": "declare its class and undo; put this one right by hand and mark it undone, or accept the loss",
    "no_undo": "declare an undo for the tool; put this one right by hand and mark it undone, or accept the loss",
    "window_closed": "undo it by hand and mark it undone, or accept the loss; retry if the remote still takes it",
    "window_closing": "see what its undo waits for, or undo it by hand before it is too late and mark it undone",
    "arguments_missing": "find the output at the remote, undo by hand and mark it undone, or accept the loss",
    "contradiction": "look at the remote: two ends of one call were reported, and it counts as having happened",
    "effect_after_success": "find out whether the call happened, and decide whether it stands: it was begun after "
    "success was confirmed",
    "failed_after_success": "ask for undoing if it should be undone: success was claimed before, so nothing was",
    "approval": "look at what the agent asks for; then approve it, for a time, or reject it",
    "not_approved": "look at what was called, and put it right by hand or let it stand: nobody had approved it",
    "unreadable": "redrive the record from the dead-letter topic once it can be read, or rule on it",
    "start_gone": "look outside of amends for what it did: the ledger was kept for a shorter time than it ran",
    "policy_unreadable": "bring the processors to the version of the agents; meanwhile the default policy is kept",
    "agent_failed": "look at what the agent said; then have its workflow resumed, or ask for its undoing",
    "agent_silent": "look after the agent; then have its workflow resumed, or ask for its undoing",
    "deadline_passed": "let it run on, or ask for its undoing",
    "unfinished": "have it resumed once more, or finish it by hand past its irreversible call; or ask for undoing",
    "savepoint_unknown": "ask again with the name of a savepoint that was taken, or for the whole workflow",
    "child_waits": "decide the incidents of that workflow, and this one closes with them; or accept the loss here",
    "child_gone": "find out what that workflow did, and put it right by hand: the ledger was kept too short a time",
    "stray": "find out who wrote it: it belongs to no known workflow",
    "poisoned": "report it, a bug of amends; the record is in the dead-letter topic",
    "lane_missing": "create the topics of this lane and start a compensator for it, or correct the tool's lane",
}


_OF_CALL = {
    Standing.PRESENT: "happened",
    Standing.OPEN: "still open",
    Standing.UNKNOWN: "may have happened: being found out",
    Standing.ABSENT: "did not happen",
}
_OF_UNDO = {
    UndoState.DUE: "waits to be undone",
    UndoState.OPEN: "is being undone",
    UndoState.DEAD: "NOT undone: a person must decide",
    UndoState.UNDONE: "undone",
    UndoState.NOTHING: "there was nothing to undo",
    UndoState.LOSS: "not undone: the loss was accepted",
}


def what_to_do(kind: str, incident_id: str = "") -> str:
    """Return what a person does about an incident of `kind`, with the command by which this one is decided."""
    words = _TODO.get(kind, "look at the workflow and decide")
    command = command_for(incident_id, kind) if incident_id else ""
    return f"{words}.\n{command}" if command else f"{words}."


def story(workflow: Workflow) -> str:
    """Return what became of the workflow, a line per step, true as of its `folded_to`."""
    steps = told(workflow)
    lines = [_headline(workflow), *(f"- {step.tool_name}: {fate(workflow, step)}" for step in steps[:LINES_MAX])]
    if len(steps) > LINES_MAX:
        lines.append(f"- and {len(steps) - LINES_MAX} earlier steps")
    return "\n".join(lines)


def told(workflow: Workflow) -> list[Step]:
    """Return the steps that the story tells of, newest first: all, and where an agent goes on or has succeeded only
    what its last turn condemned, and what is still owed of those before."""
    header = workflow.header
    newest_first = (workflow.steps[number] for _, number in reversed(workflow.order))
    if workflow.is_turned or (header.phase is Phase.FINISHING and not header.turns):
        return list(newest_first)
    if not header.turns:
        return []
    before = header.turns[:-1]
    return [
        step
        for step in newest_first
        if step.number in workflow.condemned and (step.number in workflow.owing or not is_condemned(step, before))
    ]


def _headline(workflow: Workflow) -> str:
    header = workflow.header
    back = f"; before that, {header.turned_reason}" if header.turns else ""
    match header.phase:
        case Phase.NONE:
            return "no start of this workflow is known"
        case Phase.RUNNING:
            return f"running{back}"
        case Phase.FINISHING:
            return f"success was claimed; outcomes are awaited{back}"
        case Phase.SUCCEEDED:
            return f"succeeded{back}"
        case Phase.TURNED:
            return f"being undone: {header.turned_reason}"
        case Phase.COMPENSATED:
            return f"undone: {header.turned_reason}"
        case Phase.CLOSED_WITH_LOSS:
            kept = "only looked on, nothing was undone" if header.observe else "closed with a loss that was accepted"
            return f"{kept}: {header.turned_reason}"


def fate(workflow: Workflow, step: Step) -> str:
    """Return in a few words what became of a step."""
    condemned = step.number in workflow.condemned
    what = owed(step, workflow.contract_of(step)) if condemned else standing(step)
    undo = step.undo
    if what is Standing.ABSENT and (undo is None or undo.state not in CLOSED_UNDO):
        return "did not happen"
    if undo is None:
        return "happened, waits to be undone" if condemned and what is Standing.PRESENT else _OF_CALL[what]
    if undo.state in CLOSED_UNDO and what is not Standing.ABSENT:
        return "was undone, then an effect came to light: undone again"
    if undo.state is UndoState.DUE and undo.attempt:
        return f"waits for attempt {undo.attempt + 1} of its undo"
    return _OF_UNDO[undo.state]


def incident_summary(header: Header, step: Step | None, trouble: Trouble) -> str:
    subject = step.tool_name if step is not None else "workflow"
    return f"{subject} of {header.workflow_id}: {trouble.kind.replace('_', ' ')}"


def incident_detail(workflow: Workflow, step: Step | None, trouble: Trouble, incident_id: str) -> str:
    """Return what a person needs in five minutes: what happened, what was undone, what is open, what to do."""
    header = workflow.header
    parts = [f"Why: {trouble.reason}."]
    if step is not None:
        parts.append(f"Step {step.step_id} ({step.tool_name}, first seen at offset {step.first_offset}).")
        if step.undo is not None and step.undo.started:
            key = undo_key(step.step_id, step.undo.generation)
            last = f"; the last said: {step.undo.last_error}" if step.undo.last_error else ""
            parts.append(f"Attempts spent on its undo: {step.undo.spent}{last}.")
            parts.append(f"The undo's key at the remote: {key}.")
    if header.phase is not Phase.NONE:
        when = "opened" if trouble.closed_at_ms is None else "closed"
        parts.append(f"Agent {header.agent_id or '(unnamed)'}, ledger offset {header.started_offset}.")
        parts.append(f"When this was {when}:\n{story(workflow)}")
    if trouble.closed_at_ms is None:
        parts.append(f"To do: {what_to_do(trouble.kind, incident_id)}")
    return "\n".join(parts)
