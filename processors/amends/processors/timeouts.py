"""Which Timeouts a workflow's state calls for, and when each is due. Proposals: the fold judges them."""

from __future__ import annotations

from collections.abc import Iterator

from amends.processors.ladder import Rung, climb, last_end_offset
from amends.processors.state import CLOSED_UNDO, AttemptState, Standing, Step, has_open_attempt, owed, standing
from amends.processors.timers import Silences
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase
from amends.schemas.facts import Timeout, TimeoutKind


def due_timeouts(workflow: Workflow, silences: Silences, now_ms: int) -> Iterator[tuple[int, int, Timeout]]:
    """Yield (due at, lease, Timeout) for everything that is armed."""
    header = workflow.header
    if header.phase is Phase.RUNNING:
        due_ms = silences.heartbeat_due_ms(header.armed_at_ms, header.lease_ms)
        yield due_ms, header.lease_ms, _of_workflow(workflow, TimeoutKind.HEARTBEAT, header.armed_offset, due_ms)
    if header.phase in (Phase.RUNNING, Phase.FINISHING) and header.deadline_ms is not None:
        due_ms = header.started_at_ms + header.deadline_ms
        yield due_ms, header.lease_ms, _of_workflow(workflow, TimeoutKind.DEADLINE, header.started_offset, due_ms)
    for number in workflow.live:
        yield from _of_attempts(workflow, workflow.steps[number])
    for number in workflow.undoing:
        yield from _of_undo(workflow, workflow.steps[number])
    if header.observe:
        return
    if header.phase is Phase.TURNED:
        for number in workflow.owing:
            yield from _of_ladder(workflow, workflow.steps[number], now_ms)
    elif header.phase is Phase.FINISHING:
        for number in workflow.unsure:
            yield from _of_ladder(workflow, workflow.steps[number], now_ms)


def name_of(timeout: Timeout) -> tuple[object, ...]:
    """Return what a Timeout is about: two of one name are the same proposal."""
    t = timeout
    return (t.kind, t.step_id, t.attempt, t.generation, t.undo_attempt, t.epoch, t.armed_offset)


def _of_workflow(workflow: Workflow, kind: TimeoutKind, armed_offset: int, due_ms: int) -> Timeout:
    header = workflow.header
    return Timeout(
        workflow_id=header.workflow_id,
        kind=kind,
        epoch=header.epoch,
        armed_offset=armed_offset,
        due_at_ms=due_ms,
        workflow_offset=header.started_offset,
    )


def _of_attempts(workflow: Workflow, step: Step) -> Iterator[tuple[int, int, Timeout]]:
    header = workflow.header
    for attempt in step.attempts:
        if attempt.state is AttemptState.OPEN:
            due_ms = attempt.armed_at_ms + attempt.lease_ms
            yield (
                due_ms,
                attempt.lease_ms,
                Timeout(
                    workflow_id=header.workflow_id,
                    kind=TimeoutKind.STEP,
                    epoch=attempt.epoch,
                    armed_offset=attempt.armed_offset,
                    due_at_ms=due_ms,
                    workflow_offset=header.started_offset,
                    step_id=step.step_id,
                    attempt=attempt.name,
                ),
            )


def _of_undo(workflow: Workflow, step: Step) -> Iterator[tuple[int, int, Timeout]]:
    undo = step.undo
    assert undo is not None
    due_ms = undo.opened_at_ms + undo.lease_ms
    yield (
        due_ms,
        undo.lease_ms,
        Timeout(
            workflow_id=workflow.header.workflow_id,
            kind=TimeoutKind.UNDO,
            epoch=workflow.header.epoch,
            armed_offset=dict(undo.started).get(undo.attempt, -1),
            due_at_ms=due_ms,
            workflow_offset=workflow.header.started_offset,
            step_id=step.step_id,
            generation=undo.generation,
            undo_attempt=undo.attempt,
        ),
    )


def _of_ladder(workflow: Workflow, step: Step, now_ms: int) -> Iterator[tuple[int, int, Timeout]]:
    """A step on its last rung leaves the ladder by a fact: the fold decides, on the ledger's order and time."""
    turned = workflow.is_turned
    if has_open_attempt(step) or (turned and step.undo is not None and step.undo.state not in CLOSED_UNDO):
        return
    if not turned and any(t.kind == "unknown" and t.closed_at_ms is None for t in step.troubles):
        return
    contract = workflow.contract_of(step)
    what = owed(step, contract) if turned else standing(step)
    if what in (Standing.ABSENT, Standing.OPEN):
        return
    next_rung = climb(step, what, contract, condemned=turned, now_ms=now_ms)
    if next_rung.rung in (Rung.UNDO, Rung.INCIDENT):
        yield (
            next_rung.at_ms,
            4_000,
            Timeout(
                workflow_id=workflow.header.workflow_id,
                kind=TimeoutKind.LADDER,
                epoch=workflow.header.epoch,
                armed_offset=last_end_offset(step),
                due_at_ms=next_rung.at_ms,
                workflow_offset=workflow.header.started_offset,
                step_id=step.step_id,
            ),
        )
