"""Which partitions a compensator follows while lanes come and go and commands still run."""

from __future__ import annotations

from collections.abc import Callable

from amends.compensators.followed import Followed


class Story:
    """What was followed and what runs; looks that are due later wait until they are made."""

    def __init__(self) -> None:
        self.followed: set[int] = set()
        self.running: set[int] = set()
        self.looks: list[Callable[[], None]] = []
        self.subject = Followed(
            self.followed.add, self.followed.discard, lambda partition: partition in self.running, self.looks.append
        )

    def look(self) -> None:
        looks, self.looks[:] = list(self.looks), []
        for look in looks:
            look()


def test_a_partition_is_followed_until_its_last_lane_has_lost_it() -> None:
    story = Story()
    story.subject.came([1, 2])
    story.subject.came([2])
    story.subject.went([1, 2])
    assert story.followed == {2}
    story.subject.went([2])
    assert story.followed == set()


def test_a_partition_is_followed_until_the_commands_that_run_have_read_back() -> None:
    story = Story()
    story.subject.came([1])
    story.running.add(1)
    story.subject.went([1])
    assert story.followed == {1}
    story.look()
    assert story.followed == {1}
    story.running.clear()
    story.look()
    assert story.followed == set()
    assert story.looks == []


def test_looks_do_not_multiply_where_many_partitions_go_while_commands_run() -> None:
    story = Story()
    story.subject.came(range(8))
    story.running.update(range(8))
    story.subject.went(range(8))
    for _ in range(20):
        assert len(story.looks) == 1
        story.look()


def test_a_partition_that_comes_back_meanwhile_is_kept() -> None:
    story = Story()
    story.subject.came([1])
    story.running.add(1)
    story.subject.went([1])
    story.subject.came([1])
    story.running.clear()
    story.look()
    assert story.followed == {1}
