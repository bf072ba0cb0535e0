"""Going back in the ledger under Faust: through Faust's own reading, of a topic in memory, that loses facts once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faust.transport.consumer import Consumer
from faust.types import TP, Message
from faust.types.tuples import ConsumerMessage
from tests.contract.tally import Tally

from amends.kafka.errors import ReadTimedOut
from amends.kafka.settings import KafkaSettings
from amends.processors.engine import LedgerHoleError, no_faults
from amends.processors.faust_keeper import FaustKeeper
from amends.processors.faust_rewinds import REWINDS_MAX, Rewinds
from amends.processors.faust_takeover import Taken
from amends.processors.faust_worker import ProcessorApp, make_app
from amends.processors.memory import StoredRecord
from amends.processors.settings import ProcessorSettings
from amends.processors.tenure import Tenure
from amends.schemas.topics import Topics

TOPICS = Topics()
PLACE = TP(TOPICS.ledger, 0)
FACTS = 30
BATCH = 10
DEADLINE_S = 20.0


class LedgerConsumer(Consumer):
    """Faust's consumer over a partition in memory: what is fetched, and where it goes on; the rest is Faust's.

    `loses`: offsets that are skipped when they are first fetched. `deaf`: seeks that come to nothing.
    """

    def __init__(self, app: ProcessorApp, *, loses: Collection[int] = (), deaf: int = 0, **more: Any) -> None:
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()

        async def hand_over(message: Message) -> None:
            await self.inbox.put(message)

        async def nothing(*args: Any) -> None:
            return

        super().__init__(app.transport, hand_over, nothing, nothing, **more)
        self.at = 0
        self.loses = set(loses)
        self.deaf = deaf
        self.seeks: list[int] = []
        self._set_active_tps({PLACE})

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> dict[TP, list[int]]:
        await asyncio.sleep(0)
        if PLACE not in (active_partitions or ()):
            return {}
        batch = [offset for offset in range(self.at, min(self.at + BATCH, FACTS)) if offset not in self.loses]
        self.loses -= set(range(self.at, self.at + BATCH))
        self.at = min(self.at + BATCH, FACTS)
        return {PLACE: batch}

    def _to_message(self, tp: TP, record: int) -> ConsumerMessage:
        return ConsumerMessage(tp.topic, tp.partition, record, 1.0, 1, [], b"key", b"fact %d" % record, None, tp=tp)

    async def seek_wait(self, partitions: Mapping[TP, int]) -> None:
        self.seeks.append(partitions[PLACE])
        if len(self.seeks) <= self.deaf:
            return
        self.at = partitions[PLACE]
        if self.at > 0:
            self._read_offset[PLACE] = self.at
        else:
            self._read_offset.pop(PLACE, None)

    def assignment(self) -> set[TP]:
        return {PLACE}

    def highwater(self, tp: TP) -> int:
        return FACTS

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Let Faust read, as its fetcher does."""
        fetcher = cast(Any, SimpleNamespace(_stopped=asyncio.Event()))
        reading = asyncio.get_running_loop().create_task(self._drain_messages(fetcher))
        try:
            yield
        finally:
            fetcher._stopped.set()
            self._stopped.set()
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading


LedgerConsumer.__abstractmethods__ = frozenset()  # what a driver for a broker has besides is not used here


def consumer_of(app: ProcessorApp, *, loses: Collection[int] = (), deaf: int = 0) -> LedgerConsumer:
    made: LedgerConsumer = cast(Any, LedgerConsumer)(app, loses=loses, deaf=deaf)
    return made


class Ledger:
    """A partition that is held, and where its ledger begins."""

    def __init__(self, next_offset: int = 0, *, again_s: float = 0.2) -> None:
        self.begins = 0
        self.asked = 0
        self.faults: list[ReadTimedOut] = []
        self.consumer: LedgerConsumer
        self.tenure = Tenure(0, Tally(0, TOPICS), next_offset)
        self.keeper = FaustKeeper(
            Taken(self.tenure, 0, 0, []),
            writer=1,
            checkpoint_ms=10,
            write=cast(Any, None),
            awake=cast(Any, None),
            faults=no_faults,
        )
        self.rewinds = Rewinds(TOPICS.ledger, self._begins, lambda: self.consumer, again_s=again_s)
        self.rewinds.hold(self.keeper, is_passed=False)

    async def _begins(self, partition: int) -> int:
        self.asked += 1
        if self.faults:
            raise self.faults.pop(0)
        return self.begins

    async def take(self, offset: int) -> None:
        """What the agent's body does with a fact."""
        if await self.rewinds.comes_in_order(self.keeper, offset):
            self.tenure.take(StoredRecord(TOPICS.ledger, 0, offset, 1_000, b"key", b"fact %d" % offset))

    async def fold(self) -> None:
        """Fold what Faust hands over, to the ledger's end."""
        while self.tenure.next_offset < FACTS:
            message = await asyncio.wait_for(self.consumer.inbox.get(), DEADLINE_S)
            await self.take(message.offset)


@pytest.fixture
def app() -> Any:
    made = make_app(KafkaSettings(), ProcessorSettings(engine="faust"), lambda partition: Tally(partition, TOPICS))
    yield made
    made.engine.close()


async def test_facts_that_faust_loses_in_a_batch_are_read_again_before_those_behind_them(app: ProcessorApp) -> None:
    ledger = Ledger(again_s=DEADLINE_S)
    ledger.consumer = consumer_of(app, loses={3, 4, 13})
    async with ledger.consumer.reading():
        await ledger.fold()
    assert ledger.tenure.fold.folded_to == FACTS - 1
    assert ledger.consumer.seeks == [3, 13], "nothing of the batch at hand came between and made one vain"


async def test_what_must_come_next_and_still_does_not_is_asked_for_once_more(app: ProcessorApp) -> None:
    ledger = Ledger()
    ledger.consumer = consumer_of(app, loses={3}, deaf=1)
    async with asyncio.timeout(DEADLINE_S), ledger.consumer.reading():
        while len(ledger.consumer.seeks) < 2:
            await ledger.take((await ledger.consumer.inbox.get()).offset)
            if ledger.consumer.at == FACTS and ledger.consumer.inbox.empty():
                ledger.consumer.at -= BATCH  # facts go on coming
                ledger.consumer._read_offset[PLACE] = ledger.consumer.at
        await ledger.fold()
    assert set(ledger.consumer.seeks) == {3}


async def test_a_partition_is_read_from_its_first_fact_where_the_group_stands_behind_it(app: ProcessorApp) -> None:
    ledger = Ledger()
    ledger.rewinds.hold(ledger.keeper, is_passed=True)
    ledger.consumer = consumer_of(app)
    ledger.consumer.at = FACTS
    async with ledger.consumer.reading():
        assert ledger.rewinds.due() == [ledger.keeper]
        assert ledger.rewinds.due() == []
        await ledger.rewinds.go_back(ledger.keeper, 0)
        await ledger.fold()


async def test_a_broker_that_did_not_say_where_the_ledger_begins_is_asked_again_without_another_fact(
    app: ProcessorApp,
) -> None:
    ledger, now_s = Ledger(), 100.0
    ledger.rewinds = Rewinds(
        TOPICS.ledger, ledger._begins, lambda: ledger.consumer, again_s=1.0, monotonic_s=lambda: now_s
    )
    ledger.rewinds.hold(ledger.keeper, is_passed=False)
    ledger.consumer = consumer_of(app)
    ledger.faults.append(ReadTimedOut("the broker is away"))
    await ledger.take(5)
    assert ledger.consumer.seeks == []
    assert ledger.rewinds.due() == [], "not at once: the broker was away a moment ago"
    now_s += 1.1
    assert ledger.rewinds.due() == [ledger.keeper]
    await ledger.rewinds.go_back(ledger.keeper, 5)
    assert ledger.consumer.seeks == [0]


async def test_a_fact_that_the_ledger_no_longer_holds_ends_it_in_words(app: ProcessorApp) -> None:
    ledger = Ledger(3)
    ledger.begins = 4
    ledger.consumer = consumer_of(app)
    with pytest.raises(LedgerHoleError, match="offset 3 must come next but 5 does"):
        await ledger.take(5)


async def test_a_fact_that_stays_away_ends_it_and_many_that_came_back_do_not(
    app: ProcessorApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amends.processors.faust_rewinds.THROUGH_S", 0.0)
    ledger = Ledger(again_s=0.0)
    ledger.consumer = consumer_of(app)
    for offset in range(2 * REWINDS_MAX):
        await ledger.take(offset + 1)
        await ledger.take(offset)
    for _ in range(REWINDS_MAX):
        await ledger.take(FACTS + 2 * REWINDS_MAX)
    with pytest.raises(LedgerHoleError):
        await ledger.take(FACTS + 2 * REWINDS_MAX)


async def test_a_partition_that_is_taken_away_meanwhile_is_left_where_its_next_owner_wants_it(
    app: ProcessorApp,
) -> None:
    ledger = Ledger()
    ledger.consumer = consumer_of(app)
    going = asyncio.create_task(ledger.take(5))
    while PLACE not in ledger.consumer._paused_partitions:  # noqa: ASYNC110  # Faust tells nobody
        await asyncio.sleep(0)
    ledger.keeper.drop()
    ledger.rewinds.drop()
    await going
    assert ledger.consumer.seeks == []
