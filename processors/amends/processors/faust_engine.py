"""The engine for teams that run Faust: one agent, one table, at least once.

Faust brings the facts, in its agent, and takes the changelog; partitions come and go as it says (`faust_holding`). The
rest is what the default engine has (`serving`): the fold's emissions are confirmed writes of our own client, sent in
the agent right after the fold; a checkpoint follows behind them. All of it runs in Faust's loop; what blocks is asked
in threads (`faust_asking`).

What goes wrong, and what happens then:

- a fact is missing: the ledger is read from it again, for Faust loses some when it rebalances; if the ledger does not
  hold it, or it stays away, the process ends before anything behind it is folded (`faust_rewinds`);
- a record is not acknowledged, ours or Faust's: the process ends before its checkpoint is sealed;
- the group goes on without us: partitions are dropped, and nothing of theirs is written any more. Whoever slept for so
  long that this may have happened is silent until the group has told;
- nothing moves though there are facts, or a recovery never ends: the watchdog ends the process.

The process ends in place of joining again because Faust can't be told to: whoever looks after it starts it anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from faust.types import ConsumerT, EventT

from amends.kafka.errors import AccessRefused, KafkaFault
from amends.kafka.settings import KafkaSettings
from amends.processors.emitter import EmissionLostError
from amends.processors.engine import EngineError, Faults, FoldFactory, RightMissingError, no_faults
from amends.processors.faust_asking import Asking
from amends.processors.faust_changelog import Mark
from amends.processors.faust_facts import LedgerMessage
from amends.processors.faust_figures import Figures
from amends.processors.faust_holding import Holding
from amends.processors.faust_keeper import Acknowledge, FaustKeeper, Write
from amends.processors.faust_options import heartbeat_ms
from amends.processors.faust_rewinds import Rewinds
from amends.processors.faust_sweeps import Sweeps
from amends.processors.faust_wakefulness import Wakefulness
from amends.processors.serving import Serving, due_of, wall_ms
from amends.processors.settings import ProcessorSettings
from amends.processors.watchdog import Progress
from amends.schemas.topics import COMPACTION_LAG_MS

logger = logging.getLogger(__name__)

IDLE_S, BUSY_S = 0.02, 0.003


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
        self._stopping = False
        self._asking = Asking(kafka, settings, fold, self._restored)
        self._serving = Serving(kafka, settings)
        self._sweeps = Sweeps(self._asking.late_records, first_ms=2 * settings.session_timeout_ms, every_ms=sweep_ms)
        self._rewinds = Rewinds(kafka.topics.ledger, self._asking.ledger_begins, lambda: self.consumer())  # noqa: PLW0108  # it is told later
        beat_ms = heartbeat_ms(settings)
        self._wakefulness = Wakefulness(slept_ms=settings.session_timeout_ms - beat_ms, silent_ms=2 * beat_ms)
        self._holding = Holding(
            self._asking.take,
            self._serving,
            self._sweeps,
            self._rewinds,
            self._wakefulness,
            refold=set(range(kafka.partitions)) if refold else set(),
            checkpoint_ms=settings.checkpoint_ms,
            write=self._write,
            faults=faults,
        )
        self._figures = Figures(self._asking, self._serving, self._holding)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timing = False
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
        return self._figures.progress

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
            while self._serving.is_full:  # noqa: ASYNC110  # told by another thread
                await asyncio.sleep(BUSY_S)
            keeper = self._holding.keeper(event.message.partition)
            if keeper is not None and self.failure is None:
                await self._fold(keeper, event, acknowledge)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # nothing may leave the agent's body
            self.fail(error)

    async def _fold(self, keeper: FaustKeeper, event: EventT[Any], acknowledge: Acknowledge) -> None:
        record = LedgerMessage(event)
        if not await self._rewinds.comes_in_order(keeper, record.offset):
            return
        if keeper.tenure.take(record):
            self._figures.folded += 1
            self._serving.send(keeper.tenure)
        await keeper.done(record.offset, event, acknowledge)

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Do everything that no fact brings, until `leave`. Never raises but for cancellation."""
        while not self._stopping and self.failure is None:
            try:
                self._turn(wall_ms())
            except Exception as error:
                self.fail(error)
            busy = self._serving.unconfirmed or any(keeper.is_committing for keeper in self._holding)
            await asyncio.sleep(BUSY_S if busy else IDLE_S)

    def _turn(self, now_ms: int) -> None:
        self._serving.confirm()
        if not self._wakefulness.look():
            self._serving.fold_again()
            for keeper in self._holding:
                keeper.advance(now_ms)
            self._begin_timers(now_ms)
            self._begin_rewinds()
            for keeper in self._sweeps.due(now_ms):
                self._begin(self._sweeps.sweep(keeper, now_ms))
        if self._figures.is_lag_due(now_ms):
            self._begin(self._figures.look_at_lag())
            if not (self._holding.taking or list(self._holding)):
                self._begin(self._asking.require_membership())
        self._figures.report()

    def _begin_timers(self, now_ms: int) -> None:
        due = due_of(self._holding, now_ms)
        if due and not self._timing:
            self._timing = True
            self._begin(self._look_at_timers(due))

    async def _look_at_timers(self, due: list[FaustKeeper]) -> None:
        try:
            ends = await self._asking.ledger_ends([keeper.partition for keeper in due])
            await self._wakefulness.awake()
            self._serving.look_at_timers([keeper for keeper in due if not keeper.is_dropped], ends)
        finally:
            self._timing = False

    def _begin_rewinds(self) -> None:
        if self.is_rebalancing():  # Faust goes to where the group stands after us
            return
        for keeper in self._rewinds.due():
            self._begin(self._rewinds.go_back(keeper, keeper.tenure.next_offset))

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
        try:
            await self._holding.take(partitions, lambda: not self._stopping)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.fail(error)
        self._figures.report()

    async def changelog_ends(self, partitions: frozenset[int]) -> dict[int, int]:
        """Return where the changelog ends; nothing if nobody tells: then Faust reads it, for nothing."""
        try:
            return await self._asking.changelog_ends(partitions)
        except KafkaFault as fault:
            logger.warning("the ends of the changelog are not known: %s", fault)
            return {}

    async def revoked(self) -> None:
        """Give everything up: a rebalance takes all and gives anew. Never raises but for cancellation."""
        try:
            await self._holding.give_up(keep=self.failure is None)
        except asyncio.CancelledError:
            raise
        except (TimeoutError, EngineError, EmissionLostError, KafkaFault) as fault:
            logger.warning("no last checkpoint: %s", fault or "it took too long")
        except Exception as error:
            self.fail(error)
        self._figures.report()

    async def leave(self) -> None:
        """Stop after a last checkpoint, if that can be had. Never raises but for cancellation."""
        await self.revoked()
        self._stopping = True

    def close(self) -> None:
        """Let go of clients and threads. Once, when the loop has ended."""
        self._stopping = True
        self._serving.close()
        self._asking.close()

    def _write(self, partition: int, key: bytes, value: bytes | None, mark: Mark) -> Awaitable[Awaitable[Any]]:
        return self.write(partition, key, value, mark)

    def _restored(self, records: int) -> bool:
        self._figures.restored += records  # in the thread that asks
        return not self._stopping


def _in_words(error: BaseException) -> EngineError:
    if isinstance(error, EngineError):
        return error
    if isinstance(error, AccessRefused):
        return RightMissingError(str(error))
    if isinstance(error, EmissionLostError | KafkaFault):
        return BrokerFaultError(str(error))
    return EngineError(f"{type(error).__name__}: {error}")
