"""Taking partitions over: end the owner before, learn where it stood, restore its state. In this order.

A dead owner may have left a transaction open, and a frozen one may still wake: `initialise` ends the first and refuses
the second for good. Only then are the committed offset and the changelog read, so neither can change any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from amends.kafka.consumer import GroupConsumer
from amends.kafka.errors import CheckpointAborted
from amends.kafka.owned import HEAD
from amends.kafka.reader import PartitionReader
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.kafka.transactions import Checkpointer
from amends.processors.engine import EngineError, FoldFactory, PartitionFold
from amends.processors.restoring import (
    InterruptedTakeoverError,
    first_offset,
    readable,
    reading_fast,
    recall,
    without_collector,
)
from amends.processors.tenure import Tenure

logger = logging.getLogger(__name__)

INITIALISE_TRIES = 3


class StateWithoutPlaceError(EngineError):
    """There is state, and nothing says up to which fact: folded from the ledger's beginning, it would count facts
    twice."""

    exit_code = 78


@dataclass(frozen=True, slots=True)
class Taken:
    """A partition that may be folded now."""

    tenure: Tenure
    checkpointer: Checkpointer


@dataclass(frozen=True, slots=True)
class Takeover:
    """How partitions are taken over.

    Args:
        refold: leave the state behind and fold the ledger from its beginning.
        progressed: told of records restored, a batch at a time; returns False to break the takeover off.
    """

    kafka: KafkaSettings
    application_id: str
    fold: FoldFactory
    transaction_timeout_ms: int
    pool: ThreadPoolExecutor
    progressed: Callable[[int], bool]

    def take(self, consumer: GroupConsumer, partitions: Sequence[int], *, refold: frozenset[int]) -> list[Taken]:
        """Return the partitions with their state. Blocks; at the speed of the changelog.

        Raises:
            LedgerHoleError: facts that were not folded are gone.
            StateWithoutPlaceError: there is state, and nothing says up to which fact.
            InterruptedTakeoverError: `progressed` said so.
            KafkaFault: the broker did not do its part; all may be tried again.
        """
        checkpointers = self._initialised(partitions)
        try:
            starts, placeless = self._starts(consumer, partitions, refold)
            folds = {partition: self.fold(partition) for partition in partitions}
            leftovers, with_state = self._restore(folds, refold)
            anew = (refold | placeless - with_state) & folds.keys()
            self._recall({partition: folds[partition] for partition in anew}, starts)
            with without_collector():
                for partition, fold in folds.items():
                    with readable(partition):
                        fold.restored(starts[partition] - 1)
                    self.progressed(0)
            for partition in placeless & with_state:
                raise StateWithoutPlaceError(self._placeless_in_words(partition))
            return [Taken(Tenure(p, folds[p], starts[p], drop=leftovers[p]), checkpointers[p]) for p in partitions]
        except BaseException:
            close_all(checkpointers.values())
            raise

    def _initialised(self, partitions: Sequence[int]) -> dict[int, Checkpointer]:
        """Become the owner of each partition's transactional id, all at once: each takes 0.2 s, or a second if it
        must end somebody's transaction."""
        made = {
            p: Checkpointer(
                self.kafka, transactional_id(self.application_id, p), timeout_ms=self.transaction_timeout_ms
            )
            for p in partitions
        }
        try:
            list(self.pool.map(_initialise, made.values()))
        except BaseException:
            close_all(made.values())
            raise
        return made

    def _starts(
        self, consumer: GroupConsumer, partitions: Sequence[int], refold: frozenset[int]
    ) -> tuple[dict[int, int], frozenset[int]]:
        """Return what must come next, and the partitions of which nobody knows up to where they were folded."""
        places = {p: TopicPartition(self.kafka.topics.ledger, p) for p in partitions}
        committed = consumer.committed(places.values())
        starts: dict[int, int] = {}
        for partition, place in places.items():
            first, end = consumer.watermarks(place)
            kept = None if partition in refold else committed.get(place)
            starts[partition] = first_offset(partition, kept, first, end)
        return starts, frozenset(p for p, place in places.items() if place not in committed) - refold

    def _restore(
        self, folds: dict[int, PartitionFold], refold: frozenset[int]
    ) -> tuple[dict[int, set[bytes]], frozenset[int]]:
        """Give the folds their state; return the keys of state that is left behind, for a first checkpoint to drop, and
        the partitions of which there is state."""
        with_state: set[int] = set()
        topic = self.kafka.topics.changelog()
        leftovers: dict[int, set[bytes]] = {partition: set() for partition in folds}
        with PartitionReader(reading_fast(self.kafka)) as reader, without_collector():
            ends = reader.ends(topic, folds)
            for records in reader.read(dict.fromkeys(ends, HEAD), ends):
                for record in records:
                    if record.key is None:
                        continue
                    with_state.add(record.partition)
                    if record.partition in refold:
                        leftovers[record.partition].add(record.key)
                    else:
                        with readable(record.partition):
                            folds[record.partition].restore(record.key, record.value)
                if not self.progressed(len(records)):
                    raise InterruptedTakeoverError
        return leftovers, frozenset(with_state)

    def _recall(self, folds: dict[int, PartitionFold], begins: dict[int, int]) -> None:
        """Tell folds that begin anew what the ledger holds of workflows whose beginning it has forgotten."""
        if any(begins[partition] > 0 for partition in folds):
            with PartitionReader(reading_fast(self.kafka)) as reader:
                recall(reader, self.kafka.topics.ledger, folds, begins, self.progressed)

    def _placeless_in_words(self, partition: int) -> str:
        return (
            f"there is a state of ledger partition {partition} (topic {self.kafka.topics.changelog()}), and the group "
            f"{self.application_id} has no committed offset there: nobody knows which facts are in it. Kafka forgets "
            "the offsets of a group that had no member for long (offsets.retention.minutes, a week by default), a "
            "change of engine deletes them, and another AMENDS_PROCESSOR__APPLICATION_ID has none. If that setting is "
            "right, start once with --refold: the state is built anew from the ledger"
        )


def transactional_id(application_id: str, partition: int) -> str:
    """Return the id that all owners of a partition share. It is static, so that an owner is refused by the next one."""
    return f"{application_id}-checkpoint-{partition}"


def close_all(checkpointers: Iterable[Checkpointer]) -> None:
    for checkpointer in checkpointers:
        checkpointer.close()


def _initialise(checkpointer: Checkpointer) -> None:
    for tries_left in reversed(range(INITIALISE_TRIES)):
        try:
            checkpointer.initialise()
            return
        except CheckpointAborted:
            if not tries_left:
                raise
