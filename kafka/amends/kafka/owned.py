"""What all consumers do.

One thread owns a consumer. A librdkafka consumer called from a second thread while the first one polls may never
return, so every call from another thread raises at once. What has arrived is taken by `poll(t)` and then
`consume(n, 0)`: `consume(n, t)` would wait the whole `t` unless n records come.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from amends.kafka.embedded import TrueEnds
from amends.kafka.errors import GroupRefused, KafkaFault, OwnershipLost, ReadTimedOut, RecordGone, TopicsWrong
from amends.kafka.handles import Consumer
from amends.kafka.options import logger
from amends.kafka.permission import NO_RIGHT, no_right
from amends.kafka.records import Batch, EndObserved, TopicPartition, record_of
from amends.kafka.turned_away import turned_away

HEAD = OFFSET_BEGINNING
"""Where to start: the oldest record there is."""
TAIL = OFFSET_END
"""Where to start: after the newest record there is."""

BATCH_MAX = 5_000
LOAD_RECORDS = 4
"""So many records at once are a sign of load; less may be one workflow whose next step waits for us."""
GATHER_MS = 2
"""What those who follow a topic under load leave for more to come (`OwnedConsumer`, gather_ms)."""
REQUEST_MS = 10_000
ASK_AGAIN_MS = 20
SHORT_FETCH_WAIT_MS = 10
"""For readers that jump about or look for an end: a seek, and an end, wait for the fetch that is under way."""

Answer = TypeVar("Answer")

PASSING = frozenset({
    KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT,
    KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE,
})  # fmt: skip
"""The client tries again by itself: leaders and coordinators move, and a topic that was just made has none yet."""

DISOWNED = frozenset({
    KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED, KafkaError._MAX_POLL_EXCEEDED, KafkaError._ASSIGNMENT_LOST,
    KafkaError.STALE_MEMBER_EPOCH, KafkaError.FENCED_MEMBER_EPOCH,
})  # fmt: skip


class OwnedConsumer:
    """What both kinds of consumers do. Owned by the thread that first uses it.

    Args:
        true_ends: for a broker that names ends too early, see `embedded`.
        gather_ms: after a batch that shows load, so long is left for more to come before the next one is taken. Each
            batch wakes a thread, and it fights the others for the interpreter: the fewer, the better.
    """

    group = ""
    """The consumer group it is a member of, if any."""

    def __init__(self, options: dict[str, Any], true_ends: TrueEnds | None, *, gather_ms: int = 0) -> None:
        self._true_ends = true_ends
        self._gather_s = gather_ms / 1000
        self._loaded = False
        self._options = options
        self._consumer = Consumer(options, logger=logger)
        self._owner: int | None = None
        self._assignments = 0  # counts what a group gave and took; callbacks of a member run inside poll and consume

    def poll_batch(self, timeout_ms: int, max_records: int = BATCH_MAX) -> Batch:
        """Wait up to `timeout_ms` for something, then return all that has arrived, at most `max_records`.

        Callbacks of a group consumer run in here. What they raise comes out here.

        Raises:
            OwnershipLost: the group went on without this member.
            RecordGone: the place to read at is not there.
            TopicsWrong: a topic does not exist.
            AccessRefused: this client may not read it, or not be a member of its group.
        """
        consumer = self._mine()
        if self._loaded and self._gather_s:
            time.sleep(min(self._gather_s, timeout_ms / 1000))
        first = consumer.poll(timeout_ms / 1000)
        if first is None:
            self._loaded = False
            return Batch([], {})
        assignments = self._assignments
        messages = consumer.consume(max_records - 1, 0) if max_records > 1 else []
        if self._assignments == assignments or first.error() is not None:
            messages.insert(0, first)
        # Else the group rebalanced in between. The first record is of an assignment that has ended; if its partition
        # came back, it is read again from what was committed, and would come after itself.
        self._loaded = LOAD_RECORDS <= len(messages) < max_records
        return self._batch_of(messages)

    def _batch_of(self, messages: list[Message]) -> Batch:
        batch = Batch([], {})
        again: dict[TopicPartition, int] = {}
        holes = None if self._true_ends is None else self._true_ends.holes
        for message in messages:
            error = message.error()
            if holes is not None and again and _place_of(message) in again:
                continue  # behind a hole, or its end
            if error is None:
                if (
                    holes is not None
                    and (missing := holes.is_before(_place_of(message), _offset_of(message))) is not None
                ):
                    again[_place_of(message)] = missing
                    continue
                batch.records.append(record_of(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                batch.ends[_place_of(message)] = _offset_of(message)
            elif self.group or error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                # The client looks for the coordinator of a group also where it is in none; that right is not needed.
                _raise_if_grave(error, message, self.group)
        for place, offset in again.items():
            with contextlib.suppress(KafkaException):  # taken away meanwhile: whoever has it now begins elsewhere
                self._mine().seek(ClientPartition(*place, offset))
        return batch

    def hurry(self) -> None:
        """Leave no time for more before the next batch, however much the last one brought."""
        self._loaded = False

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
        self._reads_elsewhere()
        self._mine().seek(ClientPartition(*partition, offset))

    def _reads_elsewhere(self) -> None:
        if self._true_ends is not None:
            self._true_ends.holes.forget()

    @property
    def reads_embedded(self) -> bool:
        """Whether this is the embedded broker, of which some answers are wrong (`embedded`)."""
        return self._true_ends is not None

    def watermarks(self, partition: TopicPartition, deadline_ms: int = REQUEST_MS) -> tuple[int, int]:
        """Ask the broker for the oldest offset there is and the next one to be written. Raises ReadTimedOut."""
        consumer, asked = self._mine(), ClientPartition(*partition)
        first, end = asked_of_broker(
            lambda left_s: consumer.get_watermark_offsets(asked, timeout=left_s),
            f"{partition.topic}[{partition.partition}]",
            deadline_ms,
        )
        return first, end if self._true_ends is None else self._true_ends.after({partition: end}, deadline_ms)[
            partition
        ]

    def observe_ends(
        self, partitions: Iterable[TopicPartition], deadline_ms: int = REQUEST_MS
    ) -> dict[TopicPartition, EndObserved]:
        """Ask the brokers where these partitions end now: one request to each broker, however many partitions.

        Raises ReadTimedOut.
        """
        named = self._named_ends(partitions, deadline_ms)
        if self._true_ends is None:
            return named
        found = self._true_ends.after({place: end.offset for place, end in named.items()}, deadline_ms)
        return {place: EndObserved(found[place], end.observed_at_ms) for place, end in named.items()}

    def _named_ends(self, partitions: Iterable[TopicPartition], deadline_ms: int) -> dict[TopicPartition, EndObserved]:
        """Return the ends as the brokers name them: never too late, on the embedded broker too early."""
        consumer = self._mine()
        asked = [ClientPartition(*p, OFFSET_END) for p in partitions]
        return asked_of_broker(lambda left_s: _ends(consumer, asked, left_s), "the ends of partitions", deadline_ms)

    def partitions_of(self, topic: str, deadline_ms: int = REQUEST_MS) -> int:
        """Return how many partitions a topic has. Raises TopicsWrong if there is none, AccessRefused, ReadTimedOut."""
        consumer = self._mine()
        found = asked_of_broker(
            lambda left_s: consumer.list_topics(topic, timeout=left_s).topics.get(topic), topic, deadline_ms
        )
        if found is not None and found.error is not None and found.error.code() in NO_RIGHT:
            raise no_right(f"topic {topic}", found.error)
        if found is None or found.error is not None:
            raise TopicsWrong([f"topic {topic} does not exist; make it with `amends topics create`"])
        return len(found.partitions)

    def close(self) -> None:
        """Leave. A group consumer's `on_revoked` runs in here. Twice is harmless."""
        self._consumer.close()
        if self._true_ends is not None:
            self._true_ends.close()

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


def _place_of(message: Message) -> TopicPartition:
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return TopicPartition(topic, partition)


def _offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _raise_if_grave(error: KafkaError, message: Message, group: str) -> None:
    code = error.code()
    if code in DISOWNED or error.fatal():
        raise OwnershipLost(error.str())
    if code == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
        raise GroupRefused(error.str())
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise RecordGone(f"{message.topic()}[{message.partition()}]@{message.offset()}: {error.str()}")
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        raise TopicsWrong([f"{message.topic()}: {error.str()}; make the topics with `amends topics create`"])
    if code in NO_RIGHT:
        turned_away.hear(error)
        raise no_right(f"topic {message.topic()}" if message.topic() else f"group {group}", error)
    if code not in PASSING and not error.retriable():
        raise KafkaFault(f"{message.topic()}: {error.str()}")
    logger.warning("consumer: %s", error.str())


def _ends(consumer: Consumer, asked: list[ClientPartition], left_s: float) -> dict[TopicPartition, EndObserved]:
    observed_at_ms = int(time.time() * 1000)
    answers = consumer.offsets_for_times(asked, timeout=left_s) if asked else []
    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
    return {TopicPartition(a.topic, a.partition): EndObserved(a.offset, observed_at_ms) for a in answers}


def asked_of_broker(request: Callable[[float], Answer], what: str, deadline_ms: int) -> Answer:
    """Make a request of the broker until it answers; a leader that moves, or is just made, is asked again."""
    give_up_at = time.monotonic() + deadline_ms / 1000
    while True:
        left_s = give_up_at - time.monotonic()
        try:
            return request(max(0.001, left_s))
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if cause.code() in NO_RIGHT:
                raise no_right(what, cause) from error
            if left_s <= 0 or not (cause.code() in PASSING or cause.retriable()):
                raise ReadTimedOut(f"{what}: {cause.str()}") from error
            time.sleep(min(ASK_AGAIN_MS / 1000, max(0.0, left_s)))
