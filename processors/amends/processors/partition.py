"""One ledger partition: its workflows, what they make it send, and what a changelog has to take.

A function of the records folded and of the times it is given. Everything it sends is computed from state; what it has
sent already is remembered in memory only, to send nothing twice without need. After a restore the commands of turned
workflows are sent again; echo, incidents and dead letters are not, because an engine confirms whatever follows from a
fact before the checkpoint that covers the fact.

A workflow that has been closed for longer than the grace is dropped; one that a fact names after that is folded again
from its start (`placing`, `parked`, `refolding`).
"""

from __future__ import annotations

from typing import Final

from amends.processors import records
from amends.processors.admission import Admission
from amends.processors.alarms import Alarms
from amends.processors.breakers import Breaker
from amends.processors.carrying import Recalled, carries_of
from amends.processors.contracts import ContractBook
from amends.processors.emission import Emission, LedgerRecord
from amends.processors.folding import Folding
from amends.processors.outbox import Outbox, Sent, dead_record
from amends.processors.placing import Place, closed_at_ms, is_forgotten
from amends.processors.plan import plan
from amends.processors.refolding import Refolding
from amends.processors.refolds import Refolds
from amends.processors.slots import Slot, Slots, is_settled, may_unwind
from amends.processors.state import CLOSED_PHASES, NOWHERE, Header
from amends.processors.terms import Terms
from amends.processors.timeouts import armed, put_off, soonest_ms, timeout_of
from amends.processors.timers import Silences
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase

_FINISHING: Final = Phase.FINISHING


class Partition:
    """The fold of one partition, for an engine to drive. Nothing here blocks, and nothing raises for bad input."""

    def __init__(self, partition: int, terms: Terms) -> None:
        self._partition = partition
        self._terms = terms
        self._outbox = Outbox(terms, partition)
        self._contracts = ContractBook()
        self._slots = Slots(self._contracts, self._outbox.as_sent)
        self._silences = Silences()
        self._admission = Admission(terms, partition)
        self._folding = Folding(self._slots, self._contracts, self._silences, terms, self._admission)
        self._refolds = Refolds(self._slots, self._contracts, terms)
        self._touched: dict[Slot, None] = {}  # to be looked at by outputs(), in order of touch
        self._dirty: dict[Slot, None] = {}  # to be written by changes()
        self._dropped: list[bytes] = []  # keys of the changelog, to be written by changes()
        self._wakes = Alarms()  # when a plan has more to command
        self._leases = Alarms()  # when a Timeout is to be proposed
        self._graces = Alarms()  # when a workflow is to be forgotten
        self._carries = Alarms()  # when a Carry is to be written
        self._recalled = Recalled()
        self._appended_at_ms = 0  # of the last record folded
        self._looked_at_ms = 0  # when outputs were last asked for
        self._proposed_at_ms = 0  # the ledger's time when Timeouts were last asked for
        self._lanes_kept: set[tuple[str, str]] = set()  # as the changelog has them
        self._kept_to = -1  # silences are kept up to there
        self.folded_to = -1
        self.facts_folded = 0

    # --- restore ----------------------------------------------------------------------------------------------------

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record; in order, the last of a key counts."""
        if not key.startswith(records.SEPARATOR):  # as no workflow id does
            self._slots.restore(key, value)
        elif key == records.PARTITION_KEY:
            if value is not None:
                kept, self._outbox.lanes_missing = records.decode_partition(value)
                self._silences.last_at_ms, self._silences.gaps = kept.last_at_ms, kept.gaps
                self._lanes_kept = set(self._outbox.lanes_missing)
        elif key.startswith(records.BREAKER_PREFIX):
            self._admission.restore(key[len(records.BREAKER_PREFIX) :].decode(), value)
        elif key.startswith(records.CONTRACT_PREFIX) and value is not None:
            self._contracts.learn(key[len(records.CONTRACT_PREFIX) :].decode(), value)

    def restored(self, folded_to: int) -> None:
        """The changelog was read to its end. `folded_to` is the last offset that the checkpoint covers."""
        self.folded_to = self._kept_to = folded_to
        for slot, header in self._slots.restored():
            if header is None:
                self._refolds.want(slot, folded_to)
                self._dirty[slot] = None  # how far that has come no offset tells: every owner writes it itself
                continue
            live = any(data is not None and records.is_live(data) for data in slot.steps)
            if header.phase is Phase.RUNNING and header.deadline_ms is None and not live and not header.turns:
                self._leases.set(slot, self._silences.heartbeat_due_ms(header.armed_at_ms, header.lease_ms))
            elif header.phase in (Phase.RUNNING, Phase.FINISHING, Phase.TURNED) or may_unwind(header):
                self._admission.look(slot, self._slots.hot(slot))
                self._touched[slot] = None
            else:
                self._graces.set(slot, header.closed_at_ms + self._terms.grace_ms)
            self._arm_carry(slot, header)
        self._hold_recalled()

    # --- fold -------------------------------------------------------------------------------------------------------

    def recall(self, record: LedgerRecord) -> None:
        """Take one record of a ledger that has forgotten its beginning: each that it holds, before `restored`."""
        self._recalled.take(record)

    def _hold_recalled(self) -> None:
        """Hold what the ledger holds in Carries alone. What it says up to a Carry is in that already."""
        recalled, self._recalled = self._recalled, Recalled()
        for key, started, carried in recalled.begun_before(self.folded_to + 1):
            slot = carried.put_into(self._slots, self._contracts, key, started)
            workflow = self._slots.hot(slot)
            workflow.changed = {None, *range(len(workflow.steps))}
            slot.sent = Sent()
            self._silences.learn(recalled.silences_before(carried, self.folded_to))
            self._touch(slot)

    def fold(self, record: LedgerRecord) -> None:
        """Fold one record of the ledger. What can't be read or folded goes to the dead-letter topic verbatim."""
        if record.offset <= self.folded_to:
            return
        self.folded_to = record.offset
        self.facts_folded += 1
        self._appended_at_ms = record.appended_at_ms
        self._silences.record(record.appended_at_ms)
        self._fold(record)

    def _fold(self, record: LedgerRecord) -> None:
        found = self._folding.fold(record)
        if isinstance(found, Slot):
            self._touch(found)
        elif found is Place.NOBODY:
            self._touch(self._folding.fold_into(NOWHERE, record))
        elif found is Place.FORGOTTEN:
            self._touch(self._refolds.park(record))
        elif found is Place.UNSEEN:
            self._touch(self._refolds.park_child(record))
        elif found is Place.WAITING:
            self._refolds.wait(record)
        if self._folding.touched:
            for slot in self._folding.touched:
                self._touch(slot)
            self._folding.touched.clear()
        if self._folding.dead:
            self._bury()

    def _bury(self) -> None:
        for record, reason in self._folding.dead:
            self._outbox.add(dead_record(self._terms, self._partition, record, reason))
        for record, reason in self._folding.nobodys:
            self._outbox.partition_incident(self._partition, record, reason)
        self._folding.dead.clear()
        self._folding.nobodys.clear()

    def _touch(self, slot: Slot) -> None:
        self._touched[slot] = None
        self._dirty[slot] = None

    # --- folding again ----------------------------------------------------------------------------------------------

    def refolding(self) -> Refolding | None:
        """Return a stretch of the ledger to be read for workflows that are to be folded again; None if nothing is
        wanted, or one is being read already. An engine feeds it and hands it to `refolded`."""
        return self._refolds.next_pass()

    def refolded(self, refolding: Refolding) -> None:
        """The stretch was read to its end: take what came of it, and fold what waited for that."""
        for gathering in self._refolds.ended(refolding, self.folded_to):
            adopted, dropped = self._refolds.adopt(gathering, self.folded_to, self._appended_at_ms)
            for slot in adopted:
                if slot.parked is not None:
                    self._quiet(slot)
                self._touch(slot)
            if dropped is not None:
                self._drop(dropped)
            if adopted:
                gathering.heard.tell(self._admission)
            if adopted and gathering.is_carried:
                self._silences.learn(gathering.silences)
            if adopted and gathering.parked.was_gone and not gathering.is_gone:
                self._outbox.start_carried(self._slots.hot(adopted[0]), self._appended_at_ms)
            for record in self._refolds.followers(gathering):
                started = self._refolds.looked_for(gathering, record)
                if started is None:
                    self._fold(record)
                else:
                    self._touch(self._folding.fold_into(started, record))

    # --- what is sent -----------------------------------------------------------------------------------------------

    def outputs(self, now_ms: int) -> list[Emission]:
        """Return what must be sent now, each once; commands again when their time has come."""
        while (slot := self._wakes.take(now_ms)) is not None:
            self._touched[slot] = None
        touched, self._touched = self._touched, {}
        for slot in touched:
            if slot.parked is None:
                self._look_at(slot, now_ms)
        while (slot := self._admission.next_turn(now_ms)) is not None:
            if slot.parked is None:
                self._look_at(slot, now_ms)
        for incident in self._admission.incidents(now_ms):
            self._outbox.tell(incident, now_ms)
        self._looked_at_ms = now_ms
        while (slot := self._graces.take(self._appended_at_ms - 1)) is not None:
            self._forget(slot)
        return self._outbox.take()

    def _look_at(self, slot: Slot, now_ms: int) -> None:
        workflow = slot.workflow or self._slots.hot(slot)
        if workflow.header.folded_to > self.folded_to:  # recalled: its Carry, behind that, is to come
            return
        sent = slot.sent
        assert sent is not None
        made = None
        if workflow.owing or workflow.header.phase is _FINISHING:
            made = plan(workflow, self.folded_to, now_ms, fresh=sent.commands)
        self._admission.look(slot, workflow)
        if made is not None and made.commands:
            made.commands = self._admission.admit(slot, workflow, made.commands, sent.commands, now_ms)
        self._wakes.set(slot, self._outbox.fill(workflow, sent, made, now_ms))
        self._leases.set(slot, soonest_ms(workflow, self._silences, now_ms, sent.proposed))
        self._arm_carry(slot, workflow.header)
        if is_settled(workflow):
            self._slots.cool(slot)
            closed_ms = closed_at_ms(workflow)
            self._graces.set(slot, None if closed_ms is None else closed_ms + self._terms.grace_ms)

    def _forget(self, slot: Slot) -> None:
        """Drop a workflow whose grace is over. It says nothing that a fact of the ledger does not say."""
        if slot.parked is not None:
            return
        workflow = self._slots.hot(slot)
        is_nobodys = workflow.header.phase is Phase.NONE and closed_at_ms(workflow) is not None
        if is_nobodys or is_forgotten(workflow, self._appended_at_ms, self._terms.grace_ms):
            self._outbox.forget(workflow, self.folded_to, self._appended_at_ms)
            self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        self._dropped.append(slot.key)
        self._dropped.extend(records.step_key(slot.key, number) for number in range(len(slot.steps)))
        for kept in (self._touched, self._dirty):
            kept.pop(slot, None)
        self._quiet(slot)
        self._slots.drop(slot)

    def _quiet(self, slot: Slot) -> None:
        """Nothing is to be sent of it."""
        for alarms in (self._wakes, self._leases, self._graces, self._carries):
            alarms.set(slot, None)
        self._admission.drop(slot)

    def _arm_carry(self, slot: Slot, header: Header) -> None:
        after_ms = self._terms.carry_after_ms
        if after_ms is not None and header.phase is not Phase.NONE:
            self._carries.set(slot, max(header.started_at_ms, header.carried_at_ms) + after_ms)

    def timeouts(self, folded_time_ms: int) -> list[Emission]:
        """Return the facts to propose on the ledger: Timeouts due at a time before which everything is folded, and
        Carries of workflows that have been open for long."""
        made: list[Emission] = []
        if folded_time_ms < self._proposed_at_ms:
            self._propose_anew(folded_time_ms)
        self._proposed_at_ms = folded_time_ms
        while (slot := self._leases.take(folded_time_ms)) is not None:
            made.extend(self._proposals(slot, folded_time_ms))
        while (slot := self._carries.take(folded_time_ms)) is not None:
            made.extend(self._carry(slot, folded_time_ms))
        return made

    def _proposals(self, slot: Slot, folded_time_ms: int) -> list[Emission]:
        made: list[Emission] = []
        if slot.parked is not None:
            return made
        workflow = self._slots.hot(slot)
        sent = slot.sent
        assert sent is not None
        before, sent.proposed = sent.proposed, {}
        for timer in armed(workflow, self._silences, folded_time_ms):
            if before.get(timer.name, timer.due_ms) <= folded_time_ms:
                again_ms = folded_time_ms + self._terms.timeout_again_ms(timer.lease_ms)
                if not put_off(workflow, timer, again_ms):
                    sent.proposed[timer.name] = again_ms
                made.append(self._outbox.timeout(timeout_of(workflow, timer), folded_time_ms))
            elif timer.name in before:
                sent.proposed[timer.name] = before[timer.name]
        self._leases.set(slot, soonest_ms(workflow, self._silences, folded_time_ms, sent.proposed))
        return made

    def _propose_anew(self, folded_time_ms: int) -> None:
        """A clock had jumped ahead, and time has gone back: what is armed for then is due sooner."""
        for slot in self._leases.later_than(folded_time_ms):
            workflow = self._slots.hot(slot)
            assert slot.sent is not None
            slot.sent.proposed = {}
            workflow.ladders.ask_anew()
            self._leases.set(slot, soonest_ms(workflow, self._silences, folded_time_ms, slot.sent.proposed))

    def _carry(self, slot: Slot, now_ms: int) -> list[Emission]:
        if slot.parked is not None:
            return []
        workflow = self._slots.hot(slot)
        if workflow.header.phase in CLOSED_PHASES and closed_at_ms(workflow) is not None:
            return []
        self._carries.set(slot, now_ms + self._terms.carry_again_ms)  # until it is seen on the ledger
        parts = carries_of(workflow, self._contracts, self._silences, self.folded_to, now_ms)
        return [self._outbox.carry(part) for part in parts]

    def next_due_ms(self) -> int | None:
        """Return when outputs(), timeouts() or refolding() has something if no record comes, None if never."""
        if self._refolds.is_wanted:
            return 0
        due = [alarms.next_ms() for alarms in (self._wakes, self._leases, self._carries)]
        due.append(self._admission.next_due_ms(self._looked_at_ms))
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    # --- what is kept -----------------------------------------------------------------------------------------------

    def changes(self) -> list[tuple[bytes, bytes | None]]:
        """Return the changelog records since the last call, and forget them."""
        made: list[tuple[bytes, bytes | None]] = [
            (records.CONTRACT_PREFIX + name.encode(), data) for name, data in self._contracts.take_new()
        ]
        made.extend((key, None) for key in self._dropped)
        for slot in self._dirty:
            made.extend(_changes_of(slot))
        made.extend(self._admission.changes())
        if made or self._kept_to < self.folded_to or self._lanes_kept != self._outbox.lanes_missing:
            self._kept_to = self.folded_to
            self._lanes_kept = set(self._outbox.lanes_missing)
            value = records.encode_partition(self._silences, self._outbox.lanes_missing)
            made.append((records.PARTITION_KEY, value))
        self._dropped.clear()
        self._dirty = {}
        self._slots.chill(self._touched)
        return made

    # --- for people and tests ---------------------------------------------------------------------------------------

    def workflow(self, workflow_id: str) -> Workflow | None:
        """Return the state of a workflow's newest instance that began, for tests and inspection."""
        held = [self._slots.hot(slot) for slot in self._slots.of(workflow_id.encode()) if slot.parked is None]
        begun = [w for w in held if w.header.family is None or not w.header.family.unborn]
        return begun[-1] if begun else None

    def workflow_ids(self) -> list[str]:
        return [key.decode() for key in self._slots.workflow_keys()]

    def open_workflows(self) -> int:
        """Return how many workflows held hot are not closed."""
        return sum(1 for slot in self._slots if slot.workflow is not None and not is_settled(slot.workflow))

    def breaker(self, tool: str) -> Breaker:
        """Return the breaker of a tool."""
        return self._admission.breaker(tool)

    def undos_under_way(self, tool: str) -> int:
        """Return how many undos of a tool are commanded and have not ended."""
        return self._admission.under_way(tool)

    def undos_waiting(self) -> int:
        """Return how many workflows wait for a lane or a tool, or for its breaker."""
        return self._admission.waiting()

    def held(self) -> int:
        """Return how many instances are held, in whatever phase."""
        return len(self._slots)


def _changes_of(slot: Slot) -> list[tuple[bytes, bytes | None]]:
    made: list[tuple[bytes, bytes | None]] = []
    if slot.parked is not None:
        return [(slot.key, records.encode_parked(slot.parked))]
    workflow = slot.workflow
    assert workflow is not None
    for number in workflow.changed:
        if number is None:
            slot.header = records.encode_header(workflow.header)
            made.append((slot.key, slot.header))
        else:
            while len(slot.steps) <= number:
                slot.steps.append(None)
            data = slot.steps[number] = records.encode_step(workflow.steps[number])
            made.append((records.step_key(slot.key, number), data))
    workflow.changed.clear()
    return made
