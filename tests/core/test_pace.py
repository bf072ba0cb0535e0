"""How often a partition is checkpointed: as asked where commits are quick, less often where they are not."""

from __future__ import annotations

from amends.processors.checkpoints import pace_ms


def test_checkpoints_come_as_asked_where_commits_are_quick() -> None:
    assert [pace_ms(100, took_ms) for took_ms in (0, 4, 5)] == [100, 100, 100]


def test_commits_take_a_twentieth_of_the_time_where_they_are_slow() -> None:
    assert pace_ms(100, 15) == 300


def test_commits_of_all_partitions_take_a_twentieth_of_the_time_together() -> None:
    assert pace_ms(100, 4, partitions=8) == 640


def test_checkpoints_are_never_put_off_for_long() -> None:
    assert pace_ms(100, 10_000) == pace_ms(100, 4, partitions=1_000) == 1_000


def test_checkpoints_that_are_wanted_seldom_come_as_asked_however_long_commits_take() -> None:
    assert pace_ms(5_000, 10_000) == 5_000
