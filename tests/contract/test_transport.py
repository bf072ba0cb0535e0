"""What every broker must do for us: one suite for the embedded one and for Apache Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.integration.kafka_parts import eventually, settings_of, take, with_topics, write_all

from amends.kafka import (
    HEAD,
    TAIL,
    Ack,
    Checkpointer,
    CheckpointFenced,
    GroupConsumer,
    KafkaSettings,
    LedgerFollower,
    NotWritten,
    Outgoing,
    PartitionConsumer,
    PartitionReader,
    Publisher,
    ReadTimedOut,
    RecordGone,
    TopicPartition,
    WriteError,
    check_topics,
    examine_topics,
)
from amends.kafka.follower import REST_MS
from amends.local.kafka_server import KafkaServer
from amends.schemas.keys import partition_for

PARTITIONS = 4


@pytest.fixture(params=["embedded_kafka", pytest.param("kafka", marks=pytest.mark.kafka)])
def server(request: pytest.FixtureRequest) -> KafkaServer:
    broker: KafkaServer = request.getfixturevalue(request.param)
    return broker


@pytest.fixture
def settings(server: KafkaServer, topic_prefix: str) -> KafkaSettings:
    return with_topics(server, topic_prefix, partitions=PARTITIONS)


@pytest.fixture
def publisher(settings: KafkaSettings) -> Iterator[Publisher]:
    with Publisher(settings) as publisher:
        yield publisher


def read_all(settings: KafkaSettings, topic: str) -> list[bytes | None]:
    """Return the values of everything that is visible on a topic."""
    with PartitionReader(settings) as reader:
        ends = reader.ends(topic, range(PARTITIONS))
        return [r.value for batch in reader.read(dict.fromkeys(ends, HEAD), ends) for r in batch]


def group(settings: KafkaSettings, name: str, topic: str, **more: Any) -> GroupConsumer:
    return GroupConsumer(settings, group=name, topics=[topic], session_ms=6_000, **more)


@contextlib.contextmanager
def following(settings: KafkaSettings, **more: Any) -> Iterator[LedgerFollower]:
    """A follower that has come to the end of partition 0."""
    with LedgerFollower(settings, settings.topics.ledger, **more) as follower:
        follower.follow(0)
        eventually(lambda: follower.followed_to(0) is not None)
        yield follower


# Writing


def test_the_client_puts_a_key_where_our_own_partitioner_says(settings: KafkaSettings, publisher: Publisher) -> None:
    keys = [f"order-{n}".encode() for n in range(60)] + ["größe-✓".encode(), b"\x00\xff\xfe", b"a", b"ab", b"abc"]
    answers: dict[bytes, Ack | WriteError] = {}

    def keep(key: bytes, answer: Ack | WriteError) -> None:
        answers[key] = answer

    for key in keys:
        publisher.send(settings.topics.ledger, key=key, value=b"", on_done=partial(keep, key))
    assert publisher.flush() == 0
    found = {key: answer.partition for key, answer in answers.items() if isinstance(answer, Ack)}
    assert found == {key: partition_for(key, PARTITIONS) for key in keys}


def test_an_explicit_partition_wins_over_the_key(settings: KafkaSettings, publisher: Publisher) -> None:
    other = (partition_for(b"order-1", PARTITIONS) + 1) % PARTITIONS
    assert publisher.publish_sync(settings.topics.ledger, key=b"order-1", value=b"", partition=other).partition == other


def test_a_record_is_read_as_it_was_written(settings: KafkaSettings, publisher: Publisher) -> None:
    topic = settings.topics.incidents
    headers = [("ce_id", b"1"), ("again", b"a"), ("again", b"b"), ("empty", b"")]
    first = publisher.publish_sync(topic, key=b"k", value=b"\x00value", headers=headers)
    second = publisher.publish_sync(topic, key=b"k", value=None)
    with PartitionReader(settings) as reader:
        place = TopicPartition(topic, first.partition)
        (whole, tombstone) = [r for b in reader.read({place: first.offset}, {place: second.offset + 1}) for r in b]
    assert (whole.key, whole.value, list(whole.headers)) == (b"k", b"\x00value", headers)
    assert whole.header("again") == b"b"
    assert (whole.offset, whole.appended_at_ms) == (first.offset, first.appended_at_ms)
    assert tombstone.value is None


def test_what_a_turn_of_the_loop_publishes_stands_before_what_is_sent_after_it(
    settings: KafkaSettings, publisher: Publisher
) -> None:
    topic, sent = settings.topics.ledger, b"sent by callback"

    async def write() -> None:
        published = [
            asyncio.ensure_future(publisher.publish(topic, key=b"k", value=b"%d" % n, partition=0)) for n in range(3)
        ]
        await asyncio.sleep(0)  # they have begun; their turn has not ended
        publisher.send(topic, key=b"k", value=sent, partition=0, on_done=lambda _: None)
        published[0].cancel()  # it may be written, and is
        await asyncio.wait(published)

    asyncio.run(write())
    assert publisher.flush() == 0
    assert read_all(settings, topic) == [b"0", b"1", b"2", sent]


def test_records_published_together_are_answered_in_order_and_each_for_itself(
    settings: KafkaSettings, publisher: Publisher
) -> None:
    topic, huge = settings.topics.ledger, b"x" * 3_000_000

    async def write() -> list[Ack | WriteError]:
        return await publisher.publish_each([Outgoing(topic, b"k", value, 0) for value in (b"0", huge, b"1")])

    first, refused, second = asyncio.run(write())
    assert isinstance(first, Ack)
    assert isinstance(refused, NotWritten)
    assert isinstance(second, Ack)
    assert first.offset < second.offset
    assert read_all(settings, topic) == [b"0", b"1"]


def test_every_thread_and_every_loop_gets_its_own_answers(settings: KafkaSettings, publisher: Publisher) -> None:
    offsets: list[tuple[int, int]] = []

    async def write(name: int) -> None:
        acks = await asyncio.gather(
            *(publisher.publish(settings.topics.ledger, key=b"%d-%d" % (name, n), value=b"") for n in range(50))
        )
        offsets.extend((ack.partition, ack.offset) for ack in acks)

    threads = [threading.Thread(target=lambda name=name: asyncio.run(write(name))) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(offsets) == len(set(offsets)) == 200


def test_a_record_that_is_too_large_is_certainly_not_written(settings: KafkaSettings, publisher: Publisher) -> None:
    with pytest.raises(NotWritten, match="too large"):
        publisher.publish_sync(settings.topics.ledger, key=b"k", value=bytes(3_000_000))


def test_answers_that_are_gathered_come_at_once_to_who_flushes(settings: KafkaSettings) -> None:
    answers: list[Ack | WriteError] = []
    came = threading.Event()

    def note(answer: Ack | WriteError) -> None:
        answers.append(answer)
        came.set()

    with Publisher(settings, gather_ms=60_000) as publisher:
        publisher.send(settings.topics.ledger, key=b"k", value=b"first", on_done=note)
        assert came.wait(20)
        publisher.send(settings.topics.ledger, key=b"k", value=b"second", on_done=note)
        assert publisher.flush(20_000) == 0
        assert [type(answer) for answer in answers] == [Ack, Ack]
        publisher.send(settings.topics.ledger, key=b"k", value=b"third", on_done=note)
    assert [type(answer) for answer in answers] == [Ack, Ack, Ack], "nor does it keep who closes waiting"


def test_a_closed_publisher_refuses(settings: KafkaSettings) -> None:
    publisher = Publisher(settings)
    publisher.close()
    publisher.close()
    with pytest.raises(NotWritten, match="closed"):
        publisher.publish_sync(settings.topics.ledger, key=b"k", value=b"")


# Reading


def test_a_group_goes_on_where_it_committed(settings: KafkaSettings, publisher: Publisher) -> None:
    topic = settings.topics.undo("default")
    write_all(publisher, topic, ["a", "b", "c"], partition=0)
    with group(settings, "workers", topic) as first:
        seen = take(first, 3)
        first.commit({TopicPartition(topic, 0): seen[1].offset + 1})
    with group(settings, "workers", topic) as second:
        assert [record.value for record in take(second, 1)] == [b"c"]
        assert second.committed([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): seen[1].offset + 1}


def test_a_group_hears_what_it_gets_and_gives_up_and_may_say_where_to_begin(
    settings: KafkaSettings, publisher: Publisher
) -> None:
    topic = settings.topics.ledger
    write_all(publisher, topic, ["a", "b", "c"], partition=2)
    place = TopicPartition(topic, 2)
    heard: list[tuple[str, int]] = []

    def assigned(places: list[TopicPartition]) -> dict[TopicPartition, int]:
        heard.append(("assigned", len(places)))
        return {place: 2}

    def revoked(places: list[TopicPartition]) -> None:
        heard.append(("revoked", len(places)))

    consumer = group(settings, "fold", topic, on_assigned=assigned, on_revoked=revoked)
    assert [record.value for record in take(consumer, 1)] == [b"c"]
    assert consumer.positions()[place] == 3
    consumer.close()
    assert heard == [("assigned", PARTITIONS), ("revoked", PARTITIONS)]


def test_a_consumer_refuses_a_second_thread(settings: KafkaSettings) -> None:
    with PartitionConsumer(settings) as consumer:
        consumer.poll_batch(0)
        raised: list[BaseException] = []

        def poll() -> None:
            try:
                consumer.poll_batch(0)
            except RuntimeError as error:
                raised.append(error)

        thread = threading.Thread(target=poll)
        thread.start()
        thread.join()
    assert "belongs to the thread" in str(raised[0])


def test_the_end_of_a_partition_is_reported_and_can_be_asked_for(settings: KafkaSettings, publisher: Publisher) -> None:
    place = TopicPartition(settings.topics.ledger, 1)
    write_all(publisher, place.topic, ["a", "b"], partition=1)
    with PartitionConsumer(settings) as consumer:
        assert consumer.add({place: HEAD}) == {place: 0}
        ends = eventually(lambda: consumer.poll_batch(100).ends)
        assert ends == {place: 2}
        quiet = TopicPartition(place.topic, 3)
        observed = consumer.observe_ends([place, quiet])
        assert {p: end.offset for p, end in observed.items()} == {place: 2, quiet: 0}
        assert consumer.watermarks(place) == (0, 2)
        assert consumer.partitions_of(place.topic) == PARTITIONS


def test_an_end_is_after_the_last_record_of_a_batch(settings: KafkaSettings, publisher: Publisher) -> None:
    place = TopicPartition(settings.topics.ledger, 1)
    values = [b"%d" % number for number in range(50)]
    for value in values:  # not waited for: they go to the broker together
        publisher.send(place.topic, key=b"k", value=value, partition=place.partition, on_done=lambda _: None)
    assert publisher.flush() == 0
    with PartitionConsumer(settings) as consumer:
        assert consumer.observe_ends([place])[place].offset == 50
        assert consumer.watermarks(place) == (0, 50)
    assert read_all(settings, place.topic) == values


def test_a_consumer_at_the_tail_misses_nothing_that_comes_after(settings: KafkaSettings, publisher: Publisher) -> None:
    place = TopicPartition(settings.topics.ledger, 0)
    write_all(publisher, place.topic, ["before"], partition=0)
    with PartitionConsumer(settings) as consumer:
        consumer.add({place: TAIL})
        write_all(publisher, place.topic, ["after"], partition=0)
        assert [r.value for r in eventually(lambda: consumer.poll_batch(100).records)] == [b"after"]


def test_a_paused_partition_is_silent_until_it_is_resumed(settings: KafkaSettings, publisher: Publisher) -> None:
    topic = settings.topics.ledger
    paused, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with PartitionConsumer(settings) as consumer:
        consumer.add({paused: HEAD, other: HEAD})
        consumer.pause([paused])
        write_all(publisher, topic, ["paused"], partition=0)
        write_all(publisher, topic, ["other"], partition=1)
        assert [r.value for r in eventually(lambda: consumer.poll_batch(100).records)] == [b"other"]
        consumer.resume([paused])
        assert [r.value for r in eventually(lambda: consumer.poll_batch(100).records)] == [b"paused"]


def test_a_range_is_read_to_its_end_and_no_further(settings: KafkaSettings, publisher: Publisher) -> None:
    place = TopicPartition(settings.topics.ledger, 0)
    write_all(publisher, place.topic, [str(n) for n in range(20)], partition=0)
    with PartitionReader(settings) as reader:
        values = [r.value for b in reader.read({place: 5}, {place: 12}) for r in b]
        assert values == [str(n).encode() for n in range(5, 12)]
        assert list(reader.read({place: 5}, {place: 5})) == []
        with pytest.raises(ReadTimedOut):
            list(reader.read({place: 15}, {place: 25}, idle_max_ms=300))


# Following


async def test_a_follower_gives_what_was_said_of_a_key(settings: KafkaSettings, publisher: Publisher) -> None:
    topic = settings.topics.ledger
    old = write_all(publisher, topic, ["mine", "other", "mine"], partition=0)
    with following(settings) as follower:
        new = write_all(publisher, topic, ["mine", "other", "mine"], partition=0)

        async def offsets(from_offset: int, to_offset: int, key: bytes = b"mine") -> list[int]:
            return [record.offset for record in await follower.read(0, key, from_offset, to_offset)]

        # From the index, from before it, and across where it begins.
        assert await offsets(new[0], new[2]) == [new[0], new[2]]
        assert await offsets(old[0], old[1]) == [old[0]]
        assert await offsets(old[1], new[1]) == [old[2], new[0]]
        assert await offsets(old[0], new[2], b"nobody") == []
        assert (await follower.fetch(0, new[1])).value == b"other"
        assert (await follower.fetch(0, old[1])).value == b"other"


async def test_what_a_follower_has_yet_to_come_to_is_waited_for_and_not_sought(
    settings: KafkaSettings, publisher: Publisher
) -> None:
    topic = settings.topics.ledger
    with following(settings) as follower:
        for number in range(20):
            ack = await publisher.publish(topic, key=b"k", value=b"%d" % number, partition=0)
            assert (await follower.fetch(0, ack.offset)).value == b"%d" % number
        assert follower.sought == 0


async def test_a_follower_rests_while_nobody_waits_and_still_holds_all(
    settings: KafkaSettings, publisher: Publisher
) -> None:
    topic = settings.topics.ledger
    with following(settings) as follower:
        looks, began_at = follower.looks, time.monotonic()
        acks = [await publisher.publish(topic, key=b"k", value=b"%d" % number, partition=0) for number in range(200)]
        looks, took_ms = follower.looks - looks, (time.monotonic() - began_at) * 1000
        assert looks <= took_ms / REST_MS + 2
        records = await follower.read(0, b"k", acks[0].offset, acks[-1].offset)
        assert [record.offset for record in records] == [ack.offset for ack in acks]


async def test_a_follower_whose_client_finds_a_partition_no_more_goes_on_with_another_and_loses_nothing(
    settings: KafkaSettings, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen by chaos: a client said of every partition that it is not there, minutes after the brokers were back."""
    monkeypatch.setattr("amends.kafka.follower.REPLACE_AFTER_MS", 300)
    monkeypatch.setattr("amends.kafka.follower.RETRY_MS", 100)
    made: list[PartitionConsumer] = []

    class Counted(PartitionConsumer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr("amends.kafka.follower.PartitionConsumer", Counted)
    topic = settings.topics.ledger
    with LedgerFollower(settings, topic) as follower:
        follower.follow(0)
        eventually(lambda: follower.followed_to(0) is not None)
        follower.follow(settings.partitions + 5)  # which no client finds
        acks = [await publisher.publish(topic, key=b"k", value=b"0", partition=0)]
        while len(made) < 3:
            acks.append(await publisher.publish(topic, key=b"k", value=b"1", partition=0))
            assert len(acks) < 100_000
        records = await follower.read(0, b"k", acks[0].offset, acks[-1].offset)
        assert [record.offset for record in records] == [ack.offset for ack in acks]
        assert follower.sought == 0, "it was in the index all the time"


async def test_a_read_waits_until_the_follower_is_past_its_last_offset(
    settings: KafkaSettings, publisher: Publisher
) -> None:
    topic = settings.topics.ledger
    with LedgerFollower(settings, topic) as follower:
        follower.follow(2)
        reading = asyncio.ensure_future(follower.read(2, b"k", 0, 1))
        await publisher.publish(topic, key=b"k", value=b"0", partition=2)
        assert not reading.done()
        await publisher.publish(topic, key=b"k", value=b"1", partition=2)
        assert [record.value for record in await reading] == [b"0", b"1"]


async def test_a_read_that_cannot_be_answered_says_so(settings: KafkaSettings) -> None:
    with LedgerFollower(settings, settings.topics.ledger) as follower:
        with pytest.raises(ReadTimedOut, match="not followed"):
            await follower.read(0, b"k", 0, 1)
        follower.follow(0)
        with pytest.raises(ReadTimedOut):
            await follower.read(0, b"k", 0, 1, deadline_ms=200)
        waiting = asyncio.ensure_future(follower.read(0, b"k", 0, 1))
        await asyncio.sleep(0)
        follower.unfollow(0)
        with pytest.raises(ReadTimedOut, match="no longer"):
            await waiting


async def test_what_the_index_forgot_is_read_from_the_topic(settings: KafkaSettings, publisher: Publisher) -> None:
    topic = settings.topics.ledger
    with following(settings, bytes_max=2_000) as follower:
        offsets = write_all(publisher, topic, ["k"] * 40, partition=0)
        assert [r.offset for r in await follower.read(0, b"k", offsets[0], offsets[-1])] == offsets


# Checkpoints


def test_records_and_offsets_of_a_checkpoint_appear_together(settings: KafkaSettings, publisher: Publisher) -> None:
    ledger, changelog = settings.topics.ledger, settings.topics.changelog()
    place = TopicPartition(ledger, 0)
    write_all(publisher, ledger, ["a", "b"], partition=0)
    with (
        group(settings, "fold", ledger) as consumer,
        Checkpointer(settings, f"{settings.topic_prefix}-0") as checkpointer,
    ):
        checkpointer.initialise()
        last = take(consumer, 2)[-1]
        records = [Outgoing(changelog, b"k%d" % n, b"state", partition=0) for n in range(3)]
        for step in (1, 2):
            offsets = {place: last.offset - 1 + step}
            checkpointer.commit(records, offsets, consumer.group_metadata())
            assert consumer.committed([place]) == offsets
    assert read_all(settings, changelog) == [b"state"] * 6


def test_a_replaced_owner_of_a_checkpoint_is_refused(settings: KafkaSettings) -> None:
    changelog = settings.topics.changelog()
    with (
        group(settings, "fold", settings.topics.ledger) as consumer,
        Checkpointer(settings, f"{settings.topic_prefix}-0") as old,
        Checkpointer(settings, f"{settings.topic_prefix}-0") as new,
    ):
        eventually(lambda: consumer.poll_batch(100) and consumer.assignment())

        def keep(owner: Checkpointer, state: bytes) -> None:
            owner.commit([Outgoing(changelog, b"k", state, partition=0)], {}, consumer.group_metadata())

        old.initialise()
        keep(old, b"old")
        new.initialise()
        with pytest.raises(CheckpointFenced):
            keep(old, b"zombie")
        keep(new, b"new")
        with pytest.raises(CheckpointFenced):
            keep(old, b"zombie")


# Topics


def test_created_topics_pass_the_check(settings: KafkaSettings) -> None:
    assert check_topics(settings) == []


def test_missing_topics_and_another_partition_count_are_found(
    server: KafkaServer, settings: KafkaSettings, topic_prefix: str
) -> None:
    missing = examine_topics(settings_of(server, topic_prefix + "x")).problems
    assert len(missing) == 7
    assert all("is missing" in problem for problem in missing)
    counted = check_topics(settings_of(server, topic_prefix, partitions=PARTITIONS + 1))
    assert len(counted) == 6
    assert all(f"has {PARTITIONS} partitions" in problem for problem in counted)


async def test_nothing_stands_at_an_offset_that_was_never_written(
    settings: KafkaSettings, publisher: Publisher
) -> None:
    with LedgerFollower(settings, settings.topics.ledger) as follower, pytest.raises((RecordGone, ReadTimedOut)):
        await follower.fetch(0, 99, deadline_ms=500)
