"""The workflows of a partition that are folded again: parked, wanted, read, adopted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from amends.processors import asking, saga
from amends.processors.contracts import ContractBook
from amends.processors.emission import LedgerRecord
from amends.processors.outbox import Sent
from amends.processors.parked import Parked
from amends.processors.placing import is_forgotten, is_parked
from amends.processors.reading import read_fact
from amends.processors.refolding import GATHERINGS_MAX, Gathering, Refolding
from amends.processors.slots import Slot, Slots
from amends.processors.state import NOWHERE, Header
from amends.processors.terms import Terms
from amends.processors.timers import Silences
from amends.processors.workflow import Workflow
from amends.schemas.codec import UnreadableRecord
from amends.schemas.commands import Phase
from amends.schemas.facts import WorkflowEvent


class Wanted(NamedTuple):
    """An instance to be folded again."""

    slot: Slot
    to_offset: int
    announced_at_ms: int | None = None
    """A child that is folded once more, from when its parent announced it."""
    begins: frozenset[int] = frozenset()
    """Where instances are known to begin, of a stretch that is read again."""


class Refolds:
    """Bookkeeping between a partition's slots and the passes over the ledger. One pass at a time."""

    def __init__(self, slots: Slots, contracts: ContractBook, terms: Terms) -> None:
        self._slots = slots
        self._contracts = contracts
        self._terms = terms
        self._wanted: list[Wanted] = []
        self._alone: list[Gathering] = []
        """Those with silences of their own: each has a pass to itself, in turn with one for all that are wanted."""
        self._was_alone = False
        self._reading: Refolding | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a pass may begin."""
        return self._reading is None and bool(self._wanted or self._alone)

    def park(self, record: LedgerRecord) -> Slot:
        """Park the instance that a record names, to be folded again up to this record."""
        key, named = record.key or b"", read_fact(record).workflow_offset
        held = self._slots.find(key, named)
        slot = self._slots.add(key, named) if held is None else held
        slot.workflow, slot.header, slot.sent = None, None, None
        slot.parked = Parked(named, record.offset, was_gone=held is not None)
        self.want(slot, record.offset)
        return slot

    def park_child(self, record: LedgerRecord) -> Slot:
        """Park a child that its parent asks for by this record, to be looked for on the ledger."""
        request = read_fact(record)
        assert isinstance(request, WorkflowEvent)
        slot = self._slots.add(record.key or b"", record.offset)
        slot.parked = Parked(record.offset, record.offset, from_ms=asking.since_ms(request))
        self.want(slot, record.offset)
        return slot

    def want(self, slot: Slot, to_offset: int) -> None:
        self._wanted.append(Wanted(slot, to_offset))

    def wait(self, record: LedgerRecord) -> None:
        """Keep a record until the instance of its id that is parked was folded again."""
        for slot in self._slots.of(record.key or b""):
            if slot.parked is not None:
                slot.parked.wait(record)
                return

    def next_pass(self) -> Refolding | None:
        """Return the next pass, if none is being read."""
        if not self.is_wanted:
            return None
        self._was_alone = bool(self._alone) and not (self._was_alone and self._wanted)
        made = [self._alone.pop(0)] if self._was_alone else self._made()
        self._reading = Refolding(made) if made else None
        return self._reading

    def _made(self) -> list[Gathering]:
        """Return those that are wanted, to be read together: they share the silences of the stretch."""
        silences = Silences()
        wanted, self._wanted = self._wanted[:GATHERINGS_MAX], self._wanted[GATHERINGS_MAX:]
        made: list[Gathering] = []
        for slot, to_offset, announced_at_ms, begins in wanted:
            if slot.parked is not None:
                key, parked = slot.workflow_key, slot.parked
                gathering = Gathering(key, parked, to_offset, self._terms, silences, begins=begins)
                made.append(gathering if announced_at_ms is None else gathering.from_announcement(announced_at_ms))
        return made

    def ended(self, refolding: Refolding, folded_to: int) -> Iterator[Gathering]:
        """Yield what is to be adopted of a pass that was read; what needs another pass is wanted again."""
        if refolding is not self._reading:
            return
        self._reading = None
        for gathering in refolding.gatherings:
            carried = gathering.carries.newest(gathering.from_offset) if gathering.is_gone else None
            if carried is not None:
                to_offset = max(gathering.to_offset, carried.folded_to)
                again = Gathering(gathering.key, gathering.parked, to_offset, self._terms, carried.silences, carried)
                again.unplaced = [record for record in gathering.unplaced if record.offset <= carried.folded_to]
                self._alone.append(again)
            elif gathering.parked.overflowed:
                gathering.parked.overflowed = False
                self._alone.append(gathering.extended(folded_to))
            elif (announced_at_ms := gathering.announced_at_ms()) is not None or gathering.misread():
                parked = self._parked_slot(gathering)
                if parked is not None:
                    self._wanted.append(Wanted(parked, gathering.to_offset, announced_at_ms, gathering.misread()))
            else:
                yield gathering

    def adopt(self, gathering: Gathering, folded_to: int, at_ms: int) -> tuple[list[Slot], Slot | None]:
        """Hold what was gathered. Returns the instances that are held now and the one that is to be dropped, because
        no workflow begins where it was said to. One of those held may have been parked by this.

        Args:
            folded_to, at_ms: of the partition's last record.
        """
        parked = self._parked_slot(gathering)
        if parked is None:
            return [], None
        for _, data in gathering.contracts.take_new():
            self._contracts.add(data)
        if gathering.parked.from_ms is not None:
            return self._adopt_child(gathering, parked, folded_to, at_ms)
        if gathering.is_gone:
            parked.workflow = Workflow(Header(gathering.key.decode(), parked.started), self._contracts.by_digest)
            parked.parked, parked.sent = None, Sent()
            return [parked], None
        adopted: list[Slot] = []
        for found in gathering.slots:
            workflow = found.workflow
            if workflow is None or workflow.header.phase is Phase.NONE:
                continue
            if found.started == parked.started:
                slot = parked
            elif self._began_since(gathering, found) and self._is_ours(found, workflow, at_ms):
                slot = self._slots.add(found.workflow_key, found.started)
            elif (unborn := self._unborn_behind(found, workflow)) is not None:
                slot = unborn
            else:
                continue
            slot.workflow, slot.sent, slot.parked = self._as_ours(workflow), Sent(), None
            adopted.append(slot)
        return adopted, parked if parked.parked is not None else None

    def _adopt_child(
        self, gathering: Gathering, parked: Slot, folded_to: int, at_ms: int
    ) -> tuple[list[Slot], Slot | None]:
        """Hold what was found of a child, or that nothing was."""
        record, request = self._request_of(gathering)
        adopted: list[Slot] = []
        is_found = False
        for found in gathering.slots:
            workflow = found.workflow
            if workflow is None or workflow.header.phase is Phase.NONE or self._is_refused(found):
                continue
            family = workflow.header.family
            is_child = family is not None and not family.unborn and asking.is_asked(family, request)
            if not self._is_answering(found, is_child=is_child) and not (
                self._began_since(gathering, found) and self._is_ours(found, workflow, at_ms)
            ):
                continue
            is_found = is_found or is_child
            slot = self._slots.add(found.workflow_key, found.started)
            slot.workflow, slot.sent = self._as_ours(workflow), Sent()
            adopted.append(slot)
        unborn = self._unborn(gathering, record, request, is_found=is_found)
        if unborn is None:
            return adopted, parked
        resumed = self._resumed_meanwhile(gathering.key, request, adopted)
        parked.workflow, parked.sent, parked.parked = self._as_ours(unborn), Sent(), None
        for slot in resumed:
            workflow = self._slots.hot(slot)
            if not gathering.is_gone:  # the ledger holds all since it was announced, so its start too
                self._park_again(slot, folded_to)
                continue
            asking.asked(workflow, request, record.offset)
            saga.born_turned(workflow, unborn.header, workflow.header.folded_to, at_ms)
        return [*adopted, parked, *resumed], None

    def _park_again(self, slot: Slot, folded_to: int) -> None:
        """Have one that is held folded again from its start: what it was folded to is not what the ledger says."""
        slot.workflow, slot.header, slot.sent = None, None, None
        slot.parked = Parked(slot.started, folded_to + 1)
        self.want(slot, folded_to)

    @staticmethod
    def _unborn(
        gathering: Gathering, record: LedgerRecord, request: WorkflowEvent, *, is_found: bool
    ) -> Workflow | None:
        """Return what is kept of a child that had not begun when it was asked for; None if it had."""
        gathered = gathering.slots.find(gathering.key, record.offset)
        if gathered is not None:
            return gathered.workflow
        if is_found:
            return None
        if all(waits.offset != record.offset for waits in gathering.unplaced):
            gathering.unplaced.insert(0, record)
        at_ms = record.appended_at_ms
        return asking.unborn(gathering.key.decode(), request, record.offset, at_ms, is_gone=gathering.is_gone)

    def _resumed_meanwhile(self, key: bytes, request: WorkflowEvent, adopted: list[Slot]) -> list[Slot]:
        """Return the child that was held under another announcement, if it was resumed under the one that is asked for
        while that was looked for on the ledger: its STARTED met nobody who had asked. It turned there, not now: what it
        did since, it did in the epoch that was over."""
        held = (slot for slot in self._slots.of(key) if slot.parked is None and slot not in adopted)
        return [slot for slot in held if asking.is_asked(self._slots.hot(slot).header.family, request)]

    def _request_of(self, gathering: Gathering) -> tuple[LedgerRecord, WorkflowEvent]:
        assert gathering.named_by is not None  # it stands where the stretch ends, or before
        request = read_fact(gathering.named_by)
        assert isinstance(request, WorkflowEvent)
        return gathering.named_by, request

    def _is_refused(self, found: Slot) -> bool:
        """Whether a STARTED that seemed to begin an instance was refused: the id was in use, as it still is."""
        for slot in self._slots.of(found.workflow_key):
            if slot.parked is None and slot.started < found.started:
                header = self._slots.hot(slot).header
                if header.phase is not Phase.NONE and not header.superseded:
                    return True
        return False

    def followers(self, gathering: Gathering) -> list[LedgerRecord]:
        """Return the records that waited, in order."""
        return [*gathering.unplaced, *gathering.parked.waiting]

    def looked_for(self, gathering: Gathering, record: LedgerRecord) -> int | None:
        """Return the instance that a record which waited is to be folded into, where a look for its start found none:
        the one whose start is gone, or NOWHERE if there never was one. None: it is placed like any other."""
        started = gathering.parked.workflow_offset
        if gathering.parked.from_ms is not None:
            return None
        if record.offset > gathering.to_offset and gathering.is_gone:
            return None
        if not gathering.is_gone and gathering.slots.find(gathering.key, started) is not None:
            return None
        try:
            named = read_fact(record).workflow_offset
        except UnreadableRecord:
            return None
        if named != started:
            return None
        return started if gathering.is_gone else NOWHERE

    def _parked_slot(self, gathering: Gathering) -> Slot | None:
        held = self._slots.of(gathering.key)
        return next((s for s in held if s.parked is gathering.parked), None) if is_parked(held) else None

    @staticmethod
    def _began_since(gathering: Gathering, found: Slot) -> bool:
        """Whether an instance began behind the fact that parked the one that is looked for. What began before, and is
        not held, was forgotten."""
        return found.started > gathering.parked.since_offset

    def _is_answering(self, found: Slot, *, is_child: bool) -> bool:
        """Whether it is the child that is asked for. Closed and forgotten long ago it answers all the same, for nothing
        else says whether with a loss; then it is forgotten again."""
        return is_child and self._slots.find(found.workflow_key, found.started) is None

    def _is_ours(self, found: Slot, workflow: Workflow, at_ms: int) -> bool:
        """Whether another instance of the id began while this one was parked."""
        held = self._slots.find(found.workflow_key, found.started)
        return held is None and not is_forgotten(workflow, at_ms, self._terms.grace_ms)

    def _unborn_behind(self, found: Slot, workflow: Workflow) -> Slot | None:
        """Return what is held of a child that was asked for before it began, if its parent was heard to ask again in
        the stretch: meanwhile the one that was resumed under that announcement was asked in its place."""
        held = self._slots.find(found.workflow_key, found.started)
        if held is None or held.parked is not None:
            return None
        header = self._slots.hot(held).header
        is_unborn = header.family is not None and header.family.unborn
        return held if is_unborn and header.folded_to < workflow.header.folded_to else None

    def _as_ours(self, workflow: Workflow) -> Workflow:
        """All of it is to be written; contracts are looked up in the partition's book from now on."""
        workflow.contracts = self._contracts.by_digest
        workflow.changed = {None, *range(len(workflow.steps))}
        return workflow
