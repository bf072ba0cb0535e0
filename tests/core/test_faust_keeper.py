"""A checkpoint under Faust: what is written in which order, and what an unanswered write stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from faust.types import EventT
from tests.contract.tally import Tally

from amends.kafka.settings import KafkaSettings
from amends.processors.engine import EngineError, no_faults
from amends.processors.faust_changelog import SEAL_KEY, Mark, Rank
from amends.processors.faust_engine import FaustEngine
from amends.processors.faust_keeper import ChangelogLostError, FaustKeeper
from amends.processors.faust_takeover import Taken
from amends.processors.faust_wakefulness import Wakefulness
from amends.processors.faust_worker import SendGuard, make_app
from amends.processors.memory import StoredRecord
from amends.processors.settings import ProcessorSettings
from amends.processors.tenure import Tenure
from amends.schemas.topics import Topics

TOPICS = Topics()


class Changelog:
    """What Faust's client would be: each write waits for its answer."""

    def __init__(self) -> None:
        self.written: list[tuple[bytes, Mark]] = []
        self.answers: list[asyncio.Future[None]] = []
        self.takes = asyncio.Event()
        """Unset: the client is full, and whoever writes waits."""
        self.takes.set()

    async def write(self, partition: int, key: bytes, value: bytes | None, mark: Mark) -> Awaitable[Any]:
        await self.takes.wait()
        self.written.append((key, mark))
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def answer(self, error: Exception | None = None) -> None:
        for waiting in self.answers:
            if not waiting.done():
                waiting.set_exception(error) if error else waiting.set_result(None)


class Held:
    """A keeper of a partition with two facts folded and confirmed, and what Faust was told is done."""

    def __init__(self, contested: dict[bytes, bytes | None] | None = None) -> None:
        self.changelog = Changelog()
        self.done: list[int] = []
        self.tenure = Tenure(0, Tally(0, TOPICS), 0)
        for offset, key in enumerate((b"a", b"b")):
            self.tenure.take(StoredRecord(TOPICS.ledger, 0, offset, 1_000, key, b"fact"))
        for number, _ in self.tenure.emissions(0, timers=False):
            self.tenure.confirm(number)
        self.keeper = FaustKeeper(
            Taken(self.tenure, 3, 0, [], contested=contested or {}),
            writer=7,
            checkpoint_ms=10,
            write=self.changelog.write,
            awake=self._awake,
            faults=no_faults,
        )

    async def _awake(self) -> None:
        return

    async def facts_done(self) -> None:
        async def acknowledge(event: EventT[Any]) -> None:
            self.done.append(cast(Any, event).offset)

        for offset in range(2):
            await self.keeper.done(offset, cast("EventT[Any]", SimpleNamespace(offset=offset)), acknowledge)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_seal_waits_for_every_change_and_faust_hears_of_the_facts_behind_the_seal() -> None:
    held = Held()
    await held.facts_done()
    last = asyncio.create_task(held.keeper.last())
    await turns()
    mark = Mark(Rank(3, 1), 7)
    assert held.changelog.written == [(b"a", mark), (b"b", mark)]
    held.changelog.answer()
    await turns()
    assert held.changelog.written[2:] == [(SEAL_KEY, mark)]
    assert held.done == []
    held.changelog.answer()
    await last
    assert held.done == [0, 1]
    assert not held.tenure.dirty


async def test_a_change_that_is_not_acknowledged_is_never_sealed() -> None:
    held = Held()
    await held.facts_done()
    last = asyncio.create_task(held.keeper.last())
    await turns()
    held.changelog.answer(RuntimeError("MessageSizeTooLarge"))
    with pytest.raises(ChangelogLostError, match=r"MessageSizeTooLarge.*max\.message\.bytes"):
        await last
    assert SEAL_KEY not in [key for key, _ in held.changelog.written]
    assert held.done == []


async def test_a_partition_that_was_taken_away_writes_nothing_more() -> None:
    held = Held()
    held.keeper.drop()
    await held.keeper.last()
    assert held.changelog.written == []


async def test_what_is_being_written_of_a_partition_that_was_taken_away_is_never_sealed() -> None:
    held = Held()
    held.keeper.advance(0)
    held.keeper.advance(1_000)
    await turns()
    assert len(held.changelog.written) == 2
    held.keeper.drop()
    held.changelog.answer()
    await turns()
    assert SEAL_KEY not in [key for key, _ in held.changelog.written]


async def test_of_a_partition_that_was_taken_away_what_waits_for_the_client_is_never_written() -> None:
    held = Held()
    held.changelog.takes.clear()
    held.keeper.advance(0)
    held.keeper.advance(1_000)
    await turns()
    held.keeper.drop()
    held.changelog.takes.set()
    await turns()
    assert held.changelog.written == []


async def test_a_last_checkpoint_of_a_partition_that_was_taken_away_meanwhile_is_never_sealed() -> None:
    held = Held()
    last = asyncio.create_task(held.keeper.last())
    await turns()
    held.keeper.drop()
    held.changelog.answer()
    await last
    assert SEAL_KEY not in [key for key, _ in held.changelog.written]


async def kept(held: Held) -> None:
    """Confirm what was emitted, and answer until a checkpoint is kept."""
    for number, _ in held.tenure.emissions(0, timers=False):
        held.tenure.confirm(number)
    last = asyncio.create_task(held.keeper.last())
    while not last.done():
        await turns()
        held.changelog.answer()


async def test_no_two_checkpoints_of_an_owner_have_one_rank() -> None:
    """Records of a rank whose seal stands would count before they are all there."""
    held = Held()
    held.tenure.take(StoredRecord(TOPICS.ledger, 0, 2, 1_000, b"c", b"again 0"))
    await kept(held)
    stretch = held.tenure.fold.refolding()
    assert stretch is not None
    held.tenure.refolded(stretch)
    await kept(held)
    seals = [mark.rank for key, mark in held.changelog.written if key == SEAL_KEY]
    assert seals == [Rank(3, 2), Rank(3, 2, 1)]


async def test_what_others_wrote_beyond_what_counts_is_written_over_in_the_first_checkpoint() -> None:
    held = Held({b"old": b"counts", b"new": None, b"a": b"before"})
    await kept(held)
    first = list(held.changelog.written)
    assert sorted(key for key, _ in first) == [SEAL_KEY, b"a", b"b", b"new", b"old"]
    held.tenure.take(StoredRecord(TOPICS.ledger, 0, 2, 1_000, b"c", b"fact"))
    await kept(held)
    assert [key for key, _ in held.changelog.written[len(first) :]] == [b"c", SEAL_KEY]


async def test_a_fact_that_the_state_holds_already_is_done_at_once() -> None:
    held = Held()
    last = asyncio.create_task(held.keeper.last())
    await turns()
    held.changelog.answer()
    await turns()
    held.changelog.answer()
    await last
    await held.facts_done()
    assert held.done == [0, 1]


def test_who_slept_through_its_session_is_silent_until_the_group_has_told() -> None:
    now_s = 100.0
    wakefulness = Wakefulness(slept_ms=4_000, silent_ms=3_000, monotonic_s=lambda: now_s)
    now_s += 3.9
    assert not wakefulness.look()
    now_s += 4.1
    assert wakefulness.look()
    now_s += 2.9
    assert wakefulness.look()
    now_s += 0.2
    assert not wakefulness.look()


def test_who_was_given_its_partitions_again_is_not_silent() -> None:
    now_s = 100.0
    wakefulness = Wakefulness(slept_ms=4_000, silent_ms=3_000, monotonic_s=lambda: now_s)
    now_s += 5
    assert wakefulness.look()
    wakefulness.is_member()
    assert not wakefulness.look()


def test_a_send_of_faust_that_fails_ends_the_process() -> None:
    told: list[BaseException] = []
    SendGuard(told.append).on_send_error(cast(Any, None), RuntimeError("no answer"), None)
    assert isinstance(told[0], EngineError)
    assert "no answer" in str(told[0])


class Raising(Tally):
    def fold(self, record: object) -> None:
        raise RuntimeError("a bug")


async def test_nothing_leaves_the_agents_body_and_the_fact_is_not_done() -> None:
    engine = FaustEngine(KafkaSettings(), ProcessorSettings(), lambda partition: Tally(partition, TOPICS))
    told: list[EngineError] = []
    engine.on_failure = told.append
    engine.write = Changelog().write
    engine._holding.hold(Taken(Tenure(0, Raising(0, TOPICS), 0), 0, 0, []))
    message = SimpleNamespace(partition=0, offset=0, timestamp=1.0, key=b"a", value=b"fact", headers=[])
    done: list[object] = []

    async def acknowledge(event: EventT[Any]) -> None:
        done.append(event)

    try:
        await engine.take_fact(cast("EventT[Any]", SimpleNamespace(message=message)), acknowledge)
    finally:
        engine.close()
    assert [str(error) for error in told] == ["RuntimeError: a bug"]
    assert done == []


class Unkeepable(Tally):
    def changes(self) -> NoReturn:
        raise RuntimeError("a bug")


async def test_leaving_never_raises_whatever_kept_it_from_a_last_checkpoint_and_gives_everything_up() -> None:
    engine = FaustEngine(KafkaSettings(), ProcessorSettings(), lambda partition: Tally(partition, TOPICS))
    told: list[EngineError] = []
    engine.on_failure = told.append
    engine.write = Changelog().write
    tenure = Tenure(0, Unkeepable(0, TOPICS), 0)
    engine._holding.hold(Taken(tenure, 0, 0, []))
    tenure.take(StoredRecord(TOPICS.ledger, 0, 0, 1_000, b"a", b"fact"))
    try:
        await engine.leave()
    finally:
        engine.close()
    assert [str(error) for error in told] == ["RuntimeError: a bug"]
    assert engine.progress.partitions == ()


def test_the_app_is_one_agent_and_one_table_with_our_changelog() -> None:
    kafka = KafkaSettings(topic_prefix="mine")
    app = make_app(kafka, ProcessorSettings(engine="faust"), lambda partition: Tally(partition, kafka.topics))
    try:
        (agent,) = app.agents.values()
        assert agent.concurrency == 1
        assert agent.channel.get_topic_name() == "mine.ledger"
        (table,) = app.tables.values()
        assert table.changelog_topic.get_topic_name() == "mine.processor-faust-changelog"
        with pytest.raises(TypeError, match="by its fold alone"):
            table.data[b"a"] = b"x"
    finally:
        app.engine.close()
