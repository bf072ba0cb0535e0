"""What only the embedded broker needs: where its partitions really end.

Asked for its end, it names the offset after the first record of the last batch, not after the last one (decision 0008).
Its answers to fetches are right, and the client reports ends from them: so we read on from the end that was named until
that report comes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from amends.kafka.errors import ReadTimedOut
from amends.kafka.options import consumer_options, logger
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings

TAKE_MAX = 5_000
LOOK_S = 0.002


class TrueEnds:
    """Finds where partitions of the embedded broker end. Belongs to the consumer that asks, and to its thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumer: Consumer | None = None

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


def true_ends(settings: KafkaSettings) -> TrueEnds | None:
    """Return what a consumer of this broker needs to know its ends; None where the broker names them right."""
    return TrueEnds(settings) if settings.embedded else None
