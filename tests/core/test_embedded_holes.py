"""The embedded broker may show a batch before the one that stands ahead of it: no reader goes on over the hole."""

from __future__ import annotations

from amends.kafka.embedded import HOLE_LOOKS_MAX, Holes
from amends.kafka.records import TopicPartition

PLACE = TopicPartition("amends.ledger", 0)


def test_records_without_a_hole_are_taken_as_they_come() -> None:
    holes = Holes("amends.ledger")
    assert [holes.is_before(PLACE, offset) for offset in (7, 8, 9)] == [None, None, None]


def test_a_hole_is_looked_at_again_and_filled() -> None:
    holes = Holes("amends.ledger")
    holes.is_before(PLACE, 7)
    assert holes.is_before(PLACE, 12) == 8
    assert holes.is_before(PLACE, 12) == 8
    assert [holes.is_before(PLACE, offset) for offset in (8, 9, 10, 11, 12)] == [None] * 5


def test_what_never_comes_is_left_for_the_reader_to_miss() -> None:
    holes = Holes("amends.ledger")
    holes.is_before(PLACE, 7)
    assert [holes.is_before(PLACE, 12) for _ in range(HOLE_LOOKS_MAX)] == [8] * HOLE_LOOKS_MAX
    assert holes.is_before(PLACE, 12) is None


def test_who_reads_elsewhere_misses_nothing() -> None:
    holes = Holes("amends.ledger")
    holes.is_before(PLACE, 7)
    holes.forget()
    assert holes.is_before(PLACE, 500) is None


def test_topics_with_transactions_may_have_holes() -> None:
    holes, changelog = Holes("amends.ledger"), TopicPartition("amends.changelog", 0)
    holes.is_before(changelog, 7)
    assert holes.is_before(changelog, 9) is None
