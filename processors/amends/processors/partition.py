"""One ledger partition: its workflows, what they make it send, and what a changelog has to take.

A function of the records folded and of the times it is given. Everything it sends is computed from state; what it has
sent already is remembered in memory only, to send nothing twice without need. After a restore the commands of turned
workflows are sent again; echo, incidents and dead letters are not, because an engine confirms whatever follows from a
fact before the checkpoint that covers the fact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from amends.processors import records, saga
from amends.processors.emission import Emission, LedgerRecord
from amends.processors.outbox import Outbox, Sent, dead_record
from amends.processors.plan import plan
from amends.processors.state import Header, replace
from amends.processors.terms import Terms
from amends.processors.timeouts import armed, timeout_of
from amends.processors.timers import Silences
from amends.processors.workflow import Workflow
from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.commands import Phase
from amends.schemas.contract import Contract
from amends.schemas.facts import Carry, Fact, Resolution, StepEvent, Timeout, UndoEvent, WorkflowEvent
from amends.schemas.keys import digest

_FACTS = (StepEvent, WorkflowEvent, UndoEvent, Resolution, Timeout, Carry)
ORIGINAL_OFFSET_HEADER = "amends-original-offset"
ARGUMENTS_BYTES_MAX = 16_384
KEY_BYTES_MAX = 4_096
"""Of a workflow id; writers keep to 512. A longer key would be said again in each record about it, beyond its size."""
NAME_CHARACTERS_MAX = 4_096
"""Of names that facts give to steps, attempts and owners."""
HOT_MAX = 20_000
"""Closed workflows kept decoded, at most; the others are bytes."""


@dataclass(slots=True)
class _Slot:
    """A workflow in memory: bytes, and objects while it is hot."""

    header: bytes | None = None
    steps: list[bytes | None] = field(default_factory=list[bytes | None])
    workflow: Workflow | None = None
    sent: Sent | None = None
    wake_at_ms: int = 0  # the entry of each heap that counts
    lease_at_ms: int = 0


class Partition:
    """The fold of one partition, for an engine to drive. Nothing here blocks, and nothing raises for bad input."""

    def __init__(self, partition: int, terms: Terms) -> None:
        self._partition = partition
        self._terms = terms
        self._outbox = Outbox(terms, partition)
        self._slots: dict[bytes, _Slot] = {}
        self._contracts: dict[str, Contract] = {}
        self._digests: dict[bytes, str] = {}
        self._silences = Silences()
        self._touched: dict[bytes, None] = {}  # to be looked at by outputs(), in order of touch
        self._dirty: dict[bytes, None] = {}  # to be written by changes()
        self._new_contracts: list[tuple[bytes, bytes]] = []
        self._wakes: list[tuple[int, bytes]] = []  # when a plan has more to command
        self._leases: list[tuple[int, bytes]] = []  # when a Timeout is to be proposed
        self._cool: dict[bytes, None] = {}
        self._proposed_at_ms = 0  # the ledger's time when Timeouts were last asked for
        self._lanes_kept: set[tuple[str, str]] = set()  # as the changelog has them
        self.folded_to = -1
        self.facts_folded = 0

    # --- restore ----------------------------------------------------------------------------------------------------

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record; in order, the last of a key counts."""
        if key == records.PARTITION_KEY:
            if value is not None:
                self._silences, self._outbox.lanes_missing = records.decode_partition(value)
                self._lanes_kept = set(self._outbox.lanes_missing)
        elif key.startswith(records.CONTRACT_PREFIX):
            if value is not None:
                self._learn_contract(key[len(records.CONTRACT_PREFIX) :].decode(), value)
        else:
            workflow_key, number = records.split_key(key)
            slot = self._slots.get(workflow_key)
            if slot is None:
                slot = self._slots[workflow_key] = _Slot()
            if number is None:
                slot.header = value
            else:
                while len(slot.steps) <= number:
                    slot.steps.append(None)
                slot.steps[number] = value

    def restored(self, folded_to: int) -> None:
        """The changelog was read to its end. `folded_to` is the last offset that the checkpoint covers."""
        self.folded_to = folded_to
        for key, slot in self._slots.items():
            if slot.header is None:
                continue
            header = records.decode_header(slot.header)
            live = any(data is not None and records.is_live(data) for data in slot.steps)
            if header.phase is Phase.RUNNING and header.deadline_ms is None and not live and not header.turns:
                slot.sent = self._outbox.as_sent(Workflow(header, self._contracts))
                self._arm(key, slot, self._silences.heartbeat_due_ms(header.armed_at_ms, header.lease_ms))
            elif header.phase in (Phase.RUNNING, Phase.FINISHING, Phase.TURNED) or _may_unwind(header):
                self._hot(key, slot)
                self._touched[key] = None

    # --- fold -------------------------------------------------------------------------------------------------------

    def fold(self, record: LedgerRecord) -> None:
        """Fold one record of the ledger. What can't be read or folded goes to the dead-letter topic verbatim."""
        if record.offset <= self.folded_to:
            return
        self.folded_to = record.offset
        self.facts_folded += 1
        self._silences.record(record.appended_at_ms)
        try:
            fact = self._read(record)
        except UnreadableRecord as error:
            self._unread(record, str(error))
            return
        key = record.key or b""
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = _Slot()
        workflow = self._hot(key, slot, fact.workflow_id)
        contract = self._contract_in(fact)
        before = workflow.header
        try:
            saga.fold(workflow, fact, contract, record.offset, record.appended_at_ms, self._silences)
        except Exception as error:  # a bug of ours must not stop the partition: the workflow becomes an incident
            self._poisoned(key, before, workflow, record, f"{type(error).__name__}: {error}")
            return
        original = self._original_offset(record) if workflow.header.unread else None
        if original is not None:
            saga.was_read(workflow, original, record.appended_at_ms, "redrive")
        self._touch(key)

    def _original_offset(self, record: LedgerRecord) -> int | None:
        """Where a redriven record stood when nobody could read it."""
        text = next((value for name, value in record.headers if name == ORIGINAL_OFFSET_HEADER), b"")
        return int(text) if text.isdigit() else None

    def _read(self, record: LedgerRecord) -> Fact:
        if record.key is None:
            raise UnreadableRecord("no key: nobody can tell whose workflow it belongs to")
        if not _may_be_workflow_key(record.key):
            raise UnreadableRecord("a key that is no workflow id")
        found = decode(record.value, registered=self._terms.registered)
        if not isinstance(found, _FACTS):
            raise UnreadableRecord(f"a {type(found).__name__} is no fact")
        if found.workflow_id.encode() != record.key:
            raise UnreadableRecord("its key is not the workflow id it names")
        if record.value is not None and len(record.value) > NAME_CHARACTERS_MAX:
            _check_names(found)
        arguments = found.undo_arguments if isinstance(found, StepEvent | Resolution) else None
        if arguments is not None:
            _check_arguments(arguments)
        return found

    def _contract_in(self, fact: Fact) -> str:
        if not isinstance(fact, StepEvent) or fact.contract is None:
            return ""
        found = self._digests.get(fact.contract)
        if found is not None:
            return found
        name = digest(fact.contract)[:16]
        if not self._learn_contract(name, fact.contract):
            return ""
        self._digests[fact.contract] = name
        self._new_contracts.append((records.CONTRACT_PREFIX + name.encode(), fact.contract))
        return name

    def _learn_contract(self, name: str, data: bytes) -> bool:
        try:
            contract = decode(data)
        except UnreadableRecord:
            return False
        if not isinstance(contract, Contract):
            return False
        self._contracts[name] = contract
        self._digests[data] = name
        return True

    def _unread(self, record: LedgerRecord, reason: str) -> None:
        self._outbox.add(dead_record(self._terms, self._partition, record, reason))
        key = record.key
        if key is None or not _is_workflow_key(key):
            self._outbox.partition_incident(self._partition, record, reason)
            return
        slot = self._slots.setdefault(key, _Slot())
        workflow = self._hot(key, slot, key.decode())
        saga.fold_unread(workflow, record.offset, record.appended_at_ms, reason)
        self._touch(key)

    def _poisoned(self, key: bytes, before: Header, workflow: Workflow, record: LedgerRecord, reason: str) -> None:
        """The fold raised: keep the header of before this fact, and the workflow open as an incident."""
        workflow.put_header(replace(before, steps=len(workflow.steps)))
        self._outbox.add(dead_record(self._terms, self._partition, record, f"the fold raised {reason}"))
        saga.fold_unread(workflow, record.offset, record.appended_at_ms, f"the fold raised {reason}")
        workflow.with_trouble("poisoned", reason, record.offset, record.appended_at_ms)
        self._touch(key)

    # --- hot and cold -----------------------------------------------------------------------------------------------

    def _hot(self, key: bytes, slot: _Slot, workflow_id: str = "") -> Workflow:
        workflow = slot.workflow
        if workflow is not None:
            return workflow
        if slot.header is None:
            workflow = Workflow(Header(workflow_id or key.decode()), self._contracts)
            slot.sent = Sent()
        else:
            workflow = Workflow(records.decode_header(slot.header), self._contracts)
            workflow.steps = [records.decode_step(data) for data in slot.steps if data is not None]
            workflow.reindex()
            if slot.sent is None:
                slot.sent = self._outbox.as_sent(workflow)
        slot.workflow = workflow
        return workflow

    def _touch(self, key: bytes) -> None:
        self._touched[key] = None
        self._dirty[key] = None

    def _chill(self) -> None:
        """Keep closed workflows as bytes, beyond the last ones."""
        while len(self._cool) > HOT_MAX:
            key = next(iter(self._cool))
            del self._cool[key]
            slot = self._slots[key]
            busy = key in self._dirty or key in self._touched or slot.workflow is None
            if not busy and slot.workflow is not None and _is_settled(slot.workflow):
                slot.workflow, slot.sent = None, None

    # --- what is sent -----------------------------------------------------------------------------------------------

    def outputs(self, now_ms: int) -> list[Emission]:
        """Return what must be sent now, each once; commands again when their time has come."""
        while self._wakes and self._wakes[0][0] <= now_ms:
            at_ms, key = heappop(self._wakes)
            if self._slots[key].wake_at_ms == at_ms:
                self._slots[key].wake_at_ms = 0
                self._touched[key] = None
        touched, self._touched = self._touched, {}
        for key in touched:
            self._look_at(key, self._slots[key], now_ms)
        return self._outbox.take()

    def _look_at(self, key: bytes, slot: _Slot, now_ms: int) -> None:
        workflow = self._hot(key, slot)
        sent = slot.sent
        assert sent is not None
        wake_ms = self._outbox.fill(workflow, sent, plan(workflow, self.folded_to, now_ms), now_ms)
        if wake_ms is None:
            slot.wake_at_ms = 0
        elif slot.wake_at_ms != wake_ms:
            slot.wake_at_ms = wake_ms
            heappush(self._wakes, (wake_ms, key))
        self._arm(key, slot, self._lease_ms(workflow, sent, now_ms))
        if _is_settled(workflow):
            self._cool.pop(key, None)
            self._cool[key] = None

    def _lease_ms(self, workflow: Workflow, sent: Sent, now_ms: int) -> int | None:
        """When the next Timeout of a workflow is to be proposed: when it is due; and once proposed, each quarter lease
        whatever a silence has added meanwhile, for the proposals are what splits the silence of a lone dead agent."""
        proposed = sent.proposed
        timers = armed(workflow, self._silences, now_ms)
        return min((proposed.get(timer.name, timer.due_ms) for timer in timers), default=None)

    def _arm(self, key: bytes, slot: _Slot, at_ms: int | None) -> None:
        if at_ms is None:
            slot.lease_at_ms = 0
        elif slot.lease_at_ms != at_ms:
            slot.lease_at_ms = at_ms
            heappush(self._leases, (at_ms, key))

    def timeouts(self, folded_time_ms: int) -> list[Emission]:
        """Return the Timeouts to propose on the ledger: those due at a time before which everything is folded."""
        made: list[Emission] = []
        if folded_time_ms < self._proposed_at_ms:
            self._propose_anew(folded_time_ms)
        self._proposed_at_ms = folded_time_ms
        while self._leases and self._leases[0][0] <= folded_time_ms:
            at_ms, key = heappop(self._leases)
            slot = self._slots[key]
            if slot.lease_at_ms != at_ms:
                continue
            slot.lease_at_ms = 0
            workflow = self._hot(key, slot)
            sent = slot.sent
            assert sent is not None
            before, sent.proposed = sent.proposed, {}
            for timer in armed(workflow, self._silences, folded_time_ms):
                if before.get(timer.name, timer.due_ms) <= folded_time_ms:
                    sent.proposed[timer.name] = folded_time_ms + self._terms.timeout_again_ms(timer.lease_ms)
                    made.append(self._outbox.timeout(timeout_of(workflow, timer), folded_time_ms))
                elif timer.name in before:
                    sent.proposed[timer.name] = before[timer.name]
            self._arm(key, slot, self._lease_ms(workflow, sent, folded_time_ms))
        return made

    def _propose_anew(self, folded_time_ms: int) -> None:
        """A clock had jumped ahead, and time has gone back: what is armed for then is due sooner."""
        for key, slot in self._slots.items():
            if slot.lease_at_ms > folded_time_ms:
                workflow = self._hot(key, slot)
                assert slot.sent is not None
                slot.sent.proposed = {}
                self._arm(key, slot, self._lease_ms(workflow, slot.sent, folded_time_ms))

    def next_due_ms(self) -> int | None:
        """Return when outputs() or timeouts() has something again if no record comes, None if never."""
        while self._wakes and self._slots[self._wakes[0][1]].wake_at_ms != self._wakes[0][0]:
            heappop(self._wakes)
        while self._leases and self._slots[self._leases[0][1]].lease_at_ms != self._leases[0][0]:
            heappop(self._leases)
        return min((heap[0][0] for heap in (self._wakes, self._leases) if heap), default=None)

    # --- what is kept -----------------------------------------------------------------------------------------------

    def changes(self) -> list[tuple[bytes, bytes | None]]:
        """Return the changelog records since the last call, and forget them."""
        made: list[tuple[bytes, bytes | None]] = list(self._new_contracts)
        self._new_contracts = []
        for key in self._dirty:
            made.extend(self._changes_of(key, self._slots[key]))
        if self._dirty or self._lanes_kept != self._outbox.lanes_missing:
            self._lanes_kept = set(self._outbox.lanes_missing)
            value = records.encode_partition(self._silences, self._outbox.lanes_missing)
            made.append((records.PARTITION_KEY, value))
        self._dirty = {}
        self._chill()
        return made

    def _changes_of(self, key: bytes, slot: _Slot) -> Iterator[tuple[bytes, bytes | None]]:
        workflow = slot.workflow
        assert workflow is not None
        for number in workflow.changed:
            if number is None:
                slot.header = records.encode_header(workflow.header)
                yield key, slot.header
            else:
                while len(slot.steps) <= number:
                    slot.steps.append(None)
                data = slot.steps[number] = records.encode_step(workflow.steps[number])
                yield records.step_key(key, number), data
        workflow.changed.clear()

    # --- for people and tests ---------------------------------------------------------------------------------------

    def workflow(self, workflow_id: str) -> Workflow | None:
        """Return a workflow's state, for tests and inspection."""
        slot = self._slots.get(workflow_id.encode())
        return None if slot is None else self._hot(workflow_id.encode(), slot)

    def workflow_ids(self) -> list[str]:
        return [key.decode() for key in self._slots]

    def open_workflows(self) -> int:
        """Return how many workflows held hot are not closed."""
        return sum(1 for s in self._slots.values() if s.workflow is not None and not _is_settled(s.workflow))


def _is_settled(workflow: Workflow) -> bool:
    settled = (Phase.SUCCEEDED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS, Phase.NONE)
    return workflow.header.phase in settled and not (_may_unwind(workflow.header) and workflow.is_unwinding)


def _may_unwind(header: Header) -> bool:
    """Whether a success may have a plan beside it: what an ended epoch still had under way lands late."""
    return header.phase is Phase.SUCCEEDED and bool(header.turns)


def _may_be_workflow_key(key: bytes) -> bool:
    return not key.startswith(records.SEPARATOR) and records.SEPARATOR * 2 not in key and len(key) <= KEY_BYTES_MAX


def _is_workflow_key(key: bytes) -> bool:
    try:
        return _may_be_workflow_key(key) and bool(key.decode())
    except UnicodeDecodeError:
        return False


def _check_names(fact: Fact) -> None:
    """Refuse names so long that what is sent about the workflow would not fit into a record."""
    for name in ("step_id", "attempt", "owner", "traceparent"):
        text = getattr(fact, name, None)
        if isinstance(text, str) and len(text) > NAME_CHARACTERS_MAX:
            raise UnreadableRecord(f"a {name} of {len(text)} characters, more than {NAME_CHARACTERS_MAX}")


def _check_arguments(data: bytes) -> None:
    """Refuse what could not be kept as text; a compensator reads it as JSON and says what is wrong with it. The limit
    keeps a run of many undos under the size of a record; writers keep to a quarter of it."""
    if len(data) > ARGUMENTS_BYTES_MAX:
        raise UnreadableRecord(f"undo arguments of {len(data)} bytes, more than {ARGUMENTS_BYTES_MAX}")
    try:
        text = data.decode()
    except ValueError as error:
        raise UnreadableRecord(f"undo arguments that are no UTF-8: {error}") from error
    if text[:1] != "{" or text[-1:] != "}":
        raise UnreadableRecord("undo arguments that are no JSON object")
