"""Consumers: of a group, of partitions one names, and of ranges.

One thread owns a consumer. A librdkafka consumer called from a second thread while the first one polls may never
return, so every call from another thread raises at once. What has arrived is taken by `poll(t)` and then
`consume(n, 0)`: `consume(n, t)` would wait the whole `t` unless n records come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from amends.kafka.errors import KafkaFault, OwnershipLost, ReadTimedOut, RecordGone, TopicsWrong
from amends.kafka.options import consumer_options, logger
from amends.kafka.records import Batch, EndObserved, Record, TopicPartition, record_of
from amends.kafka.settings import KafkaSettings

HEAD = OFFSET_BEGINNING
"""Where to start: the oldest record there is."""
TAIL = OFFSET_END
"""Where to start: after the newest record there is."""

BATCH_MAX = 5_000
REQUEST_MS = 10_000
ASK_AGAIN_MS = 20
SHORT_FETCH_WAIT_MS = 10
"""For readers that jump about or look for an end: a seek, and an end, wait for the fetch that is under way."""

Answer = TypeVar("Answer")

_PASSING = frozenset({
    KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT,
    KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION,
})  # fmt: skip
"""The client tries again by itself."""

_DISOWNED = frozenset({
    KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED, KafkaError._MAX_POLL_EXCEEDED, KafkaError._ASSIGNMENT_LOST,
    KafkaError.STALE_MEMBER_EPOCH, KafkaError.FENCED_MEMBER_EPOCH,
})  # fmt: skip


class _OwnedConsumer:
    """What both kinds of consumers do. Owned by the thread that first uses it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._consumer = Consumer(options, logger=logger)
        self._owner: int | None = None

    def poll_batch(self, timeout_ms: int, max_records: int = BATCH_MAX) -> Batch:
        """Wait up to `timeout_ms` for something, then return all that has arrived, at most `max_records`.

        Callbacks of a group consumer run in here. What they raise comes out here.

        Raises:
            OwnershipLost: the group went on without this member.
            RecordGone: the place to read at is not there.
            TopicsWrong: a topic does not exist.
        """
        consumer = self._mine()
        first = consumer.poll(timeout_ms / 1000)
        if first is None:
            return Batch([], {})
        messages = [first]
        if max_records > 1:
            messages += consumer.consume(max_records - 1, 0)
        batch = Batch([], {})
        for message in messages:
            error = message.error()
            if error is None:
                batch.records.append(record_of(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                batch.ends[_place_of(message)] = _offset_of(message)
            else:
                _raise_if_grave(error, message)
        return batch

    def assignment(self) -> list[TopicPartition]:
        """Return what is assigned now."""
        return [TopicPartition(p.topic, p.partition) for p in self._mine().assignment()]

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset that `poll_batch` will return, for each partition of which anything was returned."""
        consumer = self._mine()
        held = consumer.assignment()
        positions = consumer.position(held) if held else []
        return {TopicPartition(p.topic, p.partition): p.offset for p in positions if p.offset >= 0}

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these until they are resumed. What was fetched is fetched again."""
        self._mine().pause([ClientPartition(*p) for p in partitions])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._mine().resume([ClientPartition(*p) for p in partitions])

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`. The partition must be assigned and have been polled."""
        self._mine().seek(ClientPartition(*partition, offset))

    def watermarks(self, partition: TopicPartition, deadline_ms: int = REQUEST_MS) -> tuple[int, int]:
        """Ask the broker for the oldest offset there is and the next one to be written. Raises ReadTimedOut."""
        consumer, asked = self._mine(), ClientPartition(*partition)
        return _asked(
            lambda left_s: consumer.get_watermark_offsets(asked, timeout=left_s),
            f"{partition.topic}[{partition.partition}]",
            deadline_ms,
        )

    def observe_ends(
        self, partitions: Iterable[TopicPartition], deadline_ms: int = REQUEST_MS
    ) -> dict[TopicPartition, EndObserved]:
        """Ask the brokers where these partitions end now: one request to each broker, however many partitions.

        Raises ReadTimedOut.
        """
        consumer = self._mine()
        asked = [ClientPartition(*p, OFFSET_END) for p in partitions]
        return _asked(lambda left_s: _ends(consumer, asked, left_s), "the ends of partitions", deadline_ms)

    def partitions_of(self, topic: str, deadline_ms: int = REQUEST_MS) -> int:
        """Return how many partitions a topic has. Raises TopicsWrong if there is none, ReadTimedOut."""
        consumer = self._mine()
        found = _asked(lambda left_s: consumer.list_topics(topic, timeout=left_s).topics.get(topic), topic, deadline_ms)
        if found is None or found.error is not None:
            raise TopicsWrong([f"topic {topic} does not exist; make it with `amends topics create`"])
        return len(found.partitions)

    def close(self) -> None:
        """Leave. A group consumer's `on_revoked` runs in here. Twice is harmless."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mine(self) -> Consumer:
        me = threading.get_ident()
        if self._owner is None:
            self._owner = me
        elif self._owner != me:
            raise RuntimeError("a consumer belongs to the thread that first used it; call it from there")
        return self._consumer


OnAssigned = Callable[[list[TopicPartition]], Mapping[TopicPartition, int] | None]
OnGone = Callable[[list[TopicPartition]], None]


class GroupConsumer(_OwnedConsumer):
    """A member of a consumer group that commits by hand.

    Partitions are assigned by range, so that equal partitions of co-partitioned topics come to the same member, and a
    rebalance revokes all and assigns anew.

    Args:
        instance_id: a name that stays the same over restarts (static membership): restarted within the session, the
            member gets its partitions back without a rebalance.
        session_ms: a member that was silent for so long is dead; 6,000 is the least a broker accepts by default.
        start: where a partition begins that has no committed offset: HEAD or TAIL.
        on_assigned: called before anything of the new partitions is returned and before their committed offsets are
            read; may return offsets to begin at in place of the committed ones.
        on_revoked: they are given up in order: offsets can still be committed.
        on_lost: another member may own them already: commit nothing, write nothing.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        group: str,
        topics: Sequence[str],
        instance_id: str | None = None,
        session_ms: int = 10_000,
        poll_gap_max_ms: int = 300_000,
        start: int = HEAD,
        on_assigned: OnAssigned | None = None,
        on_revoked: OnGone | None = None,
        on_lost: OnGone | None = None,
    ) -> None:
        options = consumer_options(settings, group=group) | {
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": session_ms // 3 if session_ms < 9_000 else 3_000,
            "max.poll.interval.ms": max(poll_gap_max_ms, session_ms),
            "partition.assignment.strategy": "range",
            "auto.offset.reset": "earliest" if start == HEAD else "latest",
        }
        if instance_id is not None:
            options["group.instance.id"] = instance_id
        super().__init__(options)
        self.group = group
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._consumer.subscribe(
            list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._partitions_lost
        )

    def commit(self, offsets: Mapping[TopicPartition, int], *, wait: bool = True) -> None:
        """Commit the next offset to read for each partition. `wait` False returns at once and promises nothing.

        Raises:
            OwnershipLost: refused, for the group went on without this member.
            KafkaFault: not committed; the same offsets may be committed again.
        """
        places = [ClientPartition(p.topic, p.partition, offset) for p, offset in offsets.items()]
        if not places:
            return
        try:
            if not wait:
                self._mine().commit(offsets=places, asynchronous=True)
                return
            answers = self._mine().commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            raise _commit_failed(error.args[0]) from error
        for answer in answers:
            if answer.error is not None:
                raise _commit_failed(answer.error)

    def committed(
        self, partitions: Iterable[TopicPartition], deadline_ms: int = REQUEST_MS
    ) -> dict[TopicPartition, int]:
        """Return the group's committed offsets; a partition without one is left out. Raises ReadTimedOut."""
        consumer, asked = self._mine(), [ClientPartition(*p) for p in partitions]
        answers = _asked(
            lambda left_s: consumer.committed(asked, timeout=left_s) if asked else [],
            f"offsets of group {self.group}",
            deadline_ms,
        )
        return {TopicPartition(p.topic, p.partition): p.offset for p in answers if p.offset >= 0}

    def group_metadata(self) -> object:
        """Return what a `Checkpointer` needs so that a member that was replaced is refused."""
        return self._mine().consumer_group_metadata()

    def _assigned(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        places = [TopicPartition(p.topic, p.partition) for p in partitions]
        starts = self._on_assigned(places) if self._on_assigned is not None else None
        for partition, place in zip(partitions, places, strict=True):
            if starts is not None and place in starts:
                partition.offset = starts[place]
        consumer.assign(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        if self._on_revoked is not None:
            self._on_revoked([TopicPartition(p.topic, p.partition) for p in partitions])
        consumer.unassign()

    def _partitions_lost(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        if self._on_lost is not None:
            self._on_lost([TopicPartition(p.topic, p.partition) for p in partitions])
        consumer.unassign()


class PartitionConsumer(_OwnedConsumer):
    """A consumer of partitions one names; it belongs to no group and commits nothing."""

    def __init__(self, settings: KafkaSettings, *, fetch_wait_ms: int | None = None) -> None:
        super().__init__(consumer_options(settings, group="amends-reader", fetch_wait_ms=fetch_wait_ms))

    def add(self, starts: Mapping[TopicPartition, int], deadline_ms: int = REQUEST_MS) -> dict[TopicPartition, int]:
        """Read these partitions too, from the offset given, HEAD or TAIL; return the offsets they begin at.

        HEAD and TAIL are looked up first, so that the place is known and no record falls between. Raises ReadTimedOut.
        """
        consumer = self._mine()
        found = {place: self._resolved(place, offset, deadline_ms) for place, offset in starts.items()}
        consumer.incremental_assign([ClientPartition(*place, offset) for place, offset in found.items()])
        return found

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no longer; those not read are ignored."""
        consumer = self._mine()
        held = set(self.assignment())
        consumer.incremental_unassign([ClientPartition(*p) for p in partitions if p in held])

    def replace(self, starts: Mapping[TopicPartition, int], deadline_ms: int = REQUEST_MS) -> dict[TopicPartition, int]:
        """Read these partitions and no others; return the offsets they begin at. Raises ReadTimedOut."""
        consumer = self._mine()
        found = {place: self._resolved(place, offset, deadline_ms) for place, offset in starts.items()}
        consumer.assign([ClientPartition(*place, offset) for place, offset in found.items()])
        return found

    def _resolved(self, place: TopicPartition, offset: int, deadline_ms: int) -> int:
        if offset == HEAD:
            return self.watermarks(place, deadline_ms)[0]
        return self.watermarks(place, deadline_ms)[1] if offset == TAIL else offset


class PartitionReader(PartitionConsumer):
    """Reads ranges: a changelog from its head to its end, a ledger from one offset to another.

    Its fetches are short: the last thing before an end is often a transaction's mark, so the end shows only when a
    fetch comes back empty.
    """

    def __init__(self, settings: KafkaSettings, *, fetch_wait_ms: int = SHORT_FETCH_WAIT_MS) -> None:
        super().__init__(settings, fetch_wait_ms=fetch_wait_ms)

    def ends(self, topic: str, partitions: Iterable[int], deadline_ms: int = REQUEST_MS) -> dict[TopicPartition, int]:
        """Return the next offset to be written of each partition. Raises ReadTimedOut."""
        observed = self.observe_ends([TopicPartition(topic, p) for p in partitions], deadline_ms)
        return {place: end.offset for place, end in observed.items()}

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


def _place_of(message: Message) -> TopicPartition:
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return TopicPartition(topic, partition)


def _offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _raise_if_grave(error: KafkaError, message: Message) -> None:
    code = error.code()
    if code in _DISOWNED or error.fatal():
        raise OwnershipLost(error.str())
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise RecordGone(f"{message.topic()}[{message.partition()}]@{message.offset()}: {error.str()}")
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        raise TopicsWrong([f"{message.topic()}: {error.str()}; make the topics with `amends topics create`"])
    if code not in _PASSING and not error.retriable():
        raise KafkaFault(f"{message.topic()}: {error.str()}")
    logger.warning("consumer: %s", error.str())


def _commit_failed(error: KafkaError) -> KafkaFault:
    words = f"offsets not committed: {error.str()}"
    return OwnershipLost(words) if error.code() in _DISOWNED or error.fatal() else KafkaFault(words)


def _ends(consumer: Consumer, asked: list[ClientPartition], left_s: float) -> dict[TopicPartition, EndObserved]:
    observed_at_ms = int(time.time() * 1000)
    answers = consumer.offsets_for_times(asked, timeout=left_s) if asked else []
    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
    return {TopicPartition(a.topic, a.partition): EndObserved(a.offset, observed_at_ms) for a in answers}


def _asked(request: Callable[[float], Answer], what: str, deadline_ms: int) -> Answer:
    """Make a request of the broker until it answers; a leader that moves, or is just made, is asked again."""
    give_up_at = time.monotonic() + deadline_ms / 1000
    while True:
        left_s = give_up_at - time.monotonic()
        try:
            return request(max(0.001, left_s))
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if left_s <= 0 or not (cause.code() in _PASSING or cause.retriable()):
                raise ReadTimedOut(f"{what}: {cause.str()}") from error
            time.sleep(min(ASK_AGAIN_MS / 1000, max(0.0, left_s)))
