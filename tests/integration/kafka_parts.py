"""What the tests of `amends.kafka` share: settings for a broker of the fixtures, and waiting for facts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from amends.kafka import GroupConsumer, KafkaSettings, Publisher, Record, create_topics
from amends.local.kafka_server import KafkaServer

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 30

Found = TypeVar("Found")


def settings_of(server: KafkaServer, topic_prefix: str, *, partitions: int = 4) -> KafkaSettings:
    """Return settings for topics of one test on a broker."""
    return KafkaSettings(
        bootstrap_servers=server.bootstrap_servers,
        topic_prefix=topic_prefix,
        partitions=partitions,
        replication_factor=1,
        embedded=server.embedded,
    )


def with_topics(server: KafkaServer, topic_prefix: str, *, partitions: int = 4) -> KafkaSettings:
    settings = settings_of(server, topic_prefix, partitions=partitions)
    create_topics(settings)
    return settings


def eventually(look: Callable[[], Found | None], deadline_s: float = DEADLINE_S) -> Found:
    """Return what `look` finds; it is asked until it finds something, and the test fails at the deadline."""
    give_up_at = time.monotonic() + deadline_s
    while time.monotonic() < give_up_at:
        found = look()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it did not happen before the deadline")


def write_all(publisher: Publisher, topic: str, keys: Iterable[str], *, partition: int | None = None) -> list[int]:
    """Write one record per key, whose value is the key; return the offsets."""
    return [
        publisher.publish_sync(topic, key=key.encode(), value=key.encode(), partition=partition).offset for key in keys
    ]


def take(consumer: GroupConsumer, count: int, deadline_s: float = DEADLINE_S) -> list[Record]:
    """Poll until `count` records came."""
    records: list[Record] = []
    give_up_at = time.monotonic() + deadline_s
    while len(records) < count:
        assert time.monotonic() < give_up_at, f"only {len(records)} of {count} records came"
        records += consumer.poll_batch(100).records
    return records
