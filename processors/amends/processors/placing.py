"""Whose fact it is: which instance of a workflow id a fact belongs to.

Rules
- State is kept per id *and* where the instance began. A fact belongs to the instance it names; one that names none
  belongs to the newest, or, appended after the grace, to none.
- A STARTED that finds no state, or one closed for longer than the grace, begins a new instance; else it is a resume, or
  a refusal to be.
- A parent's request belongs to the child that the parent announced where the request says; an id may be in use by
  somebody else. One that is not held is looked for on the ledger.
- All of it follows from the ledger: the grace is counted in append times, from the fact that closed the instance to the
  one that is placed. Whether the state was dropped meanwhile changes nothing, so a restart decides the same.
"""

from __future__ import annotations

from enum import Enum

from amends.processors import asking
from amends.processors.saga import is_last_part
from amends.processors.slots import Slot, Slots
from amends.processors.state import CLOSED_PHASES, NOWHERE
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase
from amends.schemas.facts import (
    UNKNOWN_OFFSET,
    Carry,
    Fact,
    Resolution,
    StepEvent,
    UndoEvent,
    WorkflowEvent,
    WorkflowStatus,
)

_OF_STEPS = (StepEvent, UndoEvent)
_OPEN = frozenset({Phase.RUNNING, Phase.FINISHING, Phase.TURNED})


class Place(Enum):
    """Where a fact belongs that belongs to no instance held."""

    NEW = "it begins an instance"
    NOBODY = "no instance"
    FORGOTTEN = "an instance that is not held"
    UNSEEN = "a child that is not held"
    WAITING = "to be seen when an instance was folded again"


def closed_at_ms(workflow: Workflow) -> int | None:
    """Return when the grace of a workflow began; None if something of it is open."""
    header = workflow.header
    if header.unread or workflow.open_troubles():
        return None
    if header.phase is Phase.NONE:
        return max((t.closed_at_ms or 0 for t in header.troubles), default=0)
    if header.phase not in CLOSED_PHASES or workflow.is_unwinding:
        return None
    return header.closed_at_ms


def is_forgotten(workflow: Workflow, at_ms: int, grace_ms: int) -> bool:
    """Whether a workflow with nothing open has been closed for longer than the grace at `at_ms`."""
    if workflow.header.phase not in CLOSED_PHASES or at_ms <= workflow.header.closed_at_ms + grace_ms:
        return False
    return closed_at_ms(workflow) is not None


def place_of(slots: Slots, key: bytes, fact: Fact, offset: int, at_ms: int, grace_ms: int) -> Slot | Place:
    """Return the instance that a fact at `offset` belongs to."""
    held = slots.of(key)
    if len(held) == 1 and isinstance(fact, _OF_STEPS):  # nearly all facts end here
        slot = held[0]
        workflow = slot.workflow
        if workflow is not None and slot.parked is None and fact.workflow_offset in (UNKNOWN_OFFSET, slot.started):
            header = workflow.header
            if header.phase in _OPEN and not header.superseded:
                return slot
    if isinstance(fact, WorkflowEvent) and asking.is_request(fact):
        return _asked_of(slots, held, fact)
    named = fact.workflow_offset
    starts = isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.STARTED
    if named != UNKNOWN_OFFSET and not starts:
        for slot in held:
            if slot.started == named and slot.parked is None:
                is_gone = slots.hot(slot).header.phase is Phase.NONE
                if is_gone and (is_parked(held) or (isinstance(fact, Carry) and is_last_part(fact))):
                    break  # a Carry that waits for another instance must not be overtaken by what stands behind it
                return slot
    if isinstance(fact, Resolution) and fact.unread_offset is not None:
        ruled = _with_unread(slots, held, fact.unread_offset)
        if ruled is not None:
            return ruled
    if named == UNKNOWN_OFFSET or starts:
        found = _newest(slots, held, at_ms, grace_ms)
        return Place.NEW if found is Place.NOBODY and starts else found
    if is_parked(held):
        return Place.WAITING
    return Place.FORGOTTEN if 0 <= named < offset else Place.NOBODY


def place_of_unread(slots: Slots, key: bytes, at_ms: int, grace_ms: int) -> Slot | Place:
    """Return the instance that a record nobody can read is taken for: the newest."""
    return _newest(slots, slots.of(key), at_ms, grace_ms)


def place_of_redriven(slots: Slots, key: bytes, unread_offset: int) -> Slot | None:
    """Return the instance that waits for the record that stood at `unread_offset`."""
    return _with_unread(slots, slots.of(key), unread_offset)


def newest_of(slots: Slots, key: bytes) -> Slot | None:
    """Return the newest instance of an id if it is held, closed or not."""
    for slot in reversed(slots.of(key)):
        if slot.parked is None and slot.started != NOWHERE:
            header = slots.hot(slot).header
            if header.phase is not Phase.NONE and not header.superseded:
                return slot
    return None


def is_parked(held: tuple[Slot, ...]) -> bool:
    return any(slot.parked is not None for slot in held)


def unborn_of(slots: Slots, key: bytes, fact: WorkflowEvent) -> Slot | None:
    """Return what is held of a child that was asked for before this, its STARTED, came."""
    if fact.status is not WorkflowStatus.STARTED:
        return None
    for slot in slots.of(key):
        if slot.parked is None and asking.is_unborn_of(slots.hot(slot).header, fact):
            return slot
    return None


def _asked_of(slots: Slots, held: tuple[Slot, ...], request: WorkflowEvent) -> Slot | Place:
    """Return the child that a parent's request means. One that is held for another parent is another workflow."""
    parked = is_parked(held)
    for slot in reversed(held):
        if slot.parked is None and asking.is_asked(family := slots.hot(slot).header.family, request):
            # The facts of one that began don't wait for another either: behind them it would come too late.
            return Place.WAITING if parked and family is not None and family.unborn else slot
    return Place.WAITING if parked else Place.UNSEEN


def _newest(slots: Slots, held: tuple[Slot, ...], at_ms: int, grace_ms: int) -> Slot | Place:
    newest = newest_of(slots, held[0].workflow_key) if held else None
    if newest is None:
        return Place.WAITING if is_parked(held) else Place.NOBODY
    return Place.NOBODY if is_forgotten(slots.hot(newest), at_ms, grace_ms) else newest


def _with_unread(slots: Slots, held: tuple[Slot, ...], unread_offset: int) -> Slot | None:
    for slot in held:
        if slot.parked is None and unread_offset in slots.hot(slot).header.unread:
            return slot
    return None
