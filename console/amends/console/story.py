"""What happened to one workflow: its facts as a time line, a row for each step, what is open, and what to do. Pure.

This is a reading for people. What counts was decided by the fold and stands in the echo; where the two seem to differ,
the echo is right and the story is behind or ahead of it by a few facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from amends.console.phrases import of_fact
from amends.console.read_model import CLOSED_PHASES
from amends.console.steps import Placed, StepRow, steps_of
from amends.schemas.commands import Incident, IncidentState, WorkflowEcho
from amends.schemas.contract import Effect
from amends.schemas.facts import (
    UNKNOWN_OFFSET,
    Fact,
    StepEvent,
    StepStatus,
    WorkflowEvent,
    WorkflowStatus,
)
from amends.schemas.family import CHILD_STARTED_OFFSET, number_of

UNREADABLE = "a record nobody could read"


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the time line."""

    offset: int
    at_ms: int
    who: str
    what: str
    times: int = 1  # so often in a row; the last time is shown, since of proposals that is the one that counted


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A workflow that this one began as its child."""

    workflow_id: str
    started_offset: int  # where CHILD_STARTED stands
    closed_as: str = ""  # as it answered when it was asked to be undone


@dataclass(frozen=True, slots=True)
class Story:
    """A workflow for people."""

    workflow_id: str
    workflow_offset: int
    echo: WorkflowEcho | None
    moments: tuple[Moment, ...]
    steps: tuple[StepRow, ...]
    open: tuple[str, ...]
    to_do: tuple[str, ...]
    heartbeats: int = 0
    parent: str = ""
    children: tuple[ChildRow, ...] = ()


def tell(workflow_id: str, echo: WorkflowEcho | None, placed: Sequence[Placed], incidents: Iterable[Incident]) -> Story:
    """Return the story of the newest instance of a workflow.

    Args:
        echo: the last word of the fold, if there is one yet.
        placed: all that stands under the workflow's key, in order.
        incidents: the incidents there are; those of others are left out.
    """
    begin = echo.workflow_offset if echo is not None and echo.workflow_offset >= 0 else _newest_start(placed)
    mine = [item for item in placed if _belongs(item, begin)]
    steps = steps_of(mine)
    tools = _names(steps)
    shown = [item for item in mine if not _is_heartbeat(item.fact)]
    moments = _without_repeats([_moment(item, tools) for item in shown])
    to_decide = [
        incident
        for incident in incidents
        if incident.workflow_id == workflow_id
        and incident.state is IncidentState.OPEN
        and incident.workflow_offset in (begin, UNKNOWN_OFFSET)
    ]
    return Story(
        workflow_id,
        begin,
        echo,
        moments,
        tuple(steps),
        tuple(_open(echo, steps, to_decide)),
        tuple(_to_do(echo, steps, to_decide)),
        len(mine) - len(shown),
        _parent(mine),
        _children(mine),
    )


def _parent(placed: Sequence[Placed]) -> str:
    starts = (i.fact for i in placed if isinstance(i.fact, WorkflowEvent) and i.fact.status is WorkflowStatus.STARTED)
    return next((fact.parent_workflow_id or "" for fact in starts), "")


def _children(placed: Sequence[Placed]) -> tuple[ChildRow, ...]:
    found: dict[int, ChildRow] = {}
    for item in placed:
        if not isinstance(item.fact, WorkflowEvent) or item.fact.child_workflow_id is None or item.fact.detached:
            continue
        if item.fact.status is WorkflowStatus.CHILD_STARTED:
            found[item.offset] = ChildRow(item.fact.child_workflow_id, item.offset)
        elif item.fact.status is WorkflowStatus.CHILD_CLOSED:
            at = number_of(item.fact, CHILD_STARTED_OFFSET)
            if at in found:
                found[at] = replace(found[at], closed_as=item.fact.closed_as or "")
    return tuple(found.values())


def _names(steps: Sequence[StepRow]) -> dict[str, str]:
    """Name each step by its tool, with its short id where the workflow called the tool in several steps."""
    called = Counter(step.tool for step in steps)
    return {s.step_id: f"{s.tool} ({s.step_id[:8]})" if called[s.tool] > 1 else s.tool for s in steps}


def _newest_start(placed: Sequence[Placed]) -> int:
    starts = [
        item.offset
        for item in placed
        if isinstance(item.fact, WorkflowEvent)
        and item.fact.status is WorkflowStatus.STARTED
        and item.fact.workflow_offset == UNKNOWN_OFFSET
    ]
    return starts[-1] if starts else UNKNOWN_OFFSET


def _belongs(item: Placed, begin: int) -> bool:
    named = UNKNOWN_OFFSET if item.fact is None else item.fact.workflow_offset
    return named == begin or (named == UNKNOWN_OFFSET and item.offset >= begin)


def _is_heartbeat(fact: Fact | None) -> bool:
    return (isinstance(fact, StepEvent) and fact.status is StepStatus.HEARTBEAT) or (
        isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.HEARTBEAT
    )


def _moment(item: Placed, tools: dict[str, str]) -> Moment:
    who, what = ("", UNREADABLE) if item.fact is None else of_fact(item.fact, tools)
    return Moment(item.offset, item.appended_at_ms, who, what)


def _without_repeats(moments: Iterable[Moment]) -> tuple[Moment, ...]:
    found: list[Moment] = []
    for moment in moments:
        if found and (found[-1].who, found[-1].what) == (moment.who, moment.what):
            found[-1] = replace(moment, times=found[-1].times + 1)
        else:
            found.append(moment)
    return tuple(found)


# --- what is open, what to do ----------------------------------------------------------------------------------------


def _open(echo: WorkflowEcho | None, steps: Sequence[StepRow], incidents: Sequence[Incident]) -> list[str]:
    epoch = echo.epoch if echo is not None else 0
    asked = {incident.step_id: incident.incident_id[:8] for incident in incidents}
    said = []
    for step in steps:
        words = _open_words(step, _is_condemned(step, epoch))
        if words:
            waits = f"; incident {asked[step.step_id]}" if step.step_id in asked else ""
            said.append(f"{step.tool} ({step.step_id[:8]}): {words}{waits}")
    return said


def _open_words(step: StepRow, condemned: bool) -> str:
    if step.undo_open:
        return "its undo has not ended"
    if step.status == "open":
        return "the call has not ended"
    if step.status == "unknown":
        return "nobody knows if it happened"
    if condemned and step.status == "present" and not step.undo_closed:
        return "is still there" + (f" ({step.undo})" if step.undo else "")
    return ""


def _is_condemned(step: StepRow, epoch: int) -> bool:
    return step.epoch < epoch and step.effect is not Effect.NONE


def _to_do(echo: WorkflowEcho | None, steps: Sequence[StepRow], incidents: Sequence[Incident]) -> list[str]:
    if incidents:
        return [
            f"decide on incident {i.incident_id[:8]}: {i.summary} (amends incidents show {i.incident_id[:8]})"
            for i in incidents
        ]
    if echo is None:
        return ["nothing was decided yet: is a processor running? (amends topics check)"]
    if echo.phase in CLOSED_PHASES:
        return []
    return ["nothing: wait"] if _open(echo, steps, ()) or not steps else ["nothing"]
