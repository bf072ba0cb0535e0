"""What happened to one workflow: its facts as a time line, a row for each step, what is open, and what to do. Pure.

This is a reading for people. What counts was decided by the fold and stands in the echo; where the two seem to differ,
the echo is right and the story is behind or ahead of it by a few facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from amends.console.phrases import of_fact
from amends.console.read_model import CLOSED_PHASES
from amends.schemas.commands import Incident, IncidentState, WorkflowEcho
from amends.schemas.contract import Effect
from amends.schemas.facts import (
    UNKNOWN_OFFSET,
    Decision,
    Fact,
    Resolution,
    StepEvent,
    StepStatus,
    Timeout,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)

UNREADABLE = "a record nobody could read"
_ENDED = {StepStatus.FAILED, StepStatus.NOT_EXECUTED}
_CLOSING = {UndoStatus.UNDONE: "undone", UndoStatus.NOTHING_TO_UNDO: "nothing to undo"}


@dataclass(frozen=True, slots=True)
class Placed:
    """A fact where it stands on the ledger; None where nobody could read it."""

    offset: int
    appended_at_ms: int
    fact: Fact | None


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the time line."""

    offset: int
    at_ms: int
    who: str
    what: str


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step as the facts read so far have it."""

    step_id: str
    tool: str
    epoch: int
    started_offset: int
    effect: Effect = Effect.UNCLASSIFIED
    attempts: tuple[tuple[str, StepStatus], ...] = ()
    evidence: str = ""  # what a probe or a person said of it: present or absent
    external_resource_ids: tuple[tuple[str, str], ...] = ()
    undo: str = ""
    undo_open: bool = False
    undo_closed: bool = False
    verified: bool = False

    @property
    def status(self) -> str:
        """The join of the attempts: present if any had its effect, and unknown is never rounded."""
        ends = [status for _, status in self.attempts]
        if StepStatus.SUCCEEDED in ends or self.evidence == Decision.PRESENT:
            return "present"
        if StepStatus.STARTED in ends:
            return "open"
        if StepStatus.UNKNOWN in ends and self.evidence != Decision.ABSENT:
            return "unknown"
        return "requested" if StepStatus.REQUESTED in ends else "absent"


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


def tell(workflow_id: str, echo: WorkflowEcho | None, placed: Sequence[Placed], incidents: Iterable[Incident]) -> Story:
    """Return the story of the newest instance of a workflow.

    Args:
        echo: the last word of the fold, if there is one yet.
        placed: all that stands under the workflow's key, in order.
        incidents: the incidents there are; those of others are left out.
    """
    begin = echo.workflow_offset if echo is not None and echo.workflow_offset >= 0 else _newest_start(placed)
    mine = [item for item in placed if _belongs(item, begin)]
    steps = _steps(mine)
    tools = {step.step_id: step.tool for step in steps}
    moments = tuple(_moment(item, tools) for item in mine if not _is_heartbeat(item.fact))
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
        tuple(_open(echo, steps)),
        tuple(_to_do(echo, steps, to_decide)),
        len(mine) - len(moments),
    )


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


# --- steps -----------------------------------------------------------------------------------------------------------


def _steps(placed: Iterable[Placed]) -> list[StepRow]:
    rows: dict[str, StepRow] = {}
    for item in placed:
        fact = item.fact
        if fact is None or isinstance(fact, WorkflowEvent):
            continue
        step_id = getattr(fact, "step_id", None)
        if step_id is None:
            continue
        if step_id not in rows and isinstance(fact, StepEvent):
            rows[step_id] = StepRow(step_id, fact.tool_name, fact.epoch, item.offset)
        if step_id in rows:
            rows[step_id] = _with(rows[step_id], fact)
    return sorted(rows.values(), key=lambda row: row.started_offset)


def _with(row: StepRow, fact: Fact) -> StepRow:
    if isinstance(fact, StepEvent):
        return _with_step_event(row, fact)
    if isinstance(fact, UndoEvent):
        return _with_undo_event(row, fact)
    if isinstance(fact, Timeout):
        lost = tuple(
            (attempt, StepStatus.UNKNOWN if attempt == fact.attempt and end is StepStatus.STARTED else end)
            for attempt, end in row.attempts
        )
        return replace(row, attempts=lost)
    return _with_resolution(row, fact.decision) if isinstance(fact, Resolution) else row


def _with_resolution(row: StepRow, decision: Decision) -> StepRow:
    match decision:
        case Decision.PRESENT:
            return replace(row, evidence=Decision.PRESENT.value)
        case Decision.ABSENT | Decision.MARK_ABSENT:
            return replace(row, evidence=Decision.ABSENT.value)
        case Decision.MARK_UNDONE:
            return replace(row, undo="marked as undone", undo_open=False, undo_closed=True)
        case Decision.ACCEPT_LOSS:
            return replace(row, undo="accepted as a loss", undo_open=False, undo_closed=True)
        case _:
            return row


def _with_step_event(row: StepRow, fact: StepEvent) -> StepRow:
    ends = dict(row.attempts)
    before = ends.get(fact.attempt)
    if fact.status is not StepStatus.HEARTBEAT and _may_follow(before, fact.status):
        ends[fact.attempt] = fact.status
    classified = fact.side_effect_classification is not Effect.UNCLASSIFIED
    return replace(
        row,
        attempts=tuple(ends.items()),
        effect=fact.side_effect_classification if classified else row.effect,
        external_resource_ids=tuple({**dict(row.external_resource_ids), **fact.external_resource_ids}.items()),
    )


def _may_follow(before: StepStatus | None, status: StepStatus) -> bool:
    """Say whether an attempt may go from `before` to `status`: never back, and a success is never taken away."""
    if before in (None, StepStatus.REQUESTED):
        return True
    if before is StepStatus.STARTED:
        return status is not StepStatus.REQUESTED
    if before is StepStatus.UNKNOWN:
        return status is StepStatus.SUCCEEDED or status in _ENDED
    return status is StepStatus.SUCCEEDED


def _with_undo_event(row: StepRow, fact: UndoEvent) -> StepRow:
    if row.undo_closed and fact.status is not UndoStatus.UNDONE:
        return row
    count = f"attempt {fact.attempt}" + (f" of generation {fact.generation}" if fact.generation > 1 else "")
    said = _CLOSING.get(fact.status) or f"{count} {fact.status.value.lower()}"
    return replace(
        row,
        undo=said + (", verified" if fact.verified else ""),
        undo_open=fact.status is UndoStatus.STARTED,
        undo_closed=fact.status in _CLOSING,
        verified=fact.verified or row.verified,
    )


# --- what is open, what to do ----------------------------------------------------------------------------------------


def _open(echo: WorkflowEcho | None, steps: Sequence[StepRow]) -> list[str]:
    epoch = echo.epoch if echo is not None else 0
    said = []
    for step in steps:
        name = f"{step.tool} ({step.step_id[:8]})"
        if step.status in ("open", "unknown"):
            said.append(
                f"{name}: {'the call has not ended' if step.status == 'open' else 'nobody knows if it happened'}"
            )
        if step.undo_open:
            said.append(f"{name}: its undo has not ended")
        elif _is_condemned(step, epoch) and step.status == "present" and not step.undo_closed:
            said.append(f"{name}: is still there, to be undone" + (f" ({step.undo})" if step.undo else ""))
    return said


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
    return ["nothing: wait" if _open(echo, steps) or not steps else "nothing"]
