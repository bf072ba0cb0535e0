"""What a ledger that forgets lets nobody know: a workflow that has closed is not carried on."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.case import Case, fold_one, instances_of

from amends.processors.partition import Partition
from amends.processors.terms import Terms
from amends.schemas.commands import Phase

CLOSED = (Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS, Phase.SUCCEEDED)
GONE = "start_gone"


def unknowable(case: Case, owner: Partition, terms: Terms, workflow_ids: Iterable[str]) -> set[int]:
    """Return the instances, by where they began, of which the whole ledger tells what its owner can't know.

    Either the instance had closed, and its start was forgotten before somebody woke and wrote to it: the owner tells a
    person that. Or it follows such a one, of which the ledger still held a STARTED that had been refused: for the owner
    that began an instance, which this one's STARTED resumed, and which has closed since.
    """
    found: set[int] = set()
    for workflow_id in workflow_ids:
        told = case.instances(workflow_id)
        slots = owner._slots
        held = [slots.hot(slot) for slot in slots.of(workflow_id.encode()) if slot.parked is None]
        begun = [w.header for w in held if w.header.phase is not Phase.NONE]
        lost = {
            w.header.started_offset
            for w in held
            if w.header.phase is Phase.NONE and any(trouble.kind == GONE for _, trouble in w.open_troubles())
        }
        for workflow in told:
            at, at_ms = workflow.header.started_offset, workflow.header.started_at_ms
            had_closed = at in lost and _had_closed(case, terms, workflow_id, at)
            earlier = [w.header.phase in CLOSED for w in told if w.header.started_offset < at]
            is_begun = any(header.started_offset == at for header in begun)
            resumed = [h for h in begun if h.started_offset < at and h.phase in CLOSED and h.closed_at_ms > at_ms]
            if had_closed or (resumed and earlier and all(earlier) and not is_begun):
                found.add(at)
    return found


def _had_closed(case: Case, terms: Terms, workflow_id: str, started_offset: int) -> bool:
    fold = Partition(case.number, terms)
    for record in case.ledger:
        fold_one(fold, record, case.ledger, 0)
        if record.key == workflow_id.encode() and any(
            w.header.started_offset == started_offset and w.header.phase in CLOSED
            for w in instances_of(fold, workflow_id)
        ):
            return True
    return False
