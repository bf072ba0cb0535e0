"""What a consumer hands out where its group rebalances between the two calls of the client that make one batch."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Message

from amends.kafka.consumer import GroupConsumer
from amends.kafka.settings import KafkaSettings


def message(offset: int) -> Message:
    return Message(topic="t", partition=0, offset=offset, key=b"k", value=b"v", headers=[], timestamp=(1, 0))


class Client:
    """Stands in for the client: `meanwhile` happens inside `consume`, as callbacks of a rebalance do."""

    def __init__(self, first: Message, rest: list[Message], meanwhile: Callable[[], None]) -> None:
        self.first, self.rest, self.meanwhile = first, rest, meanwhile

    def poll(self, timeout: float) -> Message:
        return self.first

    def consume(self, count: int, timeout: float) -> list[Message]:
        self.meanwhile()
        return self.rest

    def assign(self, partitions: object) -> None: ...

    def unassign(self) -> None: ...


def batch_of(rebalances: bool) -> list[int]:
    consumer = GroupConsumer(KafkaSettings(), group="g", topics=("t",))
    consumer._consumer.close()

    def rebalance() -> None:
        consumer._revoked(consumer._consumer, [])
        consumer._assigned(consumer._consumer, [])

    consumer._consumer = Client(message(7), [message(5), message(6)], rebalance if rebalances else lambda: None)  # type: ignore[assignment]
    return [record.offset for record in consumer.poll_batch(0).records]


def test_a_record_of_an_assignment_that_ended_while_the_batch_was_taken_is_not_handed_out() -> None:
    assert batch_of(rebalances=True) == [5, 6]


def test_without_a_rebalance_a_batch_begins_with_the_record_that_woke_it() -> None:
    assert batch_of(rebalances=False) == [7, 5, 6]
