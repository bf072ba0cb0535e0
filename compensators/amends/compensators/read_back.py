"""What a decision reads of the ledger: the facts of a workflow in a range, and a step as it was recorded.

The partition is followed at its tail by `amends.kafka`, so a read back costs no seek. Which facts matter is decided
elsewhere (`ownership.py`); this only fetches and decodes.
"""

from __future__ import annotations

import typing

from amends.compensators.effects import LedgerFact, Unreadable
from amends.compensators.handlers import PastStep, StepGone, StepOutOfReach
from amends.kafka.errors import KafkaFault, RecordGone
from amends.kafka.follower import LedgerFollower
from amends.kafka.records import Record
from amends.schemas.codec import UnreadableRecord, decode, decode_as
from amends.schemas.facts import Fact, Resolution, StepEvent
from amends.schemas.payload import UnreadablePayload
from amends.tools.step import step_from_facts

FACTS: tuple[type, ...] = typing.get_args(Fact)
DEADLINE_MS = 10_000


class WorkflowReader:
    """Reads one workflow's records of one ledger partition, which must be followed."""

    def __init__(self, follower: LedgerFollower, partition: int, key: bytes) -> None:
        self._follower = follower
        self._partition = partition
        self._key = key
        self._fetched: dict[int, Record] = {}  # of the step asked for last: an attempt asks for it more than once

    async def read_back(self, from_offset: int, to_offset: int) -> tuple[LedgerFact, ...] | Unreadable:
        """Return all that stands of the workflow in the range, what nobody can read included."""
        if from_offset > to_offset:
            return ()
        try:
            records = await self._follower.read(
                self._partition, self._key, from_offset, to_offset, deadline_ms=DEADLINE_MS
            )
        except KafkaFault as error:
            return Unreadable(str(error))
        return tuple(LedgerFact(record.offset, _fact(record)) for record in records)

    async def past_step(self, started_offset: int, outcome_offset: int, key: str) -> PastStep:
        """Return the step whose STARTED and outcome stand at these offsets; -1 where no outcome is known.

        Raises:
            StepGone, StepOutOfReach.
        """
        self._fetched = {o: r for o, r in self._fetched.items() if o in (started_offset, outcome_offset)}
        if started_offset < 0:
            raise StepGone("the command does not say where the step's STARTED stands")
        started = await self._fetch(started_offset, StepEvent)
        outcome = await self._outcome(outcome_offset) if outcome_offset >= 0 else None
        try:
            return PastStep(step_from_facts(started, outcome, key=key), started.contract)
        except UnreadablePayload as error:
            raise StepGone(f"the step at offset {started_offset} can't be read: {error}") from error

    async def _outcome(self, offset: int) -> StepEvent | Resolution:
        fact = _fact(await self._record(offset))
        if not isinstance(fact, StepEvent | Resolution):
            raise StepGone(f"no outcome of a step stands at offset {offset}, but {type(fact).__name__}")
        return fact

    async def _fetch(self, offset: int, kind: type[StepEvent]) -> StepEvent:
        record = await self._record(offset)
        try:
            return decode_as(kind, record.value, record)
        except UnreadableRecord as error:
            raise StepGone(f"the record at offset {offset} is no step: {error}") from error

    async def _record(self, offset: int) -> Record:
        if offset in self._fetched:
            return self._fetched[offset]
        try:
            record = await self._follower.fetch(self._partition, offset, deadline_ms=DEADLINE_MS)
        except RecordGone as error:
            raise StepGone(f"the ledger no longer holds the step: {error}") from error
        except KafkaFault as error:
            raise StepOutOfReach(f"the step can't be read now: {error}") from error
        self._fetched[offset] = record
        return record


def _fact(record: Record) -> Fact | None:
    try:
        found = decode(record.value, record)
    except UnreadableRecord:
        return None
    return typing.cast("Fact", found) if isinstance(found, FACTS) else None
