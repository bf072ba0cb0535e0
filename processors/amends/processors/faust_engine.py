"""The engine for teams that run Faust: one agent, one table, at least once.

Faust brings the facts, in its agent, and takes the changelog; partitions come and go as it says. The rest is what the
default engine has: the fold's emissions are confirmed writes of our own client, sent in the agent right after the fold;
a checkpoint follows behind them. All of it runs in Faust's loop; what blocks is asked in a thread (`faust_asking`).

What goes wrong, and what happens then:

- a fact is missing: the ledger is read from it again, for Faust loses some when it rebalances; if the ledger does not
  hold it, or it stays away, the process ends before anything behind it is folded;
- a record is not acknowledged, ours or Faust's: the process ends before its checkpoint is sealed;
- the group goes on without us: partitions are dropped, and nothing of theirs is written any more. Whoever slept for so
  long that this may have happened is silent until the group has told;
- nothing moves though there are facts, or a recovery never ends: the watchdog ends the process.

The process ends in place of joining again because Faust can't be told to: whoever looks after it starts it anew.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from faust.types import TP, ConsumerT, EventT

from amends.kafka.errors import KafkaFault
from amends.kafka.settings import KafkaSettings
from amends.processors.emitter import EmissionLostError, Emitter
from amends.processors.engine import EngineError, Faults, FoldFactory, LedgerHoleError, no_faults
from amends.processors.faust_asking import Asking
from amends.processors.faust_changelog import Rank
from amends.processors.faust_facts import LedgerMessage
from amends.processors.faust_keeper import Acknowledge, FaustKeeper, Write
from amends.processors.faust_options import heartbeat_ms
from amends.processors.faust_sweeps import Sweeps
from amends.processors.faust_takeover import Taken
from amends.processors.faust_wakefulness import Wakefulness
from amends.processors.rereader import Rereader
from amends.processors.restoring import InterruptedTakeoverError
from amends.processors.settings import ProcessorSettings
from amends.processors.tenure import hole_in_words
from amends.processors.watchdog import Progress
from amends.schemas.topics import COMPACTION_LAG_MS

logger = logging.getLogger(__name__)

IDLE_S, BUSY_S = 0.02, 0.003
LOOK_AGAIN_MS = 50
LAG_EVERY_MS = 5_000
LAST_CHECKPOINT_S = 5.0
TAKE_AGAIN_S = 1.0
REWIND_AGAIN_S = 1.0
REWINDS_MAX = 20
"""In one tenure: so often may Faust lose facts before it is better to start anew."""


class BrokerFaultError(EngineError):
    """The broker did not do its part in time. Starting again may help."""

    exit_code = 75


class FaustEngine:
    """Runs one fold per ledger partition that Faust's group gives this process. Used in Faust's loop, but for
    `progress`.

    Args:
        refold: leave the state behind and fold the ledger from its beginning, once for each partition.
        faults: for tests, see `engine.FAULT_POINTS`.
        sweep_ms: between two looks for records of processes that were replaced.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: ProcessorSettings,
        fold: FoldFactory,
        *,
        refold: bool = False,
        faults: Faults = no_faults,
        sweep_ms: int = COMPACTION_LAG_MS // 3,
    ) -> None:
        self._kafka = kafka
        self._settings = settings
        self._faults = faults
        self._to_refold = set(range(kafka.partitions)) if refold else set[int]()
        self._asking = Asking(kafka, settings, fold, self._restored)
        self._emitter = Emitter(
            kafka, deadline_ms=settings.emission_deadline_ms, queue_max=2 * settings.unconfirmed_max
        )
        self._rereader = Rereader(kafka)
        self._keepers: dict[int, FaustKeeper] = {}
        self._assignment = 0  # counts what the group took away
        self._taking: tuple[int, ...] = ()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timing = False
        self._sweeps = Sweeps(self._asking, first_ms=2 * settings.session_timeout_ms, every_ms=sweep_ms)
        beat_ms = heartbeat_ms(settings)
        self._wakefulness = Wakefulness(slept_ms=settings.session_timeout_ms - beat_ms, silent_ms=2 * beat_ms)
        self._stopping = False
        self._lag_at_ms = 0
        self._turns = self._folded = self._records = self._kept = self._refused = 0
        self._lag: int | None = None
        self._progress = Progress()
        self.failure: EngineError | None = None
        self.on_failure: Callable[[EngineError], object] = lambda error: None
        """Called once, when the process must end."""
        self.write: Write
        """Hands a record of the changelog to Faust's client."""
        self.consumer: Callable[[], ConsumerT]
        """Faust's consumer."""
        self.is_rebalancing: Callable[[], bool] = lambda: False
        """Whether Faust has yet to go to where the group stands."""

    @property
    def progress(self) -> Progress:
        """Where the loop last was. Any thread may ask."""
        return self._progress

    def fail(self, error: BaseException) -> None:
        """The process must end. Only the first reason counts."""
        if self.failure is not None or self._stopping:
            return
        self.failure = _in_words(error)
        if not isinstance(error, EngineError | EmissionLostError | KafkaFault):
            logger.error("the engine broke", exc_info=error)
        self.on_failure(self.failure)

    # --- facts --------------------------------------------------------------------------------------------------------

    async def take_fact(self, event: EventT[Any], acknowledge: Acknowledge) -> None:
        """Fold what Faust brings. Never raises but for cancellation: Faust would take the fact for done."""
        try:
            await self._wakefulness.awake()
            while self._emitter.unconfirmed > self._settings.unconfirmed_max:  # noqa: ASYNC110  # told by another thread
                await asyncio.sleep(BUSY_S)
            keeper = self._keepers.get(event.message.partition)
            if keeper is not None and self.failure is None:
                await self._fold(keeper, event, acknowledge)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # nothing may leave the agent's body
            self.fail(error)

    async def _fold(self, keeper: FaustKeeper, event: EventT[Any], acknowledge: Acknowledge) -> None:
        record, tenure = LedgerMessage(event), keeper.tenure
        if record.offset > tenure.next_offset:
            await self._rewind(keeper, record.offset)
            return
        keeper.rewind_again_at_s = None
        if tenure.take(record):
            self._folded += 1
            self._emitter.send(tenure, tenure.emissions(_now_ms(), timers=False))
        await keeper.done(record.offset, event, acknowledge)

    async def _rewind(self, keeper: FaustKeeper, found: int) -> None:
        """What must come next did not. Read it again, if it is there; what comes meanwhile comes again.

        Of the batch at hand Faust hands over the rest, and takes what it handed over for where it is: what is read
        again then counts as old, and is thrown away. So the partition is paused until that batch is through, and if
        what must come still does not, it is asked for once more.
        """
        now_s = time.monotonic()
        if keeper.rewind_again_at_s is not None and now_s < keeper.rewind_again_at_s:
            return
        keeper.rewind_again_at_s = now_s + REWIND_AGAIN_S
        partition, wanted = keeper.partition, keeper.tenure.next_offset
        try:
            begins = await self._asking.ledger_begins(partition)
        except KafkaFault as fault:
            logger.warning("ledger partition %d: %d came and %d must: %s", partition, found, wanted, fault)
            keeper.is_passed = True  # asked again by the loop, whether or not a fact comes
            return
        keeper.rewinds += 1
        if begins > wanted or keeper.rewinds > REWINDS_MAX:
            raise LedgerHoleError(hole_in_words(partition, wanted, max(begins, found)))
        logger.warning("ledger partition %d: %d came and %d must; reading from there", partition, found, wanted)
        if self._keepers.get(partition) is keeper:
            place, consumer = TP(self._kafka.topics.ledger, partition), self.consumer()
            consumer.pause_partitions({place})
            await asyncio.sleep(LOOK_AGAIN_MS / 1000)
            if self._keepers.get(partition) is keeper:
                await consumer.seek_wait({place: wanted})
            consumer.resume_partitions({place})

    def _begin_rewinds(self) -> None:
        """Where the group stands behind what must come next (a state built anew), no fact may ever come to say so."""
        passed = [keeper for keeper in self._keepers.values() if keeper.is_passed]
        if passed and not self.is_rebalancing():  # else Faust goes to where the group stands after us
            for keeper in passed:
                keeper.is_passed = False
                self._begin(self._rewind(keeper, keeper.tenure.next_offset))

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Do everything that no fact brings, until `leave`. Never raises but for cancellation."""
        while not self._stopping and self.failure is None:
            try:
                self._turn(_now_ms())
            except Exception as error:
                self.fail(error)
            busy = self._emitter.unconfirmed or any(k.is_committing for k in self._keepers.values())
            await asyncio.sleep(BUSY_S if busy else IDLE_S)

    def _turn(self, now_ms: int) -> None:
        self._emitter.confirm(self._is_held)
        if not self._wakefulness.look():
            self._fold_again()
            for keeper in self._keepers.values():
                keeper.advance(now_ms)
            self._begin_timers(now_ms)
            self._begin_rewinds()
            for keeper in self._sweeps.due(now_ms):
                self._begin(self._sweeps.sweep(keeper, now_ms))
        if now_ms >= self._lag_at_ms:
            self._lag_at_ms = now_ms + LAG_EVERY_MS
            self._begin(self._look_at_lag())
        self._report()

    def _fold_again(self) -> None:
        for keeper in self._keepers.values():
            stretch = keeper.tenure.fold.refolding()
            if stretch is not None:
                self._rereader.want(keeper.tenure, stretch)
        for tenure, read in self._rereader.take():
            tenure.refolded(read)
            self._emitter.send(tenure, tenure.emissions(_now_ms(), timers=False))

    def _begin_timers(self, now_ms: int) -> None:
        due = [k for k in self._keepers.values() if k.look_again_at_ms <= now_ms and k.tenure.due(now_ms)]
        if due and not self._timing:
            self._timing = True
            self._begin(self._look_at_timers(due))

    async def _look_at_timers(self, due: list[FaustKeeper]) -> None:
        """Time that no fact has brought is the broker's to tell, as with the default engine."""
        try:
            ends = await self._asking.ledger_ends([keeper.partition for keeper in due])
            await self._wakefulness.awake()
            now_ms = _now_ms()
            for keeper in due:
                if keeper.is_dropped:
                    continue
                end = ends.get(keeper.partition)
                if end is not None and end.offset == keeper.tenure.next_offset:
                    keeper.tenure.saw_time(end.observed_at_ms)
                self._emitter.send(keeper.tenure, keeper.tenure.emissions(now_ms, timers=True))
                keeper.look_again_at_ms = now_ms + LOOK_AGAIN_MS * (1 if ends else 20)
        finally:
            self._timing = False

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self.fail(error)

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- partitions come and go ---------------------------------------------------------------------------------------

    async def take(self, partitions: frozenset[int]) -> None:
        """Become the owner of exactly these partitions. Never raises but for cancellation."""
        self._wakefulness.is_member()
        number = self._assignment
        self._taking = tuple(sorted(partitions))
        logger.info("taking over ledger partitions %s", list(self._taking))
        began_at = time.monotonic()
        taken: list[Taken] | None = None
        while taken is None:
            try:
                taken = await self._asking.take(partitions, frozenset(self._to_refold))
            except InterruptedTakeoverError:
                return
            except KafkaFault as fault:
                logger.warning("taking over ledger partitions %s again: %s", list(self._taking), fault)
                await asyncio.sleep(TAKE_AGAIN_S)
            except Exception as error:
                self.fail(error)
                return
            if number != self._assignment or self._stopping:
                return  # they were taken away meanwhile
        await self._wakefulness.awake()  # who slept while it read may have been replaced
        if number != self._assignment or self._stopping:
            return
        self._taking = ()
        for each in taken:
            self._hold(each)
        logger.info("took over ledger partitions %s in %.1f s", sorted(partitions), time.monotonic() - began_at)
        self._report()

    def _hold(self, taken: Taken) -> None:
        tenure = taken.tenure
        self._keepers[tenure.partition] = keeper = FaustKeeper(
            taken,
            writer=secrets.randbits(62),
            checkpoint_ms=self._settings.checkpoint_ms,
            write=self.write,
            awake=self._wakefulness.awake,
            faults=self._faults,
        )
        self._sweeps.hold(keeper, taken.end, Rank(taken.era, tenure.next_offset - 1), _now_ms())
        # All that is emitted is a function of state: what the owner before did not get out comes out now.
        self._emitter.send(tenure, tenure.emissions(_now_ms(), timers=False))

    async def changelog_ends(self, partitions: frozenset[int]) -> dict[int, int]:
        """Return where the changelog ends; nothing if nobody tells: then Faust reads it, for nothing."""
        try:
            return await self._asking.changelog_ends(partitions)
        except KafkaFault as fault:
            logger.warning("the ends of the changelog are not known: %s", fault)
            return {}

    async def revoked(self) -> None:
        """Give everything up: a rebalance takes all and gives anew."""
        self._assignment += 1
        self._taking = ()
        try:
            if not self._wakefulness.look() and self.failure is None:
                await asyncio.wait_for(self._last_checkpoints(), LAST_CHECKPOINT_S)
        except (TimeoutError, EngineError, EmissionLostError) as fault:
            logger.warning("no last checkpoint of partitions %s: %s", sorted(self._keepers), fault)
        finally:
            self._drop()

    async def leave(self) -> None:
        """Stop after a last checkpoint. Never raises."""
        await self.revoked()
        self._stopping = True

    async def _last_checkpoints(self) -> None:
        while self._emitter.unconfirmed:
            self._emitter.confirm(self._is_held)
            await asyncio.sleep(BUSY_S)
        await asyncio.gather(*(keeper.last() for keeper in self._keepers.values()))

    def _drop(self) -> None:
        silent = self._wakefulness.look()
        for keeper in self._keepers.values():
            if keeper.is_committing and silent:
                self._refused += 1
            keeper.drop()
            self._rereader.drop(keeper.tenure)
            self._kept += keeper.kept
        # What was built anew and never kept is built anew by whoever takes it, this process too.
        self._to_refold -= {partition for partition, keeper in self._keepers.items() if keeper.kept}
        self._keepers = {}
        self._sweeps.drop()
        self._report()

    def close(self) -> None:
        """Let go of clients and threads. Once, when the loop has ended."""
        self._stopping = True
        self._rereader.close()
        self._emitter.close()
        self._asking.close()

    def _is_held(self, tenure: object) -> bool:
        return any(keeper.tenure is tenure for keeper in self._keepers.values())

    # --- figures ------------------------------------------------------------------------------------------------------

    def _restored(self, records: int) -> bool:
        self._records += records  # in the thread that asks
        return not self._stopping

    async def _look_at_lag(self) -> None:
        self._lag = await self._asking.lag({k.partition: k.tenure.next_offset for k in self._keepers.values()})

    def _report(self) -> None:
        self._turns += 1
        keepers = self._keepers.values()
        self._progress = Progress(
            turns=self._turns,
            folded=self._folded,
            kept=self._kept + sum(keeper.kept for keeper in keepers),
            lag=self._lag,
            partitions=tuple(sorted(self._keepers)),
            taking=self._taking,
            restored=self._records,
            unconfirmed=self._emitter.unconfirmed,
            emitted=self._emitter.emitted,
            refused=self._refused,
            committing=tuple((keeper.partition, keeper.begun) for keeper in keepers if keeper.is_committing),
        )


def _in_words(error: BaseException) -> EngineError:
    if isinstance(error, EngineError):
        return error
    if isinstance(error, EmissionLostError | KafkaFault):
        return BrokerFaultError(str(error))
    return EngineError(f"{type(error).__name__}: {error}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
