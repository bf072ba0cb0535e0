"""What only the embedded broker needs: where its partitions really end.

Asked for its end, it names the offset after the first record of the last batch, not after the last one (decision 0008).
The client reports ends from its answers to fetches, and those are right: so we read on from the end that was named
until that report comes.

Where several producers write to a partition at once, a fetch may show a batch before the one that stands ahead of it
(seen at 256 workflows in flight). The ledger has no holes, so one that appears is read again until it is filled.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from amends.kafka.errors import ReadTimedOut
from amends.kafka.handles import Consumer
from amends.kafka.options import consumer_options, logger
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings

TAKE_MAX = 5_000
LOOK_S = 0.002
HOLE_LOOKS_MAX = 200
"""So often a hole is looked at again; what is still not there then is gone."""


class TrueEnds:
    """Finds where partitions of the embedded broker end. Belongs to the consumer that asks, and to its thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumer: Consumer | None = None
        self.holes = Holes(settings.topics.ledger)

    def after(self, named: Mapping[TopicPartition, int], deadline_ms: int) -> dict[TopicPartition, int]:
        """Return the ends at a moment of this call, given those that the broker named before. Raises ReadTimedOut."""
        give_up_at = time.monotonic() + deadline_ms / 1000
        # Where nothing was ever written there is no last batch.
        ends = {place: end for place, end in named.items() if end == 0}
        wanted = {place: end for place, end in named.items() if end > 0}
        if not wanted:
            return ends
        consumer = self._connected()
        consumer.assign([ClientPartition(*place, end) for place, end in wanted.items()])
        try:
            while len(ends) < len(named):
                if time.monotonic() > give_up_at:
                    raise ReadTimedOut(f"the ends of {sorted(wanted.keys() - ends.keys())} were not reached")
                for message in consumer.consume(TAKE_MAX, LOOK_S):
                    topic, partition, offset = message.topic(), message.partition(), message.offset()
                    error = message.error()
                    if error is None or error.code() != KafkaError._PARTITION_EOF:
                        continue
                    assert topic is not None
                    assert partition is not None
                    assert offset is not None
                    ends[TopicPartition(topic, partition)] = offset
        finally:
            consumer.unassign()
        return ends

    def close(self) -> None:
        """Twice is harmless."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _connected(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(consumer_options(self._settings, group="amends-ends"), logger=logger)
        return self._consumer


class Holes:
    """Follows one consumer's places on the ledger, and says where it must look again. Pure."""

    def __init__(self, ledger: str) -> None:
        self._ledger = ledger
        self._next: dict[TopicPartition, int] = {}
        self._looks: dict[TopicPartition, int] = {}

    def forget(self) -> None:
        """The consumer reads elsewhere from here on."""
        self._next.clear()
        self._looks.clear()

    def is_before(self, place: TopicPartition, offset: int) -> int | None:
        """Take a record at `offset`; return where the facts before it are missing from, None if none are."""
        if place.topic != self._ledger:
            return None
        expected = self._next.get(place, offset)
        looks = self._looks.get(place, 0)
        if offset > expected and looks < HOLE_LOOKS_MAX:
            self._looks[place] = looks + 1
            return expected
        self._next[place] = offset + 1
        self._looks.pop(place, None)
        return None


def true_ends(settings: KafkaSettings) -> TrueEnds | None:
    """Return what a consumer of this broker needs to know its ends; None where the broker names them right."""
    return TrueEnds(settings) if settings.embedded else None
