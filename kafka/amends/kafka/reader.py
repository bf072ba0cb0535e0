"""Readers of partitions one names: at the tail, and of ranges. They belong to no group and commit nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import TopicPartition as ClientPartition

from amends.kafka.embedded import true_ends
from amends.kafka.errors import ReadTimedOut
from amends.kafka.handles import Consumer
from amends.kafka.options import consumer_options, logger
from amends.kafka.owned import HEAD, REQUEST_MS, SHORT_FETCH_WAIT_MS, TAIL, OwnedConsumer, asked_of_broker
from amends.kafka.records import EndObserved, Record, TopicPartition
from amends.kafka.settings import KafkaSettings


class PartitionConsumer(OwnedConsumer):
    """A consumer of partitions one names; it belongs to no group and commits nothing.

    Args:
        says_ends: whether batches name the ends that were reached. Each is an event like a record, one for nearly every
            record where little comes at once.
        gather_ms: see `OwnedConsumer`.
    """

    def __init__(
        self, settings: KafkaSettings, *, fetch_wait_ms: int | None = None, says_ends: bool = True, gather_ms: int = 0
    ) -> None:
        options = consumer_options(settings, group="amends-reader", fetch_wait_ms=fetch_wait_ms)
        super().__init__(options | {"enable.partition.eof": says_ends}, true_ends(settings), gather_ms=gather_ms)

    def add(self, starts: Mapping[TopicPartition, int], deadline_ms: int = REQUEST_MS) -> dict[TopicPartition, int]:
        """Read these partitions too, from the offset given, HEAD or TAIL; return the offsets they begin at.

        HEAD and TAIL are looked up first, so that the place is known and no record falls between. On the embedded
        broker TAIL may be inside the last batch. Raises ReadTimedOut.
        """
        consumer = self._mine()
        found = self._resolved(starts, deadline_ms)
        self._reads_elsewhere()
        consumer.incremental_assign([ClientPartition(*place, offset) for place, offset in found.items()])
        return found

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no longer; those not read are ignored."""
        consumer = self._mine()
        held = set(self.assignment())
        self._reads_elsewhere()
        consumer.incremental_unassign([ClientPartition(*p) for p in partitions if p in held])

    def replace(self, starts: Mapping[TopicPartition, int], deadline_ms: int = REQUEST_MS) -> dict[TopicPartition, int]:
        """Read these partitions and no others; return the offsets they begin at. Raises ReadTimedOut."""
        consumer = self._mine()
        found = self._resolved(starts, deadline_ms)
        self._reads_elsewhere()
        consumer.assign([ClientPartition(*place, offset) for place, offset in found.items()])
        return found

    def _resolved(self, starts: Mapping[TopicPartition, int], deadline_ms: int) -> dict[TopicPartition, int]:
        tails = [place for place, offset in starts.items() if offset == TAIL]
        # One request for all: each would wait for the fetch that is under way.
        ends = self._named_ends(tails, deadline_ms) if tails else {}
        return {
            place: ends[place].offset
            if offset == TAIL
            else self._head(place, deadline_ms)
            if offset == HEAD
            else offset
            for place, offset in starts.items()
        }

    def _head(self, place: TopicPartition, deadline_ms: int) -> int:
        return self.watermarks(place, deadline_ms)[0]


class PartitionReader(PartitionConsumer):
    """Reads ranges: a changelog from its head to its end, a ledger from one offset to another.

    Its fetches are short: the last thing before an end is often a transaction's mark, so the end shows only when a
    fetch comes back empty.
    """

    def __init__(self, settings: KafkaSettings, *, fetch_wait_ms: int = SHORT_FETCH_WAIT_MS) -> None:
        super().__init__(settings, fetch_wait_ms=fetch_wait_ms)

    def observe_ends(
        self, partitions: Iterable[TopicPartition], deadline_ms: int = REQUEST_MS
    ) -> dict[TopicPartition, EndObserved]:
        """See `OwnedConsumer`. After no answer another client asks the next time: one may lose sight of a topic for
        good (see `follower.REPLACE_AFTER_MS`), and what waits for an answer here would wait for ever."""
        try:
            return super().observe_ends(partitions, deadline_ms)
        except ReadTimedOut:
            if not self._mine().assignment():
                self._consumer.close()
                self._consumer = Consumer(self._options, logger=logger)
            raise

    def ends(self, topic: str, partitions: Iterable[int], deadline_ms: int = REQUEST_MS) -> dict[TopicPartition, int]:
        """Return the next offset to be written of each partition. Raises ReadTimedOut."""
        observed = self.observe_ends([TopicPartition(topic, p) for p in partitions], deadline_ms)
        return {place: end.offset for place, end in observed.items()}

    def offset_at(self, place: TopicPartition, at_ms: int, deadline_ms: int = REQUEST_MS) -> int:
        """Return where the first record stands that was appended at `at_ms` or later; the end if there is none.

        The embedded broker does not look at single records: there it is where the partition begins. Raises
        ReadTimedOut.
        """
        start, end = self.watermarks(place, deadline_ms)
        if self.reads_embedded:
            return start
        consumer, asked = self._mine(), ClientPartition(*place, at_ms)
        (found,) = asked_of_broker(
            lambda left_s: consumer.offsets_for_times([asked], timeout=left_s),
            f"{place.topic}[{place.partition}]",
            deadline_ms,
        )
        return found.offset if found.offset >= 0 else end

    def read(
        self,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        *,
        idle_max_ms: int = 30_000,
    ) -> Iterator[list[Record]]:
        """Yield, in batches, every record from `starts` up to, not including, `ends`; those of one partition in order.

        Raises:
            ReadTimedOut: nothing came for `idle_max_ms`.
            RecordGone: the topic no longer holds an offset of `starts`.
        """
        open_ends = dict(ends)
        begun = self.replace({place: starts[place] for place in open_ends})
        for place, start in begun.items():
            if start >= open_ends[place]:
                self._done(open_ends, place)
        try:
            yield from self._until(open_ends, idle_max_ms)
        finally:
            self._mine().unassign()

    def _until(self, open_ends: dict[TopicPartition, int], idle_max_ms: int) -> Iterator[list[Record]]:
        give_up_at = time.monotonic() + idle_max_ms / 1000
        while open_ends:
            batch = self.poll_batch(100)
            if batch.records or batch.ends:
                give_up_at = time.monotonic() + idle_max_ms / 1000
            elif time.monotonic() > give_up_at:
                raise ReadTimedOut(f"nothing read of {sorted(open_ends)} for {idle_max_ms} ms")
            wanted, reached = _within(batch.records, open_ends)
            if wanted:
                yield wanted
            # An end that was reached without its last record: what stood there was no record, but a transaction's mark,
            # or has been compacted away.
            reached |= {place for place, offset in batch.ends.items() if offset >= open_ends.get(place, offset + 1)}
            for place in reached:
                self._done(open_ends, place)

    def _done(self, open_ends: dict[TopicPartition, int], place: TopicPartition) -> None:
        del open_ends[place]
        self.remove([place])


def _within(records: list[Record], open_ends: Mapping[TopicPartition, int]) -> tuple[list[Record], set[TopicPartition]]:
    """Return the records before their partition's end, and the partitions whose end they reach."""
    wanted: list[Record] = []
    reached: set[TopicPartition] = set()
    for record in records:
        place = TopicPartition(record.topic, record.partition)
        end = open_ends.get(place)
        if end is None:
            continue
        if record.offset < end:
            wanted.append(record)
        if record.offset >= end - 1:
            reached.add(place)
    return wanted, reached
