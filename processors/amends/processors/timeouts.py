"""Which Timeouts a workflow's state calls for, and when each is due. Proposals: the fold judges them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from amends.processors.agenda import Due
from amends.processors.ladder import Rung, climb, last_end_offset, span_of
from amends.processors.policies import finish_due_ms
from amends.processors.state import (
    ATTEMPT_OPEN,
    CLOSED_UNDO,
    NOWHERE,
    RUNNING,
    Header,
    Standing,
    Step,
    UndoState,
    has_open_attempt,
    open_trouble,
    owed,
    standing,
)
from amends.processors.timers import Silences
from amends.processors.undos import forgotten_at_ms
from amends.processors.windows import armed_offset
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase
from amends.schemas.contract import Contract
from amends.schemas.facts import Timeout, TimeoutKind

_FINISHING: Final = Phase.FINISHING

LADDER_LEASE_MS = 4_000
"""A quarter of it lies between two proposals to leave the ladder."""


class Armed(NamedTuple):
    """A timer. Two of one name are the same proposal; the record is made only when it is written."""

    due_ms: int
    lease_ms: int
    name: tuple[TimeoutKind, int, str | None, str | None, int | None, int | None]
    """Kind, offset of the fact that armed it, step, attempt, generation and attempt of an undo."""
    epoch: int


def armed(workflow: Workflow, silences: Silences, now_ms: int) -> Iterator[Armed]:
    """Yield everything that is armed; of what time alone brings on, that which is due, and the next."""
    header = workflow.header
    if header.is_vacant:
        if open_trouble(header.troubles, "unfinished") is None:
            name = (TimeoutKind.HEARTBEAT, header.armed_offset, None, None, None, None)
            yield Armed(finish_due_ms(header), header.lease_ms, name, header.epoch)
    elif header.phase is Phase.RUNNING and open_trouble(header.troubles, "agent_silent") is None:
        due_ms = silences.heartbeat_due_ms(header.armed_at_ms, header.lease_ms)
        name = (TimeoutKind.HEARTBEAT, header.armed_offset, None, None, None, None)
        yield Armed(due_ms, header.lease_ms, name, header.epoch)
    if header.deadline_ms is not None and _is_bound(header):
        due_ms = header.started_at_ms + header.deadline_ms
        name = (TimeoutKind.DEADLINE, header.started_offset, None, None, None, None)
        yield Armed(due_ms, header.lease_ms, name, header.epoch)
    for number in workflow.live:
        yield from _of_attempts(workflow.steps[number])
    for number in workflow.undoing:
        yield _of_undo(workflow.steps[number], header.epoch)
    if not header.observe:
        yield from _of_windows(workflow, now_ms)
    _refresh_ladders(workflow, now_ms)
    for at_ms, number in workflow.ladders.upcoming(now_ms):
        timer = _of_ladder(workflow, workflow.steps[number], now_ms)
        if timer is None:  # it changed unnoticed: nothing guards this as the fold is guarded
            workflow.ladders.touch(number)
        else:
            yield timer._replace(due_ms=at_ms)


def put_off(workflow: Workflow, timer: Armed, at_ms: int) -> bool:
    """Arm a timer that was proposed for `at_ms`; return whether it is of those kept by time: hundreds may be due
    at once, and each fact would ask of all until they are answered."""
    kind, armed_offset, step_id, *_ = timer.name
    if step_id is None or (
        kind is not TimeoutKind.LADDER and (kind is not TimeoutKind.UNDO or armed_offset != NOWHERE)
    ):
        return False
    return workflow.ladders.put_off(workflow.by_id[step_id], at_ms)


def _refresh_ladders(workflow: Workflow, now_ms: int) -> None:
    header = workflow.header

    def look(number: int) -> Due:
        step = workflow.steps[number]
        timer = _of_ladder(workflow, step, now_ms)
        return Due(None if timer is None else timer.due_ms, *span_of(step, _climbed(workflow, step), now_ms))

    workflow.ladders.refresh(now_ms, (header.phase is _FINISHING, header.observe, header.epoch), look)


def soonest_ms(
    workflow: Workflow, silences: Silences, now_ms: int, proposed: Mapping[tuple[object, ...], int]
) -> int | None:
    """Return when the next Timeout is to be proposed, None if never.

    Args:
        proposed: when what was proposed is to be again, by name, whatever a silence has added to its time meanwhile:
            the proposals are what splits the silence of a lone dead agent.
    """
    header = workflow.header
    if proposed or header.troubles or header.deadline_ms is not None or header.is_vacant:
        timers = armed(workflow, silences, now_ms)
        return min((proposed.get(timer.name, timer.due_ms) for timer in timers), default=None)
    # What is armed for most workflows needs no names: the heartbeat, leases of calls and undos, the next window
    # and the next to leave the ladder.
    soonest = silences.heartbeat_due_ms(header.armed_at_ms, header.lease_ms) if header.phase is RUNNING else None
    for number in workflow.live:
        for attempt in workflow.steps[number].attempts:
            if attempt.state is ATTEMPT_OPEN:
                due_ms = attempt.armed_at_ms + attempt.lease_ms
                soonest = due_ms if soonest is None or due_ms < soonest else soonest
    for number in workflow.undoing:
        undo = workflow.steps[number].undo
        assert undo is not None
        due_ms = undo.opened_at_ms + undo.lease_ms
        soonest = due_ms if soonest is None or due_ms < soonest else soonest
    if workflow.windows.entries and not header.observe:
        due_ms = workflow.windows.entries[0][0]
        soonest = due_ms if soonest is None or due_ms < soonest else soonest
    if workflow.ladders.known:
        _refresh_ladders(workflow, now_ms)
        first_ms = workflow.ladders.first_ms()
        if first_ms is not None and (soonest is None or first_ms < soonest):
            soonest = first_ms
    return soonest


def _is_bound(header: Header) -> bool:
    """Whether the deadline still ends something. Past its pivot a workflow has a time of its own to be finished in."""
    running = header.phase in (Phase.RUNNING, Phase.FINISHING) and not header.finishing_since_ms
    return running and open_trouble(header.troubles, "deadline_passed") is None


def timeout_of(workflow: Workflow, timer: Armed) -> Timeout:
    """Return the record that proposes it."""
    kind, armed_offset, step_id, attempt, generation, undo_attempt = timer.name
    return Timeout(
        workflow_id=workflow.header.workflow_id,
        kind=kind,
        epoch=timer.epoch,
        armed_offset=armed_offset,
        due_at_ms=timer.due_ms,
        workflow_offset=workflow.header.started_offset,
        step_id=step_id,
        attempt=attempt,
        generation=generation,
        undo_attempt=undo_attempt,
    )


def _of_attempts(step: Step) -> Iterator[Armed]:
    for attempt in step.attempts:
        if attempt.state is ATTEMPT_OPEN:
            due_ms = attempt.armed_at_ms + attempt.lease_ms
            name = (TimeoutKind.STEP, attempt.armed_offset, step.step_id, attempt.name, None, None)
            yield Armed(due_ms, attempt.lease_ms, name, attempt.epoch)


def _of_undo(step: Step, epoch: int) -> Armed:
    undo = step.undo
    assert undo is not None
    armed_offset = dict(undo.started).get(undo.attempt, -1)
    name = (TimeoutKind.UNDO, armed_offset, step.step_id, None, undo.generation, undo.attempt)
    return Armed(undo.opened_at_ms + undo.lease_ms, undo.lease_ms, name, epoch)


def _of_windows(workflow: Workflow, now_ms: int) -> Iterator[Armed]:
    """Those that are due, and the next one."""
    for due_ms, number in workflow.windows.entries:
        step = workflow.steps[number]
        name = (TimeoutKind.WINDOW, armed_offset(step), step.step_id, None, None, None)
        yield Armed(due_ms, LADDER_LEASE_MS, name, workflow.header.epoch)
        if due_ms > now_ms:
            return


def _climbed(workflow: Workflow, step: Step) -> Contract | None:
    """Return the contract by which a step climbs. Who only looks on asks nobody."""
    return None if workflow.header.observe else workflow.contract_of(step)


def _of_ladder(workflow: Workflow, step: Step, now_ms: int) -> Armed | None:
    """A step on its last rung leaves the ladder by a fact: the fold decides, on the ledger's order and time."""
    header, number = workflow.header, step.number
    condemned = number in workflow.climbing and not header.observe
    if not condemned:
        awaited = number in workflow.unsure and (header.observe or number not in workflow.condemned)
        if header.phase is not _FINISHING or not awaited:
            return None
        if any(t.kind == "unknown" and t.closed_at_ms is None for t in step.troubles):
            return None
    elif step.undo is not None and step.undo.state is UndoState.DUE:
        undo = step.undo
        forgotten_ms = forgotten_at_ms(undo, workflow.contract_of(step))
        waiting = (TimeoutKind.UNDO, NOWHERE, step.step_id, None, undo.generation, undo.attempt)
        return None if forgotten_ms is None else Armed(forgotten_ms, LADDER_LEASE_MS, waiting, header.epoch)
    if has_open_attempt(step) or (condemned and step.undo is not None and step.undo.state not in CLOSED_UNDO):
        return None
    contract = _climbed(workflow, step)
    what = owed(step, contract) if condemned else standing(step)
    if what in (Standing.ABSENT, Standing.OPEN):
        return None
    next_rung = climb(step, what, contract, condemned=condemned, now_ms=now_ms)
    if next_rung.rung not in (Rung.UNDO, Rung.INCIDENT):
        return None
    name = (TimeoutKind.LADDER, last_end_offset(step), step.step_id, None, None, None)
    return Armed(next_rung.at_ms, LADDER_LEASE_MS, name, header.epoch)
