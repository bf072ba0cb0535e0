"""Carry: the state of an open workflow as a fact, written before the ledger forgets the workflow's start.

Rules
- A Carry changes nothing of the state it is folded over; it only tells that the workflow is carried.
- State from a Carry and the facts behind it is the state from the start: it holds the header, every step, the contracts
  they name and the silences that still count. It is written as of `folded_to` of the partition.
- It is packed and split into parts, so that it fits into records whatever the length of the workflow. Parts belong
  together by the digest of the whole.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from amends.processors import records
from amends.processors.contracts import ContractBook
from amends.processors.emission import LedgerRecord
from amends.processors.slots import Slot, Slots
from amends.processors.state import Header, Step
from amends.processors.timers import Silences
from amends.processors.workflow import Workflow
from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.facts import Carry
from amends.schemas.keys import digest

PART_BYTES_MAX = 600_000
"""Well below the largest record of the ledger."""
PART, PARTS, DIGEST = "part", "parts", "digest"


@dataclass(frozen=True, slots=True)
class Carried:
    """A state that a Carry held."""

    folded_to: int
    header: Header
    steps: list[Step]
    contracts: list[bytes]
    silences: Silences

    def put_into(self, slots: Slots, contracts: ContractBook, key: bytes, started: int) -> Slot:
        """Hold it as an instance."""
        for data in self.contracts:
            contracts.add(data)
        workflow = Workflow(self.header, contracts.by_digest, self.steps)
        workflow.reindex()
        slot = slots.add(key, started)
        slot.workflow = workflow
        return slot


def carries_of(
    workflow: Workflow, contracts: ContractBook, silences: Silences, folded_to: int, now_ms: int
) -> list[Carry]:
    """Return the parts of the Carry of a workflow, given the partition's silences and the last offset folded."""
    header = workflow.header
    named = {step.contract for step in workflow.steps if step.contract}
    counting = Silences(silences.last_at_ms, [gap for gap in silences.gaps if gap[0] > header.armed_at_ms])
    state = {
        "header": records.encode_header(header).decode(),
        "steps": [records.encode_step(step).decode() for step in workflow.steps],
        "contracts": [base64.b64encode(data).decode() for data in contracts.data_of(named)],
        "silences": records.encode_partition(counting, set()).decode(),
    }
    packed = zlib.compress(json.dumps(state, separators=(",", ":"), ensure_ascii=False).encode())
    parts = [packed[at : at + PART_BYTES_MAX] for at in range(0, len(packed), PART_BYTES_MAX)]
    name = digest(packed)[:16]
    return [
        Carry(
            workflow_id=header.workflow_id,
            workflow_offset=header.started_offset,
            folded_to=folded_to,
            state=part,
            timestamp_ms=now_ms,
            attributes={PART: str(number), PARTS: str(len(parts)), DIGEST: name},
        )
        for number, part in enumerate(parts)
    ]


@dataclass(slots=True)
class Carries:
    """The Carries of one instance, as a stretch of the ledger is read."""

    key: bytes
    workflow_offset: int
    _parts: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    _whole: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def take(self, record: LedgerRecord) -> None:
        """Take a record of this key; what is no Carry of the instance is let pass."""
        try:
            carry = decode(record.value, record)
        except UnreadableRecord:
            return
        if not isinstance(carry, Carry) or carry.workflow_offset != self.workflow_offset:
            return
        parts = self._parts.setdefault(carry.attributes.get(DIGEST, ""), {})
        parts[carry.attributes.get(PART, "")] = carry.state
        if len(parts) == int(carry.attributes.get(PARTS, "1")):
            whole = b"".join(parts[number] for number in sorted(parts, key=int))
            self._whole = {carry.folded_to: whole}  # the newest is enough
            self._parts.clear()

    def newest(self, ledger_start: int) -> Carried | None:
        """Return the newest state from which the ledger can be folded on; None if there is none."""
        for folded_to, whole in self._whole.items():
            if folded_to + 1 >= ledger_start:
                return _unpacked(folded_to, whole)
        return None


@dataclass(slots=True)
class Recalled:
    """What a ledger that has forgotten its beginning holds in Carries, from there to its end.

    Folded from there alone, a STARTED that resumed an instance would be taken for one that begins another, until the
    first fact came that names the start.
    """

    first_at_ms: int = 0
    """When the oldest record was appended."""
    _carries: dict[tuple[bytes, int], Carries] = field(default_factory=dict[tuple[bytes, int], Carries])

    def take(self, record: LedgerRecord) -> None:
        """Take the next record, of whatever key."""
        if not self.first_at_ms:
            self.first_at_ms = record.appended_at_ms
        try:
            fact = decode(record.value, record)
        except UnreadableRecord:
            return
        if isinstance(fact, Carry) and record.key is not None:
            name = record.key, fact.workflow_offset
            self._carries.setdefault(name, Carries(*name)).take(record)

    def silences_before(self, carried: Carried, folded_to: int) -> Silences:
        """Return the silences of before the ledger's beginning, and of up to its oldest record, that a state knows.

        Args:
            folded_to: the offset before that of the oldest record.
        """
        known = Silences(carried.silences.last_at_ms, list(carried.silences.gaps))
        if carried.folded_to == folded_to:
            known.record(self.first_at_ms)
        return Silences(gaps=[gap for gap in known.gaps if gap[0] <= self.first_at_ms])

    def begun_before(self, ledger_start: int) -> Iterator[tuple[bytes, int, Carried]]:
        """Yield the newest state of each instance whose start is gone: its id, its start and the state."""
        for (key, started), carries in sorted(self._carries.items(), key=lambda each: each[0]):
            carried = carries.newest(ledger_start) if started < ledger_start else None
            if carried is not None:
                yield key, started, carried


def _unpacked(folded_to: int, packed: bytes) -> Carried | None:
    try:
        state = json.loads(zlib.decompress(packed))
        silences, _ = records.decode_partition(state["silences"].encode())
        return Carried(
            folded_to,
            records.decode_header(state["header"].encode()),
            [records.decode_step(data.encode()) for data in state["steps"]],
            [base64.b64decode(data) for data in state["contracts"]],
            silences,
        )
    except (ValueError, TypeError, KeyError, IndexError, zlib.error):  # somebody else wrote it
        return None
