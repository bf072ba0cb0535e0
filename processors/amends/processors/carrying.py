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
from dataclasses import dataclass, field

from amends.processors import records
from amends.processors.contracts import ContractBook
from amends.processors.emission import LedgerRecord
from amends.processors.slots import Slots
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

    def put_into(self, slots: Slots, contracts: ContractBook, key: bytes, started: int) -> None:
        """Hold it as an instance."""
        for data in self.contracts:
            contracts.add(data)
        workflow = Workflow(self.header, contracts.by_digest, self.steps)
        workflow.reindex()
        slots.add(key, started).workflow = workflow


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
