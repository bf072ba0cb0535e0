"""The steps of a workflow, as rows: the attempts of each joined, and how its undo stands. Pure.

The same rules as the fold's, for reading: an attempt never goes back, a success is never taken away, unknown is never
rounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from amends.schemas.contract import Effect
from amends.schemas.facts import (
    Decision,
    Fact,
    Resolution,
    StepEvent,
    StepStatus,
    Timeout,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
)

_ENDED = {StepStatus.FAILED, StepStatus.NOT_EXECUTED}
_CLOSING = {UndoStatus.UNDONE: "undone", UndoStatus.NOTHING_TO_UNDO: "nothing to undo"}


@dataclass(frozen=True, slots=True)
class Placed:
    """A fact where it stands on the ledger; None where nobody could read it."""

    offset: int
    appended_at_ms: int
    fact: Fact | None


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


def steps_of(placed: Iterable[Placed]) -> list[StepRow]:
    """Return the steps of a workflow in the order in which they were started."""
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
    count = f"attempt {fact.attempt + 1}" + (f" of generation {fact.generation}" if fact.generation > 0 else "")
    said = _CLOSING.get(fact.status) or f"{count} {fact.status.value.lower()}"
    return replace(
        row,
        undo=said + (", verified" if fact.verified else ""),
        undo_open=fact.status is UndoStatus.STARTED,
        undo_closed=fact.status in _CLOSING,
        verified=fact.verified or row.verified,
    )
