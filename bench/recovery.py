"""Recovery, read from the ledger after a window: from FAILED to the last UNDONE, by the broker's append times."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from amends.kafka.options import EMBEDDED_FETCH_WAIT_MS
from amends.kafka.reader import PartitionReader
from amends.kafka.records import TopicPartition as Place
from amends.kafka.settings import KafkaSettings
from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.facts import UndoEvent, UndoStatus, WorkflowEvent, WorkflowStatus

UNDOS = 3


@dataclass
class Story:
    """A workflow that failed inside the window."""

    failed_at_ms: int
    undone_at_ms: int = 0
    undone: int = 0


@dataclass
class Window:
    undone: int = 0
    """Undos inside it, of whichever workflows."""
    stories: dict[str, Story] = field(default_factory=dict)

    def note(self, fact: object, at_ms: int, *, inside: bool) -> None:
        if inside and isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.FAILED:
            self.stories[fact.workflow_id] = Story(at_ms)
        elif isinstance(fact, UndoEvent) and fact.status is UndoStatus.UNDONE:
            self.undone += inside
            story = self.stories.get(fact.workflow_id)
            if story is not None:
                story.undone += 1
                story.undone_at_ms = max(story.undone_at_ms, at_ms)

    @property
    def recoveries_ms(self) -> list[float]:
        """From FAILED to the last undo, of each workflow that failed inside."""
        return [float(s.undone_at_ms - s.failed_at_ms) for s in self.stories.values() if s.undone >= UNDOS]


def ends_of(settings: KafkaSettings) -> list[int]:
    """Return the end offset of each ledger partition."""
    with PartitionReader(settings) as reader:
        ends = reader.ends(settings.topics.ledger, range(settings.partitions))
    return [ends[Place(settings.topics.ledger, p)] for p in range(settings.partitions)]


def read(settings: KafkaSettings, since: list[int], to: list[int]) -> Window:
    """Return what happened between the offsets. To be called once the load has ended: workflows that failed before
    `to` are followed to their last undo behind it, or the slow ones would be missing."""
    consumer = _consumer(settings)
    topic, last = settings.topics.ledger, ends_of(settings)
    consumer.assign([TopicPartition(topic, p, offset) for p, offset in enumerate(since)])
    left = {p for p in range(settings.partitions) if last[p] > since[p]}
    window = Window()
    while left:
        for message in consumer.consume(2_000, 1.0):
            partition, offset, value = message.partition(), message.offset(), message.value()
            if message.error() or partition is None or offset is None:
                continue
            if offset + 1 >= last[partition]:
                left.discard(partition)
            with contextlib.suppress(UnreadableRecord):
                window.note(decode(value), message.timestamp()[1], inside=offset < to[partition])
    consumer.close()
    return window


def follow(settings: KafkaSettings, since: list[int], idle_s: float = 30.0) -> Iterator[tuple[object, int]]:
    """Yield facts from the offsets on, with their append times, as they come; end when none came for `idle_s`."""
    consumer = _consumer(settings)
    consumer.assign([TopicPartition(settings.topics.ledger, p, offset) for p, offset in enumerate(since)])
    came_at = time.monotonic()
    try:
        while time.monotonic() - came_at < idle_s:
            for message in consumer.consume(2_000, 0.2):
                if message.error():
                    continue
                came_at = time.monotonic()
                with contextlib.suppress(UnreadableRecord):
                    yield decode(message.value()), message.timestamp()[1]
    finally:
        consumer.close()


def _consumer(settings: KafkaSettings) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": "bench-recovery",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": EMBEDDED_FETCH_WAIT_MS if settings.embedded else 10,
        }
    )
