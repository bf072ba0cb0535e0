"""A person's ruling on an incident as facts for the ledger, or why it would change nothing. Pure.

A ruling names what it was taken on: the incident's version, or, where it is evidence, the attempts it speaks of. The
fold takes it or leaves it; refused here is only what would surely be left, so that nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amends.console.steps import Placed, StepRow, steps_of
from amends.schemas.commands import Incident, IncidentState, Phase
from amends.schemas.decisions import ACKNOWLEDGED, BREAKER_OPEN, KIND, TOOL_MENDED, decisions_for, word_of
from amends.schemas.edited import why_unfit
from amends.schemas.facts import Decision, Party, Resolution, StepStatus

EVIDENCE = frozenset({Decision.PRESENT, Decision.MARK_ABSENT})


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a person decided, and why."""

    decision: Decision
    by: str
    reason: str
    evidence: str = ""
    arguments: bytes | None = None  # edit_args: a JSON object


class Refused(Exception):  # noqa: N818 - it says what is true
    """The ruling would change nothing; the message says why and what to do. `late`: the incident is closed."""

    def __init__(self, words: str, *, late: bool = False) -> None:
        super().__init__(words)
        self.late = late


def resolutions(
    incident: Incident,
    ruling: Ruling,
    *,
    phase: Phase | None,
    placed: Sequence[Placed],
    unread: Iterable[int],
    now_ms: int,
) -> list[Resolution]:
    """Return the facts of a ruling: one, or one for each record nobody could read.

    Args:
        phase: of the workflow, as the fold last said; None if it said nothing.
        placed: all that stands under the workflow's key, in order.
        unread: where the records stand that the processor could not read or fold.

    Raises:
        Refused: the incident takes no such ruling.
    """
    _check_kind(incident, ruling)
    _check_arguments(ruling)
    if incident.kind == "unreadable":
        return [_resolution(incident, ruling, now_ms, unread_offset=o) for o in _to_rule_on(unread, placed)]
    if ruling.decision in EVIDENCE:
        return [_resolution(incident, ruling, now_ms, attempts=_attempts(incident, ruling, placed))]
    if incident.kind == "unknown" and phase is Phase.FINISHING:
        raise Refused(
            "its agent claims success and waits for this call, so there is no undo to rule on: find out whether the "
            "call happened, then say present or mark-absent"
        )
    return [_resolution(incident, ruling, now_ms)]


def _check_kind(incident: Incident, ruling: Ruling) -> None:
    if incident.state is IncidentState.CLOSED:
        by = f" by {incident.closed_by}" if incident.closed_by else ""
        raise Refused(f"incident {incident.incident_id} was closed{by}: nothing is left to decide", late=True)
    possible = decisions_for(incident.kind)
    if not possible or (not incident.workflow_id and incident.kind != BREAKER_OPEN):
        raise Refused(f"no decision closes an incident of the kind {incident.kind!r}: see its `To do`")
    if ruling.decision not in possible:
        words = ", ".join(word_of(decision) for decision in possible)
        raise Refused(f"an incident of the kind {incident.kind!r} can be decided by: {words}")


def _check_arguments(ruling: Ruling) -> None:
    if ruling.decision is not Decision.EDIT_ARGS:
        if ruling.arguments is not None:
            raise Refused(f"only {word_of(Decision.EDIT_ARGS)} takes arguments")
        return
    unfit = why_unfit(ruling.arguments)
    if unfit is not None:
        raise Refused(f"these can't be the arguments of an undo: {unfit} (--arguments takes a JSON object)")


def _attempts(incident: Incident, ruling: Ruling, placed: Sequence[Placed]) -> tuple[str, ...]:
    """Return all attempts of the incident's step: evidence speaks only for those it names."""
    row = next((row for row in steps_of(placed) if row.step_id == incident.step_id), None)
    if row is None:
        raise Refused("the ledger no longer holds the calls of this step: mark its undo, or accept the loss")
    ends = {end for _, end in row.attempts}
    if StepStatus.SUCCEEDED in ends or row.evidence == Decision.PRESENT:
        raise Refused(f"it is known that {row.tool} happened: mark it undone, or accept the loss")
    if StepStatus.STARTED in ends:
        raise Refused(f"a call of {row.tool} has not ended yet: decide when it has")
    if StepStatus.UNKNOWN not in ends:
        raise Refused(
            f"it is known how each call of {row.tool} ended, so there is no {word_of(ruling.decision)} to say"
        )
    return _names(row)


def _names(row: StepRow) -> tuple[str, ...]:
    return tuple(name for name, _ in row.attempts)


def _to_rule_on(unread: Iterable[int], placed: Sequence[Placed]) -> list[int]:
    ruled = {
        item.fact.unread_offset
        for item in placed
        if isinstance(item.fact, Resolution) and item.fact.unread_offset is not None
    }
    found = sorted({*unread, *(item.offset for item in placed if item.fact is None)} - ruled)
    if not found:
        raise Refused("neither ledger nor dead-letter topic holds a record of this workflow that was not ruled on")
    return found


def _resolution(
    incident: Incident,
    ruling: Ruling,
    now_ms: int,
    *,
    attempts: tuple[str, ...] = (),
    unread_offset: int | None = None,
) -> Resolution:
    return Resolution(
        workflow_id=incident.workflow_id,
        decision=ruling.decision,
        writer=Party.PERSON,
        by=ruling.by,
        step_id=incident.step_id,
        workflow_offset=incident.workflow_offset,
        version=incident.version,
        attempts=attempts,
        reason=ruling.reason,
        evidence=ruling.evidence,
        undo_arguments=ruling.arguments,
        unread_offset=unread_offset,
        timestamp_ms=now_ms,
        attributes=_attributes(incident),
    )


def _attributes(incident: Incident) -> dict[str, str]:
    if incident.kind == BREAKER_OPEN:
        return {TOOL_MENDED: incident.tool_name}
    return {KIND: incident.kind} if incident.kind in ACKNOWLEDGED else {}
