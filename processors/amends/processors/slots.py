"""The workflows a partition holds: by id, the instances of each; bytes, and objects while one is hot."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

from amends.processors import records
from amends.processors.contracts import ContractBook
from amends.processors.outbox import Sent
from amends.processors.parked import Parked
from amends.processors.state import BLANK_HEADER, CLOSED_PHASES, NOWHERE, Header, replace
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase

HOT_MAX = 20_000
"""Closed workflows kept decoded, at most; the others are bytes."""


@dataclass(slots=True, eq=False)
class Slot:
    """An instance of a workflow in memory."""

    workflow_key: bytes
    started: int
    """Where its STARTED stands. NOWHERE: what belongs to no instance of the id."""
    key: bytes
    """Of its header in the changelog."""
    header: bytes | None = None
    steps: list[bytes | None] = field(default_factory=list[bytes | None])
    workflow: Workflow | None = None
    sent: Sent | None = None
    parked: Parked | None = None
    """It is being folded again; nothing is known of it until then."""


class Slots:
    """The instances of one partition. Those of one id are in the order of their starts.

    Args:
        as_sent: what a workflow restored from bytes has surely sent.
    """

    def __init__(self, contracts: ContractBook, as_sent: Callable[[Workflow], Sent]) -> None:
        self._contracts = contracts
        self._as_sent = as_sent
        self._held: dict[bytes, tuple[Slot, ...]] = {}
        self._restoring: dict[bytes, Slot] = {}
        self._cool: dict[Slot, None] = {}

    def __iter__(self) -> Iterator[Slot]:
        for held in self._held.values():
            yield from held

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())

    def of(self, workflow_key: bytes) -> tuple[Slot, ...]:
        """Return the instances held of a workflow id, the newest last."""
        return self._held.get(workflow_key, ())

    def find(self, workflow_key: bytes, started: int) -> Slot | None:
        for slot in self._held.get(workflow_key, ()):
            if slot.started == started:
                return slot
        return None

    def workflow_keys(self) -> list[bytes]:
        return list(self._held)

    def add(self, workflow_key: bytes, started: int) -> Slot:
        """Make room for an instance that is not held."""
        slot = Slot(workflow_key, started, records.header_key(workflow_key, started))
        self._insert(slot)
        return slot

    def drop(self, slot: Slot) -> None:
        """Hold it no longer. Entries of heaps may still name it for a while: it is emptied."""
        left = tuple(s for s in self._held[slot.workflow_key] if s is not slot)
        if left:
            self._held[slot.workflow_key] = left
        else:
            del self._held[slot.workflow_key]
        self._cool.pop(slot, None)
        slot.header = slot.workflow = slot.sent = slot.parked = None
        slot.steps = []

    def _insert(self, slot: Slot) -> None:
        others = self._held.get(slot.workflow_key, ())
        self._held[slot.workflow_key] = tuple(sorted((*others, slot), key=lambda s: s.started)) if others else (slot,)

    # --- restore ----------------------------------------------------------------------------------------------------

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record of a workflow; in order, the last of a key counts."""
        header_key, number = records.split_key(key)
        slot = self._restoring.get(header_key)
        if slot is None:
            workflow_key, started = records.split_header_key(header_key)
            slot = self._restoring[header_key] = Slot(workflow_key, started, header_key)
        if number is None:
            slot.header = value
        elif number == len(slot.steps):
            slot.steps.append(value)
        else:
            slot.steps.extend([None] * (number + 1 - len(slot.steps)))
            slot.steps[number] = value

    def restored(self) -> Iterator[tuple[Slot, Header | None]]:
        """The changelog was read to its end: yield what is held, with its header; None if it is parked."""
        restoring, self._restoring = self._restoring, {}
        for slot in restoring.values():
            if slot.header is None:
                continue
            slot.parked = records.decode_parked(slot.header)
            header = None
            if slot.parked is not None:
                slot.header = None
            else:
                header = records.decode_header(slot.header)
                if slot.started == NOWHERE:  # kept by 0.1.0, under the bare id
                    slot.started = header.started_offset
            self._insert(slot)
            yield slot, header

    # --- hot and cold -----------------------------------------------------------------------------------------------

    def hot(self, slot: Slot) -> Workflow:
        """Return a workflow as objects."""
        workflow = slot.workflow
        if workflow is not None:
            return workflow
        if slot.header is None:
            workflow = Workflow(
                replace(BLANK_HEADER, workflow_id=slot.workflow_key.decode()), self._contracts.by_digest
            )
            slot.sent = Sent()
        else:
            workflow = Workflow(records.decode_header(slot.header), self._contracts.by_digest)
            workflow.steps = [records.decode_step(data) for data in slot.steps if data is not None]
            workflow.reindex()
            if slot.sent is None:
                slot.sent = self._as_sent(workflow)
        slot.workflow = workflow
        return workflow

    def cool(self, slot: Slot) -> None:
        """A workflow is settled, and may be kept as bytes when its turn comes."""
        self._cool.pop(slot, None)
        self._cool[slot] = None

    def chill(self, busy: Container[Slot]) -> None:
        """Keep settled workflows as bytes, beyond the last ones. Call it when what changed of them was written."""
        while len(self._cool) > HOT_MAX:
            slot = next(iter(self._cool))
            del self._cool[slot]
            if slot.workflow is not None and slot not in busy and is_settled(slot.workflow):
                slot.workflow, slot.sent = None, None


def may_unwind(header: Header) -> bool:
    """Whether a success may have a plan beside it: what an ended epoch still had under way lands late."""
    return header.phase is Phase.SUCCEEDED and bool(header.turns)


def is_settled(workflow: Workflow) -> bool:
    settled = workflow.header.phase in CLOSED_PHASES or workflow.header.phase is Phase.NONE
    return settled and not (may_unwind(workflow.header) and workflow.is_unwinding)
