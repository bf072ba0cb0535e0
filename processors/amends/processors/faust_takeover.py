"""Taking partitions over under Faust: read the changelog to its end, choose what counts, know what must come next.

Nobody is fenced here. The owner before may have died in the middle of a checkpoint, or be frozen and write on when it
wakes. Neither matters: what counts is told by seals and marks (`faust_changelog`), not by who wrote last. Where the
group stands does not count either: the state itself says up to which fact it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from amends.kafka.consumer import committed_offsets
from amends.kafka.owned import HEAD
from amends.kafka.reader import PartitionReader
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.processors.engine import FoldFactory
from amends.processors.faust_changelog import LEFT_KEY, Mark, Rank, Restored, Restoring, Value, mark_of
from amends.processors.restoring import (
    InterruptedTakeoverError,
    first_offset,
    readable,
    reading_fast,
    recall,
    without_collector,
)
from amends.processors.tenure import Tenure
from amends.schemas.topics import FAUST

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """A partition that may be folded now. `era` is the one its records are to be written in, `end` where the changelog
    ended, `again` what is to be written again of it, `contested` what is to be written over, `sealed` the rank of
    the state. `is_passed`: the group stands behind what must come next."""

    tenure: Tenure
    era: int
    end: int
    again: list[tuple[bytes, Value, Mark]]
    is_passed: bool = False
    contested: dict[bytes, Value] = field(default_factory=dict[bytes, Value])
    sealed: Rank | None = None


@dataclass(frozen=True, slots=True)
class FaustTakeover:
    """How partitions are taken over.

    Args:
        progressed: told of records restored, a batch at a time; returns False to break the takeover off.
    """

    kafka: KafkaSettings
    group: str
    fold: FoldFactory
    progressed: Callable[[int], bool]

    def take(self, partitions: Collection[int], refold: Collection[int]) -> list[Taken]:
        """Return the partitions with their state. Blocks; at the speed of the changelog.

        Raises:
            LedgerHoleError: facts that were not folded are gone.
            StateUnreadableError: somebody else wrote to the changelog.
            InterruptedTakeoverError: `progressed` said so.
            KafkaFault: the broker did not do its part; all may be tried again.
        """
        if not partitions:
            return []
        with PartitionReader(reading_fast(self.kafka)) as reader, without_collector():
            ends = reader.ends(self.kafka.topics.changelog(FAUST), partitions)
            found = restored(reader, ends, self.progressed)
            taken = [
                self._taken(reader, place.partition, end, found[place.partition], refold=place.partition in refold)
                for place, end in ends.items()
            ]
        ledger = self.kafka.topics.ledger
        stands = committed_offsets(self.kafka, self.group, [TopicPartition(ledger, p) for p in partitions])
        passed = {place.partition: offset for place, offset in stands.items()}
        return [
            replace(each, is_passed=passed.get(each.tenure.partition, 0) > each.tenure.next_offset) for each in taken
        ]

    def _taken(self, reader: PartitionReader, partition: int, end: int, found: Restored, *, refold: bool) -> Taken:
        begins, ends = reader.watermarks(TopicPartition(self.kafka.topics.ledger, partition))
        kept = None if refold or found.sealed is None else found.sealed.folded_to + 1
        next_offset = first_offset(partition, kept, begins, ends)
        fold = self.fold(partition)
        with readable(partition):
            if not refold:
                for key, value in found.state.items():
                    fold.restore(key, value)
            if kept is None:
                recall(reader, self.kafka.topics.ledger, {partition: fold}, {partition: begins}, self.progressed)
            fold.restored(next_offset - 1)
        self.progressed(0)
        if refold or found.sealed is None:
            # A new era outranks whatever was begun and never sealed, too.
            return Taken(Tenure(partition, fold, next_offset, drop=found.keys), found.era_max + 1, end, [])
        return Taken(
            Tenure(partition, fold, next_offset),
            found.sealed.era,
            end,
            found.again,
            contested=found.contested,
            sealed=found.sealed,
        )


def restored(
    reader: PartitionReader, ends: Mapping[TopicPartition, int], progressed: Callable[[int], bool] = lambda _: True
) -> dict[int, Restored]:
    """Read partitions of the changelog up to `ends`. Raises as `FaustTakeover.take`."""
    restoring = {place.partition: Restoring() for place in ends}
    left: set[int] = set()
    for records in reader.read(dict.fromkeys(ends, HEAD), ends):
        for record in records:
            if record.key is None:
                continue
            if record.key == LEFT_KEY:
                (left.discard if record.value is None else left.add)(record.partition)
                continue
            with readable(record.partition):
                restoring[record.partition].take(record.key, record.value, mark_of(record.headers))
        if not progressed(len(records)):
            raise InterruptedTakeoverError
    return {partition: _with_left(each.ended(), partition in left) for partition, each in restoring.items()}


def late_records(
    kafka: KafkaSettings,
    reader: PartitionReader,
    partition: int,
    since: int,
    rank: Rank,
    progressed: Callable[[int], bool] = lambda _: True,
) -> tuple[list[tuple[bytes, Value, Mark]], int, Rank]:
    """Return what is to be written again of a partition, where its changelog ends, and the highest mark up to there.

    An owner's own marks only rise. Only where one falls, from offset `since` on, has somebody written who was replaced,
    or was something written again: then the whole is read.

    Args:
        rank: the highest before `since`.
        progressed: told of records read, a batch at a time; returns False to break off.

    Raises:
        StateUnreadableError: somebody else wrote to the changelog.
        InterruptedTakeoverError: `progressed` said so.
        KafkaFault: the broker did not do its part.
    """
    topic = kafka.topics.changelog(FAUST)
    ends = reader.ends(topic, [partition])
    place, end = next(iter(ends.items()))
    since = max(since, reader.watermarks(place)[0])
    falls = False
    for records in reader.read({place: since}, ends) if since < end else ():
        for record in records:
            if record.key is not None and record.key != LEFT_KEY:
                with readable(partition):
                    found = mark_of(record.headers).rank
                falls = falls or found < rank
                rank = max(rank, found)
        if not progressed(len(records)):
            raise InterruptedTakeoverError
    return (restored(reader, ends, progressed)[partition].again if falls else []), end, rank


def _with_left(found: Restored, is_left: bool) -> Restored:
    if not is_left:
        return found
    return replace(found, keys=found.keys | {LEFT_KEY})
