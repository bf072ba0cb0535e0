"""Recovery, read from the ledger after a window: from FAILED to the last UNDONE, by the broker's append times."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from amends.kafka.settings import KafkaSettings
from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.facts import UndoEvent, UndoStatus, WorkflowEvent, WorkflowStatus

UNDOS = 3


@dataclass
class Story:
    failed_at_ms: int = 0
    undone_at_ms: int = 0
    undone: int = 0


def ends_of(settings: KafkaSettings) -> list[int]:
    """Return the end offset of each ledger partition."""
    consumer = _consumer(settings)
    ends = [
        consumer.get_watermark_offsets(TopicPartition(settings.topics.ledger, p), timeout=10)[1]
        for p in range(settings.partitions)
    ]
    consumer.close()
    return ends


def recoveries(settings: KafkaSettings, since: list[int], to: list[int]) -> list[Story]:
    """Return the stories of workflows that failed between the offsets."""
    consumer = _consumer(settings)
    topic = settings.topics.ledger
    consumer.assign([TopicPartition(topic, p, offset) for p, offset in enumerate(since)])
    left = {p for p in range(settings.partitions) if to[p] > since[p]}
    stories: dict[str, Story] = {}
    while left:
        for message in consumer.consume(2_000, 1.0):
            partition, offset, value = message.partition(), message.offset(), message.value()
            if message.error() or partition is None or offset is None:
                continue
            if offset + 1 >= to[partition]:
                left.discard(partition)
            with contextlib.suppress(UnreadableRecord):
                _note(stories, decode(value), message.timestamp()[1])
    consumer.close()
    return [s for s in stories.values() if s.failed_at_ms]


def _note(stories: dict[str, Story], fact: object, at_ms: int) -> None:
    if isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.FAILED:
        stories.setdefault(fact.workflow_id, Story()).failed_at_ms = at_ms
    elif isinstance(fact, UndoEvent) and fact.status is UndoStatus.UNDONE:
        story = stories.setdefault(fact.workflow_id, Story())
        story.undone += 1
        story.undone_at_ms = max(story.undone_at_ms, at_ms)


def _consumer(settings: KafkaSettings) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": "bench-recovery",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
