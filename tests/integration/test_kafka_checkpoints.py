"""Checkpoints on Apache Kafka: a frozen owner that wakes is refused, and what it left is never seen."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from tests.integration.kafka_parts import ROOT, eventually, with_topics

from amends.kafka import (
    HEAD,
    CheckpointAborted,
    Checkpointer,
    CheckpointFenced,
    GroupConsumer,
    KafkaSettings,
    Outgoing,
    PartitionReader,
    TopicPartition,
)
from amends.local.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka

# It stops inside a transaction, with records sent, and goes on to commit when it is woken.
FREEZING = """
import os, signal, sys
from amends.kafka import CheckpointFenced, Checkpointer, GroupConsumer, KafkaSettings, Outgoing

class Freezing:
    topic, key, value, headers = sys.argv[2], b"k", b"frozen", ()
    asked = 0

    @property
    def partition(self):
        self.asked += 1
        if self.asked == 2000:
            os.kill(os.getpid(), signal.SIGSTOP)
        return 0

settings = KafkaSettings.model_validate_json(sys.argv[1])
record = Freezing()
checkpointer = Checkpointer(settings, sys.argv[3])
checkpointer.initialise()
consumer = GroupConsumer(settings, group="other", topics=[settings.topics.ledger])
try:
    checkpointer.commit([record] * 2001, {}, consumer.group_metadata())
except CheckpointFenced:
    sys.exit(7)
"""


def visible(settings: KafkaSettings, topic: str) -> list[bytes | None]:
    with PartitionReader(settings) as reader:
        ends = reader.ends(topic, [0])
        return [r.value for batch in reader.read(dict.fromkeys(ends, HEAD), ends) for r in batch]


def test_a_frozen_owner_is_replaced_at_once_and_refused_when_it_wakes(kafka: KafkaServer, topic_prefix: str) -> None:
    settings = with_topics(kafka, topic_prefix)
    changelog, name = settings.topics.changelog(), f"{topic_prefix}-0"
    command = [sys.executable, "-c", FREEZING, settings.model_dump_json(), changelog, name]
    frozen = subprocess.Popen(command, cwd=ROOT)
    try:
        eventually(lambda: _state_of(frozen.pid) == "T")
        began_at = time.monotonic()
        with (
            GroupConsumer(settings, group="fold", topics=[settings.topics.ledger]) as consumer,
            Checkpointer(settings, name) as owner,
        ):
            eventually(lambda: consumer.poll_batch(100) and consumer.assignment())
            owner.initialise()
            owner.commit([Outgoing(changelog, b"k", b"owner", partition=0)], {}, consumer.group_metadata())
            assert time.monotonic() - began_at < 6
            assert visible(settings, changelog) == [b"owner"]
            frozen.send_signal(signal.SIGCONT)
            assert frozen.wait(30) == 7
            owner.commit([Outgoing(changelog, b"k", b"owner again", partition=0)], {}, consumer.group_metadata())
        assert visible(settings, changelog) == [b"owner", b"owner again"]
    finally:
        frozen.kill()
        frozen.wait()


def test_a_checkpoint_that_cannot_be_written_leaves_nothing_and_can_be_tried_again(
    kafka: KafkaServer, topic_prefix: str
) -> None:
    settings = with_topics(kafka, topic_prefix)
    changelog, place = settings.topics.changelog(), TopicPartition(settings.topics.ledger, 0)
    with (
        GroupConsumer(settings, group="fold", topics=[settings.topics.ledger]) as consumer,
        Checkpointer(settings, f"{topic_prefix}-0") as checkpointer,
    ):
        checkpointer.initialise()
        eventually(lambda: consumer.poll_batch(100) and consumer.assignment())
        good = Outgoing(changelog, b"k", b"good", partition=0)
        # A compacted topic takes no record without a key.
        bad = Outgoing(changelog, None, b"bad", partition=0)
        with pytest.raises(CheckpointAborted):
            checkpointer.commit([good, bad], {place: 5}, consumer.group_metadata())
        assert consumer.committed([place]) == {}
        _insist(lambda: checkpointer.commit([good], {place: 5}, consumer.group_metadata()))
        assert consumer.committed([place]) == {place: 5}
    assert visible(settings, changelog) == [b"good"]


def test_a_member_the_group_replaced_cannot_move_its_offsets(kafka: KafkaServer, topic_prefix: str) -> None:
    settings = with_topics(kafka, topic_prefix)
    topic, place = settings.topics.ledger, TopicPartition(settings.topics.ledger, 0)
    old = GroupConsumer(settings, group="fold", topics=[topic])
    eventually(lambda: old.poll_batch(100) and old.assignment())
    stale = old.group_metadata()
    old.close()
    with (
        GroupConsumer(settings, group="fold", topics=[topic]) as new,
        Checkpointer(settings, f"{topic_prefix}-0") as checkpointer,
    ):
        eventually(lambda: new.poll_batch(100) and new.assignment())
        checkpointer.initialise()
        with pytest.raises((CheckpointFenced, CheckpointAborted)):
            checkpointer.commit([], {place: 3}, stale)
        assert new.committed([place]) == {}


def _insist(commit: Callable[[], None]) -> None:
    # The client may need one more abort before its sequence numbers agree with the broker's again.
    for _ in range(2):
        try:
            commit()
            return
        except CheckpointAborted:
            continue
    commit()


def _state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(") ")[2][:1]
