"""Partitions come and go under Faust: who is given some, who is silent, and who seals nothing more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest
from tests.contract.tally import Tally
from tests.core.test_faust_keeper import Changelog, turns

from amends.kafka.errors import ReadTimedOut
from amends.kafka.settings import KafkaSettings
from amends.processors.engine import no_faults
from amends.processors.faust_asking import Asking
from amends.processors.faust_changelog import SEAL_KEY, Mark, Rank, Value
from amends.processors.faust_holding import Holding
from amends.processors.faust_rewinds import Rewinds
from amends.processors.faust_sweeps import Sweeps
from amends.processors.faust_takeover import Taken
from amends.processors.faust_wakefulness import Wakefulness
from amends.processors.memory import StoredRecord
from amends.processors.restoring import InterruptedTakeoverError
from amends.processors.serving import Serving
from amends.processors.settings import ProcessorSettings
from amends.processors.tenure import Tenure
from amends.schemas.topics import Topics

TOPICS = Topics()
SLEPT_MS, SILENT_MS = 4_000, 3_000


def going_on() -> bool:
    return True


class Member:
    """A member of the group whose clock, changelog and reading of state the test holds."""

    def __init__(self, refold: Sequence[int] = ()) -> None:
        self.now_s = 100.0
        self.changelog = Changelog()
        self.refolded: list[frozenset[int]] = []
        self.while_reading: Callable[[], object] = lambda: None
        self.faults: list[ReadTimedOut] = []
        self.swept: list[tuple[int, Rank]] = []
        self.sweeps_take_long = False
        self.late: list[tuple[bytes, Value, Mark]] = []
        kafka, settings = KafkaSettings(), ProcessorSettings(engine="faust")
        self.wakefulness = Wakefulness(slept_ms=SLEPT_MS, silent_ms=SILENT_MS, monotonic_s=lambda: self.now_s)
        self.asking = Asking(kafka, settings, lambda partition: Tally(partition, TOPICS), lambda _: True)
        self.serving = Serving(kafka, settings)
        self.sweeps = Sweeps(self.late_records, first_ms=1_000, every_ms=10_000)
        self.holding = Holding(
            self.read,
            self.serving,
            self.sweeps,
            Rewinds(TOPICS.ledger, self.asking.ledger_begins, lambda: cast(Any, None)),
            self.wakefulness,
            refold=set(refold),
            checkpoint_ms=10,
            write=self.changelog.write,
            faults=no_faults,
        )

    async def read(self, partitions: frozenset[int], refold: frozenset[int]) -> Sequence[Taken]:
        self.refolded.append(refold)
        self.while_reading()
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        return [Taken(Tenure(partition, Tally(partition, TOPICS), 0), 0, 0, []) for partition in partitions]

    async def late_records(
        self, partition: int, since: int, rank: Rank, goes_on: Callable[[int], bool]
    ) -> tuple[list[tuple[bytes, Value, Mark]], int, Rank]:
        self.swept.append((since, rank))
        while self.sweeps_take_long:  # as a changelog is read, a batch at a time
            await asyncio.sleep(0)
            if not goes_on(1):
                raise InterruptedTakeoverError
        if self.faults:
            raise self.faults.pop(0)
        return self.late, since + 5, rank

    async def take(self) -> None:
        await self.holding.take(frozenset({0}), going_on)

    def fold(self) -> None:
        """Fold a fact whose checkpoint waits for no emission."""
        (keeper,) = self.holding
        keeper.tenure.take(StoredRecord(TOPICS.ledger, 0, 0, 1_000, b"a", b"fact"))

    def written(self) -> list[bytes]:
        return [key for key, _ in self.changelog.written]

    def close(self) -> None:
        self.serving.close()
        self.asking.close()

    def sleep(self) -> None:
        """Sleep for longer than goes unseen."""
        self.now_s += SLEPT_MS / 1_000 + 1


@pytest.fixture
async def member() -> AsyncIterator[Member]:
    made = Member()
    yield made
    made.close()


async def test_who_slept_while_it_took_over_is_silent_before_it_folds(member: Member) -> None:
    member.while_reading = member.sleep
    taking = asyncio.create_task(member.take())
    await turns()
    assert list(member.holding) == []
    assert list(member.holding.taking) == [0]
    member.now_s += SILENT_MS / 1_000
    await taking
    assert [keeper.partition for keeper in member.holding] == [0]


async def test_who_slept_and_was_replaced_while_it_took_over_holds_nothing(member: Member) -> None:
    member.while_reading = member.sleep
    taking = asyncio.create_task(member.take())
    await turns()
    await member.holding.give_up(keep=True)
    member.now_s += SILENT_MS / 1_000
    await taking
    assert list(member.holding) == []


async def test_what_was_taken_away_while_its_state_was_read_is_not_held_nor_being_taken(member: Member) -> None:
    taking = asyncio.create_task(member.take())
    await asyncio.sleep(0)
    assert list(member.holding.taking) == [0]
    await member.holding.give_up(keep=True)
    assert not member.holding.taking, "else the watchdog would wait for what nobody does"
    await taking
    assert list(member.holding) == []


async def test_a_takeover_that_the_broker_kept_from_its_end_is_tried_again(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amends.processors.faust_holding.TAKE_AGAIN_S", 0.0)
    member.faults.append(ReadTimedOut("the broker is away"))
    await member.take()
    assert len(member.refolded) == 2
    assert [keeper.partition for keeper in member.holding] == [0]


async def test_what_is_built_anew_is_so_again_until_a_checkpoint_of_it_is_kept() -> None:
    member = Member(refold=[0, 1])
    try:
        await member.take()
        await member.holding.give_up(keep=False)
        await member.take()
        member.fold()
        giving_up = asyncio.create_task(member.holding.give_up(keep=True))
        while not giving_up.done():
            await turns()
            member.changelog.answer()
        await giving_up
        await member.take()
    finally:
        member.close()
    assert member.refolded == [{0, 1}, {0, 1}, {1}]
    assert member.holding.kept == 1


async def test_an_owner_that_lost_its_partition_in_the_middle_of_a_checkpoint_does_not_seal_it(member: Member) -> None:
    await member.take()
    member.fold()
    (keeper,) = member.holding
    keeper.advance(0)
    keeper.advance(1_000)
    await turns()
    assert member.written() == [b"a"]
    await member.holding.give_up(keep=False)
    member.changelog.answer()
    await turns()
    assert member.written() == [b"a"]


async def test_a_last_checkpoint_that_takes_too_long_is_broken_off_and_never_sealed(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amends.processors.faust_holding.LAST_CHECKPOINT_S", 0.05)
    await member.take()
    member.fold()
    with pytest.raises(TimeoutError):
        await member.holding.give_up(keep=True)
    assert list(member.holding) == []
    member.changelog.answer()
    await turns()
    assert member.written() == [b"a"]
    assert SEAL_KEY not in member.written()


async def test_who_slept_tries_no_last_checkpoint_and_counts_what_it_was_writing_as_refused(member: Member) -> None:
    await member.take()
    member.fold()
    (keeper,) = member.holding
    keeper.advance(0)
    keeper.advance(1_000)
    await turns()
    member.now_s += SLEPT_MS / 1_000 + 1
    await member.holding.give_up(keep=True)
    assert member.written() == [b"a"]
    assert member.holding.refused == 1


async def test_a_partition_that_was_given_up_is_not_swept(member: Member) -> None:
    await member.take()
    (keeper,) = member.holding
    await member.holding.give_up(keep=False)
    await member.sweeps.sweep(keeper, 0)
    assert member.swept == []


async def test_a_sweep_of_a_partition_that_is_given_up_meanwhile_is_broken_off(member: Member) -> None:
    await member.take()
    (keeper,) = member.holding
    member.sweeps_take_long = True
    sweeping = asyncio.create_task(member.sweeps.sweep(keeper, 0))
    await turns()
    await member.holding.give_up(keep=False)
    await asyncio.wait_for(sweeping, 10)
    assert list(member.holding) == []


async def test_a_sweep_goes_on_where_the_one_before_ended_and_again_soon_where_it_found_something(
    member: Member,
) -> None:
    await member.take()
    (keeper,) = member.holding
    late = (b"old", b"counts", Mark(Rank(0, -1), 5))
    member.faults.append(ReadTimedOut("the broker is away"))
    await member.sweeps.sweep(keeper, 0)
    assert member.sweeps.due(999) == []
    assert member.sweeps.due(1_000) == [keeper]
    member.late = [late]
    await member.sweeps.sweep(keeper, 1_000)
    assert member.sweeps.due(2_000) == [keeper]
    member.late = []
    await member.sweeps.sweep(keeper, 2_000)
    assert member.sweeps.due(11_999) == []
    assert member.sweeps.due(12_000) == [keeper]
    assert [since for since, _ in member.swept] == [0, 0, 5]
    keeper.advance(0)
    await turns()
    assert member.changelog.written == [(late[0], late[2])]


async def test_a_takeover_does_not_wait_for_a_sweep(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def read_for_long(*args: object) -> tuple[list[object], int, Rank]:
        is_over.wait(30)
        return [], 0, Rank(0, 0)

    monkeypatch.setattr("amends.processors.faust_asking.late_records", read_for_long)
    sweeping = asyncio.create_task(member.asking.late_records(0, 0, Rank(0, 0), lambda _: True))
    await turns()
    try:
        assert await asyncio.wait_for(member.asking.take(frozenset(), frozenset()), 10) == []
        assert not sweeping.done()
    finally:
        is_over.set()
    await sweeping
