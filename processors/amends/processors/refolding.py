"""Folding forgotten workflows again, from their starts, beside the partition's own fold.

A pass reads a stretch of the ledger once for all that were wanted when it began. It has slots, contracts and silences
of its own, so an engine may run it in another thread; the partition adopts what came of it. Everything of the id from
the start on is folded by the rules that hold for the partition, so the state is the one that was dropped, and facts
that came since are in it.

If the ledger no longer holds the start, nothing is folded, unless a Carry stands: then a second pass begins behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from amends.processors import asking
from amends.processors.carrying import Carried, Carries
from amends.processors.contracts import ContractBook
from amends.processors.emission import LedgerRecord
from amends.processors.folding import Folding
from amends.processors.hearing import Heard
from amends.processors.outbox import Sent
from amends.processors.parked import Parked
from amends.processors.placing import Place, is_forgotten
from amends.processors.reading import read_fact
from amends.processors.slots import Slot, Slots
from amends.processors.terms import Terms
from amends.processors.timers import Silences
from amends.schemas.codec import UnreadableRecord
from amends.schemas.commands import Phase
from amends.schemas.facts import UNKNOWN_OFFSET, WorkflowEvent, WorkflowStatus

GATHERINGS_MAX = 1_000
"""Workflows folded again in one pass."""


class Gathering:
    """One parked instance: what the ledger holds of its id from its start to `to_offset`.

    Args:
        silences: of the pass, which takes note of every record.
        carried: its state as a Carry has it; the ledger is read from behind that.
        begins: where instances are known to begin, of a stretch that is read again.
    """

    def __init__(
        self,
        key: bytes,
        parked: Parked,
        to_offset: int,
        terms: Terms,
        silences: Silences,
        carried: Carried | None = None,
        begins: frozenset[int] = frozenset(),
    ) -> None:
        self.key = key
        self.parked = parked
        self.from_offset = parked.workflow_offset if carried is None else carried.folded_to + 1
        self.from_ms = parked.from_ms
        """Append time from which on the ledger is wanted; None: from `from_offset`."""
        if self.from_ms is not None:
            self.from_offset = 0  # until the ledger was asked what stands there
        self.to_offset = to_offset
        self.silences = silences if carried is None else carried.silences
        self.is_carried = carried is not None
        self.contracts = ContractBook()
        self.slots = Slots(self.contracts, lambda _: Sent())
        self.unplaced: list[LedgerRecord] = []
        """Records since the instance was parked that belong to none of the instances gathered."""
        self.named_by: LedgerRecord | None = None
        """The record that named the instance."""
        self.carries = Carries(key, parked.workflow_offset)
        self.is_gone = False
        """The ledger no longer holds where it was to begin."""
        self._begins = begins
        self._starts: set[int] = set()
        self._named: set[int] = set()
        self._is_misread = False
        self._terms = terms
        self._start: LedgerRecord | None = None
        self._requests_to = 0
        """Only requests of parents are taken before this offset."""
        self.heard = Heard(parked.since_offset)
        """What was folded for the first time says of tools; before, the partition itself was told."""
        self._folding = Folding(self.slots, self.contracts, self.silences, terms, self.heard)
        if carried is not None:
            carried.put_into(self.slots, self.contracts, key, parked.workflow_offset)

    def located(self, offset: int) -> None:
        """What was appended since `from_ms` begins at `offset`."""
        if self.from_ms is not None:
            self.from_offset = min(offset, self.parked.workflow_offset)

    def begins_at(self, offset: int) -> None:
        """The ledger's oldest record stands at `offset`."""
        is_known = self.parked.from_ms is None  # where the instance began
        may_be_gone = self.from_ms is not None and not is_known and 0 < offset == self.from_offset
        needed_from = self.parked.workflow_offset if self.from_ms is not None and is_known else self.from_offset
        if offset > needed_from or may_be_gone:
            self.is_gone = True
        self.from_offset = max(self.from_offset, offset)

    def extended(self, to_offset: int) -> Gathering:
        """Go on from where it ended."""
        self.from_offset, self.to_offset, self.from_ms = self.to_offset + 1, to_offset, None
        return self

    def announced_at_ms(self) -> int | None:
        """Return when the parent announced the child that was gathered, if it is to be folded once more from there:
        that the parent asked for it before it began stands before its start, whatever it asked again since. None if
        that would say nothing more."""
        found = self.slots.find(self.key, self.parked.workflow_offset)
        family = None if found is None or found.workflow is None else found.workflow.header.family
        if self._start is None or family is None or self.is_gone:
            return None
        return asking.announced_at_ms(read_fact(self._start))

    def from_announcement(self, announced_at_ms: int) -> Gathering:
        """Have the ledger read from where the parent announced the child. Nothing but requests is taken before its
        start: a STARTED there belongs to a life before, or was refused by one, and would begin an instance that hides
        this one."""
        self.from_ms, self.from_offset = asking.looked_for_from_ms(announced_at_ms), 0
        self._requests_to = self.parked.workflow_offset
        return self

    def misread(self) -> frozenset[int]:
        """Return where instances begin, if some of the stretch was taken for something else. Where a child is looked
        for, what was in use when the stretch begins is not known: a STARTED that was refused seems to begin an
        instance, and one that began an instance soon after seems to resume that. But who was refused does nothing,
        and whoever does something names where it began."""
        return frozenset(self._starts & self._named) if self._is_misread and not self._begins else frozenset()

    def take(self, record: LedgerRecord) -> None:
        """Take a record of this key, in order."""
        if not self.from_offset <= record.offset <= self.to_offset:
            return
        if record.offset < self._requests_to and not _is_request(record):
            return
        if record.offset == self.parked.since_offset:
            self.named_by = record
        if self.is_gone:
            self.carries.take(record)
            found = None
        else:
            self.heard.offset = record.offset
            found = self._fold_start(record) if record.offset in self._begins else self._folding.fold(record)
            if self.parked.from_ms is not None:
                self._note(record, found)
            if found is Place.UNSEEN and record.offset <= self.parked.since_offset:
                found = self._unborn(record)
            if self.from_ms is None and record.offset == self.from_offset == self.parked.workflow_offset:
                self._start = record
            self._folding.dead.clear()  # they were sent when the partition met them
            self._folding.nobodys.clear()
            self._folding.touched.clear()
        if not isinstance(found, Slot) and record.offset >= self.parked.since_offset:
            self.unplaced.append(record)

    def _fold_start(self, record: LedgerRecord) -> Slot | Place | None:
        """An instance begins. What seemed to begin before, is in its way and was named by nobody was refused. One that
        was named is not in doubt: who resumed it may have named the wrong start."""
        held = (slot for slot in self.slots.of(self.key) if self._is_in_the_way(slot, record.appended_at_ms))
        refused = list(held)
        if any(slot.started in self._begins for slot in refused):
            return self._folding.fold(record)
        for slot in refused:
            self.slots.drop(slot)
        return self._folding.begin(record)

    def _is_in_the_way(self, slot: Slot, at_ms: int) -> bool:
        workflow = self.slots.hot(slot)
        header = workflow.header
        if header.phase is Phase.NONE or header.superseded:  # one that is unborn, too
            return False
        return not is_forgotten(workflow, at_ms, self._terms.grace_ms)

    def _note(self, record: LedgerRecord, found: Slot | Place | None) -> None:
        """Keep what shows that a STARTED was misread."""
        try:
            fact = read_fact(record)
        except UnreadableRecord:
            return
        if isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.STARTED:
            self._starts.add(record.offset)
        elif fact.workflow_offset != UNKNOWN_OFFSET:
            self._named.add(fact.workflow_offset)
            self._is_misread |= found is Place.FORGOTTEN and fact.workflow_offset in self._starts

    def _unborn(self, record: LedgerRecord) -> Slot:
        """A parent asked, in this stretch, for a child that had not begun."""
        request = read_fact(record)
        assert isinstance(request, WorkflowEvent)
        slot = self.slots.add(self.key, record.offset)
        at_ms = record.appended_at_ms
        slot.workflow = asking.unborn(self.key.decode(), request, record.offset, at_ms, is_gone=False)
        return self._folding.fold_into(record.offset, record)


def _is_request(record: LedgerRecord) -> bool:
    try:
        return asking.is_request(read_fact(record))
    except UnreadableRecord:
        return False


class Refolding:
    """A pass over the ledger, for an engine to feed: `located` if it has a `from_ms`, `begins_at` if the ledger begins
    later than `from_offset`, `take` each record from `from_offset` to `to_offset` (that one included), then hand it
    back."""

    def __init__(self, gatherings: Sequence[Gathering]) -> None:
        self.gatherings = gatherings
        self.from_offset = min(g.from_offset for g in gatherings)
        self.to_offset = max(g.to_offset for g in gatherings)
        self._by_key = {g.key: g for g in gatherings}
        self._silences = tuple({id(g.silences): g.silences for g in gatherings}.values())

    @property
    def from_ms(self) -> int | None:
        """Append time from which on the ledger is wanted; None: `from_offset` is all that counts."""
        return min((g.from_ms for g in self.gatherings if g.from_ms is not None), default=None)

    def located(self, offset: int) -> None:
        """What was appended at `from_ms` or later begins at `offset`."""
        for gathering in self.gatherings:
            gathering.located(offset)
        self.from_offset = min(gathering.from_offset for gathering in self.gatherings)

    def begins_at(self, offset: int) -> None:
        """The ledger's oldest record stands at `offset`: read from there."""
        for gathering in self.gatherings:
            gathering.begins_at(offset)
        self.from_offset = max(self.from_offset, offset)

    def take(self, record: LedgerRecord) -> None:
        """Take the next record of the partition, whosever it is."""
        for silences in self._silences:
            silences.record(record.appended_at_ms)
        gathering = self._by_key.get(record.key or b"")
        if gathering is not None:
            gathering.take(record)
