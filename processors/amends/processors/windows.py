"""The time in which a step can be undone (`UndoTerms.window_ms`), counted from the append time of its STARTED.

A step whose window has closed is class I: an incident. Before it comes to that a person is warned, when a quarter of
the window is left and the undo still waits. Both are Timeouts, proposed by the processor and judged by the fold.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from amends.processors.state import CLOSED_UNDO, Step, Trouble, UndoState, open_trouble
from amends.schemas.contract import Contract

CLOSING = "window_closing"
CLOSED = "window_closed"
_WARNED_PART = 4


def closes_at_ms(step: Step, contract: Contract | None) -> int | None:
    """Return when the step can no longer be undone; None if it always can, or a person said to try nevertheless."""
    if contract is None or contract.undo is None or contract.undo.window_ms is None:
        return None
    if step.undo is not None and step.undo.late:
        return None
    return step.first_at_ms + contract.undo.window_ms


def is_closed(step: Step, contract: Contract | None, at_ms: int) -> bool:
    closed_ms = closes_at_ms(step, contract)
    return closed_ms is not None and at_ms >= closed_ms


def warning(step: Step) -> Trouble | None:
    """Return the open incident that says that the window is about to close."""
    return open_trouble(step.troubles, CLOSING)


def warned_at_ms(step: Step, contract: Contract | None) -> int | None:
    """Return when a person is warned that the window closes."""
    closed_ms = closes_at_ms(step, contract)
    if closed_ms is None or contract is None or contract.undo is None or contract.undo.window_ms is None:
        return None
    return closed_ms - contract.undo.window_ms // _WARNED_PART


def next_at_ms(step: Step, contract: Contract | None) -> int | None:
    """Return when something is to be said about the window of a step that is owed; None if never. While an attempt of
    the undo is open its end is awaited; before the undo is due the ladder decides what becomes of the step."""
    undo = step.undo
    if undo is not None and undo.state in (UndoState.OPEN, UndoState.DEAD):
        return None
    if warning(step) is None:
        return warned_at_ms(step, contract)
    waits_for_ladder = undo is None or undo.state in CLOSED_UNDO
    return None if waits_for_ladder else closes_at_ms(step, contract)


def armed_offset(step: Step) -> int:
    """Return the fact that arms the next timer: the STARTED, then the warning."""
    warned = warning(step)
    return step.first_offset if warned is None else warned.opened_offset


@dataclass(slots=True)
class Timetable:
    """When something is to be done about a step, soonest first."""

    entries: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # (at_ms, number)
    _at_ms: dict[int, int] = field(default_factory=dict[int, int])

    def has(self, number: int) -> bool:
        return number in self._at_ms

    def set(self, number: int, at_ms: int | None) -> None:
        before = self._at_ms.get(number)
        if before == at_ms:
            return
        if before is not None:
            del self.entries[bisect_left(self.entries, (before, number))]
            del self._at_ms[number]
        if at_ms is not None:
            insort(self.entries, (at_ms, number))
            self._at_ms[number] = at_ms
