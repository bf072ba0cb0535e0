"""Confirmed writes when the broker goes away, when the process forks, and what the acknowledgement says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.integration.kafka_parts import ROOT, eventually, settings_of, with_topics

from amends.kafka import HEAD, Ack, MaybeWritten, NotWritten, PartitionReader, Publisher, create_topics
from amends.kafka.reaching import Question
from amends.local.kafka_server import KafkaServer, start_kafka

DEADLINE_MS = 2_000

FORKING = """
import json, os, sys
from amends.kafka import KafkaSettings, Publisher

settings = KafkaSettings.model_validate_json(sys.argv[1])
publisher = Publisher(settings)
topic = settings.topics.ledger
publisher.publish_sync(topic, key=b"parent", value=b"1", partition=0)
child = os.fork()
who = b"parent" if child else b"child"
for n in (b"2", b"3"):
    publisher.publish_sync(topic, key=who, value=n, partition=0)
if child:
    assert os.waitpid(child, 0)[1] == 0
publisher.close()
"""


@pytest.fixture
def own_embedded_kafka() -> Iterator[KafkaServer]:
    server = start_kafka(preference="embedded")
    yield server
    server.stop()


def test_a_publisher_made_before_a_fork_writes_in_parent_and_child(
    embedded_kafka: KafkaServer, topic_prefix: str
) -> None:
    settings = with_topics(embedded_kafka, topic_prefix)
    command = [sys.executable, "-c", FORKING, settings.model_dump_json()]
    subprocess.run(command, check=True, cwd=ROOT, timeout=60)
    with PartitionReader(settings) as reader:
        ends = reader.ends(settings.topics.ledger, [0])
        read = [(r.key, r.value) for batch in reader.read(dict.fromkeys(ends, HEAD), ends) for r in batch]
    assert sorted(read) == [(b"child", b"2"), (b"child", b"3"), (b"parent", b"1"), (b"parent", b"2"), (b"parent", b"3")]


def test_a_record_sent_to_a_frozen_broker_may_be_written_and_one_never_sent_is_not(
    own_embedded_kafka: KafkaServer, topic_prefix: str
) -> None:
    settings = with_topics(own_embedded_kafka, topic_prefix)
    topic = settings.topics.ledger
    with Publisher(settings, deadline_ms=DEADLINE_MS) as publisher:
        assert publisher.publish_sync(topic, key=b"k", value=b"0", partition=0).offset == 0
        os.kill(own_embedded_kafka.pid, signal.SIGSTOP)
        try:
            with pytest.raises(MaybeWritten):
                publisher.publish_sync(topic, key=b"k", value=b"in flight", partition=0)
            with pytest.raises(NotWritten, match="never sent"):
                publisher.publish_sync(topic, key=b"k", value=b"never sent", partition=0)
        finally:
            os.kill(own_embedded_kafka.pid, signal.SIGCONT)
    # The one that was in flight arrived when the broker woke; the other did not.
    with PartitionReader(settings) as reader:
        ends = reader.ends(topic, [0])
        read = [r.value for batch in reader.read(dict.fromkeys(ends, HEAD), ends) for r in batch]
    assert read == [b"0", b"in flight"]


def test_a_broker_that_is_gone_leaves_nothing_in_doubt_and_nothing_unanswered(
    own_embedded_kafka: KafkaServer, topic_prefix: str
) -> None:
    settings = with_topics(own_embedded_kafka, topic_prefix)
    topic = settings.topics.ledger
    own_embedded_kafka.kill()
    answers: list[object] = []
    with Publisher(settings, deadline_ms=1_000) as publisher:
        for _ in range(20):
            publisher.send(topic, key=b"k", value=b"v", on_done=answers.append)
        assert publisher.flush(5_000) == 0
        assert [type(answer) for answer in answers] == [NotWritten] * 20
        publisher.send(topic, key=b"k", value=b"v", on_done=answers.append)
        publisher.close(50)
    assert isinstance(answers[-1], NotWritten | MaybeWritten)


def test_a_publisher_goes_on_when_the_broker_is_back(own_embedded_kafka: KafkaServer, topic_prefix: str) -> None:
    # This broker comes back without memory: it does not know the client's producer id any more.
    settings = with_topics(own_embedded_kafka, topic_prefix)
    with Publisher(settings, deadline_ms=3_000) as publisher:
        publisher.publish_sync(settings.topics.ledger, key=b"k", value=b"before")
        own_embedded_kafka.restart()
        create_topics(settings)
        answers: list[object] = []
        while not any(isinstance(answer, Ack) for answer in answers):
            publisher.send(settings.topics.ledger, key=b"k", value=b"after", on_done=answers.append)
            publisher.flush()
            assert len(answers) < 9, answers


def test_more_records_than_the_queue_holds_are_refused_or_wait_their_turn(
    embedded_kafka: KafkaServer, topic_prefix: str
) -> None:
    settings = with_topics(embedded_kafka, topic_prefix)
    topic = settings.topics.ledger
    answers: list[object] = []
    with Publisher(settings, queue_max=5) as publisher:
        for _ in range(50):
            publisher.send(topic, key=b"k", value=b"v", on_done=answers.append)
        assert publisher.flush() == 0
        refused = [answer for answer in answers if isinstance(answer, NotWritten)]
        assert len(answers) == 50
        assert all(answer.code == "_QUEUE_FULL" for answer in refused)
        assert refused
        for _ in range(20):
            publisher.publish_sync(topic, key=b"k", value=b"v")


@pytest.mark.kafka
def test_the_ledger_tells_the_brokers_append_time(kafka: KafkaServer, topic_prefix: str) -> None:
    settings = with_topics(kafka, topic_prefix)
    with Publisher(settings) as publisher:
        ack = publisher.publish_sync(settings.topics.ledger, key=b"k", value=b"v")
        with PartitionReader(settings) as reader:
            ends = reader.ends(settings.topics.ledger, [ack.partition])
            (record,) = [r for b in reader.read(dict.fromkeys(ends, HEAD), ends) for r in b]
    assert record.appended_at_ms == ack.appended_at_ms > 0


@pytest.mark.kafka
def test_a_topic_that_is_not_there_is_certainly_not_written_to(kafka: KafkaServer, topic_prefix: str) -> None:
    settings = settings_of(kafka, topic_prefix)
    with Publisher(settings, deadline_ms=6_000) as publisher, pytest.raises(NotWritten):
        publisher.publish_sync(settings.topics.ledger, key=b"k", value=b"")


@pytest.mark.kafka
def test_brokers_answer_a_part_that_asks_whether_they_are_there_and_do_so_again_after_they_were_away(
    own_kafka: KafkaServer, topic_prefix: str
) -> None:
    asks = Question(with_topics(own_kafka, topic_prefix))
    assert asks()
    own_kafka.kill()
    assert not asks()
    own_kafka.restart()
    eventually(lambda: asks() or None)
