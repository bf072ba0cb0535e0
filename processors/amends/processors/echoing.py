"""The echo: what a workflow's agent is told, made from the state alone."""

from __future__ import annotations

from amends.processors import approving, story
from amends.processors.state import NOWHERE, Step, UndoState
from amends.processors.workflow import Workflow
from amends.schemas.commands import EndedEpoch, Phase, ToldApproval, ToldStep, WorkflowEcho

STEPS_MAX = 200
"""Steps told one by one to an agent that goes on."""

Echoed = tuple[Phase, int, int, int, int, bool, int, int, tuple[ToldApproval, ...]]
"""What an echo is sent for when it changes."""


def echoed(workflow: Workflow) -> Echoed:
    """Return what the echo says now. The progress of a plan is told only where an agent waits for it."""
    header = workflow.header
    incidents_open = len(workflow.open_troubles()) if workflow.troubled or header.troubles else 0
    dead, unwinding = 0, False
    if header.turns and not workflow.is_turned:
        dead = len(dead_undos(workflow))
        unwinding = _open_undos(workflow, dead) > 0
    return (
        header.phase,
        header.epoch,
        header.asked_offset,
        header.started_offset,
        incidents_open,
        unwinding,
        dead,
        header.fenced_offset,
        approving.told(workflow) if workflow.asked else (),
    )


def dead_undos(workflow: Workflow) -> list[Step]:
    """Return the condemned steps that wait for a person."""
    owing = (workflow.steps[number] for number in sorted(workflow.owing))
    return [step for step in owing if step.undo is not None and step.undo.state is UndoState.DEAD]


def echo_of(workflow: Workflow, now_ms: int) -> WorkflowEcho:
    """Return the echo of a workflow as it stands."""
    header = workflow.header
    goes_on = bool(header.turns) and not workflow.is_turned
    dead = len(dead_undos(workflow)) if header.turns else 0
    return WorkflowEcho(
        workflow_id=header.workflow_id,
        workflow_offset=header.started_offset,
        epoch=header.epoch,
        phase=header.phase,
        folded_to=header.folded_to,
        story=story.story(workflow),
        incidents_open=len(workflow.open_troubles()),
        agent_id=header.agent_id,
        started_at_ms=header.started_at_ms,
        answers_offset=header.asked_offset,
        timestamp_ms=now_ms,
        open_undos=_open_undos(workflow, dead) if header.turns else 0,
        dead_undos=dead,
        savepoint=_savepoint(workflow),
        turns=tuple(EndedEpoch(t.epoch, t.offset) for t in header.turns),
        steps=tuple(_told(workflow, s) for s in story.told(workflow)[:STEPS_MAX]) if goes_on else (),
        approvals=approving.told(workflow) if workflow.asked else (),
        scope=header.scope,
    )


def _open_undos(workflow: Workflow, dead: int) -> int:
    if workflow.header.observe:
        return 0
    running = sum(1 for number in workflow.undoing if number in workflow.condemned and number not in workflow.owing)
    return len(workflow.owing) - dead + running


def _savepoint(workflow: Workflow) -> str:
    """Return the name of the savepoint that the last turn was to, "" for the start or the whole."""
    turns = workflow.header.turns
    if not turns or turns[-1].offset == NOWHERE:
        return ""
    return next((s.name for s in workflow.header.savepoints if s.offset == turns[-1].offset), "")


def _told(workflow: Workflow, step: Step) -> ToldStep:
    contract = workflow.contract_of(step)
    residue = contract.undo.residue if contract is not None and contract.undo is not None else ""
    return ToldStep(
        step.step_id,
        step.tool_name,
        step.call_id,
        story.fate(workflow, step),
        step.number in workflow.owing or step.number in workflow.undoing,
        residue,
    )
