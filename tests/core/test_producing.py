"""Where an acknowledged record stands, by the reports of the client: it counts on where the broker knew no place."""

from __future__ import annotations

from confluent_kafka import Message

from amends.kafka.errors import MaybeWritten
from amends.kafka.producing import Places
from amends.kafka.records import Ack


def answers(*offsets: int, topic: str = "ledger", partition: int = 0, places: Places | None = None) -> list[int | None]:
    """Return the offset that each report is answered with, None where its place is not known."""
    asked = places or Places()
    given = [asked.answer(Message(topic=topic, partition=partition, offset=offset)) for offset in offsets]
    for answer in given:
        assert isinstance(answer, Ack) or (isinstance(answer, MaybeWritten) and answer.code == "NO_OFFSET")
    return [answer.offset if isinstance(answer, Ack) else None for answer in given]


def test_a_record_stands_where_the_broker_says() -> None:
    assert answers(0, 1, 2, 7) == [0, 1, 2, 7]


def test_a_batch_without_a_place_is_uncertain_to_its_last_record() -> None:
    assert answers(-1, 0, 1, 2, 3) == [None] * 5


def test_the_next_batch_stands_where_the_broker_says_again() -> None:
    assert answers(-1, 0, 1, 3, 4) == [None, None, None, 3, 4]


def test_two_batches_without_a_place_are_uncertain_to_their_last_record() -> None:
    assert answers(-1, 0, 1, -1, 0, 40) == [None, None, None, None, None, 40]


def test_a_batch_of_one_without_a_place_does_not_cast_doubt_on_the_next_record() -> None:
    assert answers(-1, 1, 2) == [None, 1, 2]


def test_partitions_and_topics_are_told_apart() -> None:
    places = Places()
    assert answers(-1, partition=1, places=places) == [None]
    assert answers(0, partition=0, places=places) == [0]
    assert answers(0, topic="undo", partition=1, places=places) == [0]
    assert answers(0, partition=1, places=places) == [None]
