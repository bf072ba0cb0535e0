"""What an engine promises, put to every engine: in memory, and transactions and Faust on Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.contract.engine_worlds import MemoryWorld, World
from tests.contract.tally import CARRY, Count, encode

from amends.processors.engine import AFTER_CHECKPOINT, BEFORE_CHECKPOINT

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [f"workflow-{number}".encode() for number in range(8)]  # on both partitions


@pytest.fixture(
    params=[
        "memory",
        pytest.param("transactions", marks=pytest.mark.kafka),
        pytest.param("faust", marks=pytest.mark.kafka),
    ]
)
def world(request: pytest.FixtureRequest, topic_prefix: str, tmp_path: Path) -> Iterator[World]:
    made: World
    if request.param == "memory":
        made = MemoryWorld()
    else:
        from tests.contract.engine_kafka import KafkaWorld

        servers = request.getfixturevalue("kafka").bootstrap_servers
        made = KafkaWorld.create(servers, topic_prefix, tmp_path, request.param)
    yield made
    made.close()


class Ledger:
    """Facts appended, and the state they must lead to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.facts = 0
        self.expected: dict[bytes, Count] = {}
        self._appended: list[tuple[bytes, int, bytes]] = []

    def write(self, facts: int) -> int:
        """Append facts to all keys in turn; return how many there are now."""
        for _ in range(facts):
            key = KEYS[self.facts % len(KEYS)]
            value = b"fact %d" % self.facts
            offset = self._append(key, value)
            self.expected[key] = self.expected.get(key, Count()).with_fact(offset, 0, value)
            self.facts += 1
        return self.facts

    def first_offset(self, key: bytes) -> int:
        return next(offset for written, offset, _ in self._appended if written == key)

    def forget(self, key: bytes) -> None:
        """Have a key dropped."""
        self._append(key, b"forget")
        self.expected.pop(key)

    def again(self, key: bytes) -> None:
        """Have a key that was dropped counted anew, from its first fact."""
        self._append(key, b"again %d" % self.first_offset(key))
        count = Count()
        for written, offset, value in self._appended:
            count = count.with_fact(offset, 0, value) if written == key else count
        self.expected[key] = count

    def _append(self, key: bytes, value: bytes) -> int:
        offset = self._world.append(key, value)
        self._appended.append((key, offset, value))
        return offset


def test_every_fact_is_folded_once_and_in_order(world: World) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(200))
    assert world.state() == ledger.expected


def test_what_is_emitted_follows_the_ledgers_order(world: World) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(200))
    for key in KEYS:
        counts = [count.count for emitted, count in world.emitted() if emitted == key]
        assert counts == sorted(counts)
        assert counts[-1] == ledger.expected[key].count


def test_a_clean_stop_leaves_nothing_to_fold_again(world: World) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(50))
    ledger.write(50)
    world.stop("a")
    world.start("b")
    world.await_folded(ledger.facts)
    assert world.state() == ledger.expected


def test_a_crash_between_emission_and_checkpoint_emits_again_and_skips_nothing(world: World) -> None:
    ledger = Ledger(world)
    world.start("a", fault="kill", at=BEFORE_CHECKPOINT)
    ledger.write(20)
    world.await_fault("a")
    emitted_before = world.emitted()
    assert emitted_before, "all that a checkpoint covers is emitted before it"
    world.start("b")
    world.await_session("a")
    world.await_folded(ledger.write(20))
    assert world.state() == ledger.expected


def test_a_crash_right_after_a_checkpoint_folds_nothing_twice(world: World) -> None:
    ledger = Ledger(world)
    world.start("a", fault="kill", at=AFTER_CHECKPOINT)
    ledger.write(20)
    world.await_fault("a")
    world.start("b")
    world.await_session("a")
    world.await_folded(ledger.write(20))
    assert world.state() == ledger.expected


def test_two_processes_share_the_partitions_and_a_killed_one_is_taken_over(world: World) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(50))
    world.start("b")
    world.await_owners("a", "b")
    world.await_folded(ledger.write(50))
    ledger.write(50)
    world.kill("a")
    ledger.write(50)
    world.await_session("a")
    world.await_folded(ledger.facts)
    assert world.state() == ledger.expected


def test_a_frozen_process_that_wakes_after_a_takeover_is_refused(world: World) -> None:
    ledger = Ledger(world)
    world.start("a", fault="freeze", at=BEFORE_CHECKPOINT)
    ledger.write(20)
    world.await_fault("a")
    world.start("b")
    world.await_session("a")
    world.await_folded(ledger.write(20))
    world.wake("a")
    world.await_refused("a")
    world.await_folded(ledger.write(20))
    assert world.state() == ledger.expected


def test_facts_that_retention_took_unread_stop_the_engine_with_words(world: World) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(40))
    world.stop("a")
    ledger.write(40)
    world.forget_ledger(KEYS[0], world.append(KEYS[0], b"last"))
    world.start("b")
    assert "must come next" in world.why_it_ended("b")


def test_a_timer_rings_on_a_partition_where_nothing_else_happens(world: World) -> None:
    world.start("a")
    world.append(KEYS[0], b"arm 300")
    world.await_folded(2)
    assert world.state()[KEYS[0]].due_at_ms is None


def test_a_key_that_was_dropped_is_read_again_from_its_start_while_others_are_folded(world: World) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(40))
    ledger.forget(KEYS[0])
    world.await_state(ledger.expected)
    ledger.again(KEYS[0])
    ledger.write(40)
    world.await_state(ledger.expected)
    assert world.state()[KEYS[0]].count == 5 + 1 + 1 + 5
    assert (KEYS[0], 12) in [(key, count.count) for key, count in world.emitted()]


def test_a_new_owner_reads_again_what_the_one_before_had_not_read_to_its_end(world: World) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(40))
    ledger.forget(KEYS[0])
    world.await_state(ledger.expected)
    world.stop("a")
    ledger.again(KEYS[0])
    ledger.write(40)
    world.start("b", fault="kill", at=AFTER_CHECKPOINT)
    world.await_fault("b")
    world.start("c")
    world.await_session("b")
    ledger.write(40)
    world.await_state(ledger.expected)


def test_what_the_ledger_carries_of_before_its_beginning_is_told_to_a_fold_that_begins_there(world: World) -> None:
    count = Count()
    for number in range(6):
        value = b"%d" % number
        count = count.with_fact(world.append(KEYS[0], value), 0, value)
    carry = CARRY + encode(count)
    count = count.with_fact(world.append(KEYS[0], carry), 0, carry)
    world.forget_ledger(KEYS[0], count.folded_to - 3)
    world.start("a")
    world.await_state({KEYS[0]: count})
    count = count.with_fact(world.append(KEYS[0], b"more"), 0, b"more")
    world.await_state({KEYS[0]: count})
    world.stop("a")
    world.start("b")
    count = count.with_fact(world.append(KEYS[0], b"last"), 0, b"last")
    world.await_state({KEYS[0]: count})


def test_a_start_that_retention_took_is_told_to_the_fold(world: World) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(40))
    first = ledger.first_offset(KEYS[0])
    world.forget_ledger(KEYS[0], first + 1)
    world.append(KEYS[0], b"again %d" % first)
    ledger.expected[KEYS[0]] = Count(gone=True)
    world.await_state(ledger.expected)
