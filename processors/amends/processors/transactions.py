"""The default engine: a consumer group, plain confirmed writes, and a checkpoint transaction behind them.

One thread folds. A turn of its loop: take what has arrived, fold it, send what the fold emits, look at the timers, cut
checkpoints, collect those that ended. Emissions are confirmed and checkpoints committed by other threads meanwhile.

What goes wrong, and what happens then:

- a checkpoint is refused, the group goes on without us, an emission can't be confirmed: every partition is dropped at
  once, nothing more is written, and the process joins again. What was lost is folded again from the last checkpoint;
- a checkpoint is aborted: what it held joins the next one;
- facts are missing, topics are wrong, two processes have one instance id: `run` raises, since a person must mend it;
- the broker is away: the clients try again by themselves, and nothing is decided here;
- nothing moves though there are facts, or a commit never ends: the watchdog ends the process.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from amends.kafka.consumer import GroupConsumer
from amends.kafka.errors import KafkaFault, ReadTimedOut
from amends.kafka.owned import GATHER_MS
from amends.kafka.reader import PartitionReader
from amends.kafka.records import Record, TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.processors.checkpoints import Keeper
from amends.processors.emitter import EmissionLostError
from amends.processors.engine import CheckpointRefusedError, Faults, FoldFactory, no_faults
from amends.processors.rejoining import Rejoining
from amends.processors.restoring import InterruptedTakeoverError
from amends.processors.serving import Serving, due_of, waiting_of, wall_ms
from amends.processors.settings import ProcessorSettings
from amends.processors.takeover import Takeover
from amends.processors.watchdog import Progress

logger = logging.getLogger(__name__)

IDLE_MS = 100
"""Longest wait for a record: how late a stop is noticed."""
WAITING_MS = 5
"""Longest wait while a checkpoint is on its way."""
LAG_EVERY_MS = 5_000
REQUEST_MS = 1_000
LAST_CHECKPOINT_S = 5.0


class TransactionalEngine:
    """Runs one fold per ledger partition that the group gives this process.

    Args:
        refold: leave the state behind and fold the ledger from its beginning, once for each partition.
        faults: for tests, see `engine.FAULT_POINTS`.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: ProcessorSettings,
        fold: FoldFactory,
        *,
        refold: bool = False,
        faults: Faults = no_faults,
    ) -> None:
        self._kafka = kafka
        self._settings = settings
        self._faults = faults
        self._to_refold = set(range(kafka.partitions)) if refold else set[int]()
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=max(4, kafka.partitions), thread_name_prefix="amends-checkpoint")
        self._serving = Serving(kafka, settings)
        self._takeover = Takeover(
            kafka,
            settings.application_id,
            fold,
            # A frozen owner's open transaction must not outlive its session by much, if its successor never comes.
            max(10_000, settings.session_timeout_ms),
            self._pool,
            self._restored,
        )
        self._consumer: GroupConsumer | None = None
        self._keepers: dict[int, Keeper] = {}
        self._leaving: list[Keeper] = []  # dropped while they committed
        self._lag_at_ms = 0
        self._rejoining = Rejoining(settings.instance_id, settings.application_id)
        self._seen = _Counts()
        self._progress = Progress()

    @property
    def progress(self) -> Progress:
        """Where the loop last was. Any thread may ask."""
        return self._progress

    def stop(self) -> None:
        """Make `run` return after a last checkpoint. Any thread may call it, and a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Fold until `stop`. Blocks.

        Raises:
            EngineError: it can't go on; the message says what to change.
        """
        try:
            while not self._stopping.is_set():
                try:
                    self._serve()
                except InterruptedTakeoverError:
                    return
                except (KafkaFault, CheckpointRefusedError, EmissionLostError) as fault:
                    self._count_fault(fault)
        finally:
            self._drop(list(self._keepers))
            self._serving.close()
            self._pool.shutdown()

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Be a member of the group until `stop` or until something goes wrong."""
        self._consumer = consumer = GroupConsumer(
            self._kafka,
            group=self._settings.application_id,
            topics=[self._kafka.topics.ledger],
            instance_id=self._settings.instance_id,
            session_ms=self._settings.session_timeout_ms,
            gather_ms=GATHER_MS,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
        )
        # Ends are asked for on a connection of their own: a broker answers a connection's requests one by one, so on
        # the consumer's they would wait for its long poll, half a second where nothing arrives, and timers with them.
        with PartitionReader(self._kafka) as asking:
            try:
                while not self._stopping.is_set():
                    self._turn(consumer, asking)
                self._revoked([keeper.place for keeper in self._keepers.values()])
            finally:
                self._drop(list(self._keepers))
                consumer.close()

    def _turn(self, consumer: GroupConsumer, asking: PartitionReader) -> None:
        batch = consumer.poll_batch(self._wait_ms(wall_ms()), self._settings.facts_max)
        self._serving.confirm()
        self._fold(batch.records)
        self._serving.fold_again()
        now_ms = wall_ms()
        self._look_at_timers(asking, now_ms)
        self._checkpoint(consumer, now_ms)
        if now_ms >= self._lag_at_ms:
            self._look_at_lag(asking, now_ms)
        self._wait_for_confirmations()
        self._report()

    def _wait_ms(self, now_ms: int) -> int:
        wait_ms = IDLE_MS
        for keeper in self._keepers.values():
            if keeper.is_waiting:
                return min(wait_ms, WAITING_MS)
            due_in_ms = keeper.due_in_ms(now_ms)
            if due_in_ms is not None:
                wait_ms = min(wait_ms, due_in_ms)
            due_at_ms = keeper.tenure.next_due_ms()
            if due_at_ms is not None:
                wait_ms = min(wait_ms, max(due_at_ms, keeper.look_again_at_ms, now_ms) - now_ms)
        return wait_ms

    def _fold(self, records: list[Record]) -> None:
        touched: dict[int, Keeper] = {}
        for record in records:
            keeper = self._keepers.get(record.partition)
            if keeper is not None and keeper.tenure.take(record):
                touched[record.partition] = keeper
                self._seen.folded += 1
        for keeper in touched.values():
            self._serving.send(keeper.tenure)

    def _look_at_timers(self, asking: PartitionReader, now_ms: int) -> None:
        due = due_of(self._keepers.values(), now_ms)
        if not due:
            return
        try:
            found = asking.observe_ends([keeper.place for keeper in due], REQUEST_MS)
        except ReadTimedOut as late:
            logger.warning("timers wait: %s", late)
            found = {}
        self._serving.look_at_timers(due, {place.partition: end for place, end in found.items()})

    def _checkpoint(self, consumer: GroupConsumer, now_ms: int) -> None:
        partitions = sum(keeper.tenure.dirty for keeper in self._keepers.values())
        for keeper in self._keepers.values():
            self._count_checkpoint(keeper, keeper.collect())
            keeper.advance(now_ms, consumer.group_metadata, partitions=partitions)
        if self._leaving:
            self._leaving = [keeper for keeper in self._leaving if not self._has_left(keeper)]

    def _has_left(self, keeper: Keeper) -> bool:
        """Return whether the commit of a partition that was dropped has ended, and count how."""
        try:
            kept = keeper.collect()
        except CheckpointRefusedError as refused:
            logger.warning("a checkpoint of a partition that was lost is refused, as it must be: %s", refused)
            self._seen.refused += 1
            return True
        self._count_checkpoint(keeper, kept)
        return kept is not None

    def _wait_for_confirmations(self) -> None:
        while self._serving.is_full:
            if self._stopping.wait(WAITING_MS / 1000):
                return
            self._serving.confirm()
            self._report()

    # --- partitions come and go -------------------------------------------------------------------------------------

    def _assigned(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        assert self._consumer is not None
        partitions = [place.partition for place in places]
        logger.info("taking over ledger partitions %s", partitions)
        began_at = time.monotonic()
        self._report(taking=tuple(partitions))
        taken = self._takeover.take(self._consumer, partitions, refold=frozenset(self._to_refold))
        checkpoint_ms = self._settings.checkpoint_ms
        for each in taken:
            self._keepers[each.tenure.partition] = keeper = Keeper(
                each, self._kafka, self._pool, checkpoint_ms=checkpoint_ms, faults=self._faults
            )
            self._serving.hold(keeper.tenure)
        self._report()
        logger.info("took over ledger partitions %s in %.1f s", partitions, time.monotonic() - began_at)
        return {keeper.place: keeper.tenure.next_offset for keeper in self._keepers.values()}

    def _revoked(self, places: list[TopicPartition]) -> None:
        """Give partitions up in order: a last checkpoint if that can be had, then nothing more."""
        keepers = [self._keepers[p.partition] for p in places if p.partition in self._keepers]
        try:
            if keepers and self._consumer is not None:
                self._serving.flush(int(LAST_CHECKPOINT_S * 1000))
                self._serving.confirm()
                for keeper in keepers:
                    if keeper.tenure.dirty:
                        kept = keeper.last(LAST_CHECKPOINT_S, self._consumer.group_metadata)
                        self._count_checkpoint(keeper, kept)
        except (CheckpointRefusedError, EmissionLostError, KafkaFault, TimeoutError) as fault:
            logger.warning("no last checkpoint of partitions %s: %s", [p.partition for p in places], fault)
        finally:
            self._drop([p.partition for p in places])

    def _lost(self, places: list[TopicPartition]) -> None:
        logger.warning("lost ledger partitions %s: another owner may have them", [p.partition for p in places])
        self._drop([p.partition for p in places])

    def _drop(self, partitions: list[int]) -> None:
        for partition in partitions:
            keeper = self._keepers.pop(partition, None)
            if keeper is not None:
                self._serving.drop(keeper.tenure)
                keeper.close()
                if keeper.is_committing:
                    self._leaving.append(keeper)
        self._report()

    # --- faults and figures -----------------------------------------------------------------------------------------

    def _count_fault(self, fault: Exception) -> None:
        """Decide whether to join again after `fault`. Raises EngineError if that would not help."""
        if isinstance(fault, CheckpointRefusedError):
            self._seen.refused += 1
        wait_ms = self._rejoining.after(fault, self._seen.kept)
        logger.warning("dropped all partitions and join again: %s", fault)
        self._report()
        self._stopping.wait(wait_ms / 1000)

    def _count_checkpoint(self, keeper: Keeper, kept: bool | None) -> None:
        if kept is not None:
            self._seen.kept += kept
            self._seen.aborted += not kept
        if kept:  # what was built anew and never kept is built anew when it is taken again
            self._to_refold.discard(keeper.tenure.partition)

    def _restored(self, records: int) -> bool:
        self._seen.restored += records
        self._report(taking=self._progress.taking)
        return not self._stopping.is_set()

    def _look_at_lag(self, asking: PartitionReader, now_ms: int) -> None:
        self._lag_at_ms = now_ms + LAG_EVERY_MS
        try:
            ends = asking.observe_ends([keeper.place for keeper in self._keepers.values()], REQUEST_MS)
        except ReadTimedOut:
            self._seen.lag, self._seen.ends = None, {}
            return
        self._seen.ends = {place.partition: end.offset for place, end in ends.items()}
        self._seen.lag = sum(waits for _, _, waits in self._waiting())

    def _waiting(self) -> list[tuple[int, int, int]]:
        return waiting_of((keeper.tenure for keeper in self._keepers.values()), self._seen.ends)

    def _report(self, taking: tuple[int, ...] = ()) -> None:
        seen = self._seen
        seen.turns += 1
        self._progress = Progress(
            turns=seen.turns,
            folded=seen.folded,
            kept=seen.kept,
            lag=seen.lag,
            waiting=tuple(self._waiting()),
            partitions=tuple(sorted(self._keepers)),
            taking=taking,
            restored=seen.restored,
            unconfirmed=self._serving.unconfirmed,
            emitted=self._serving.emitted,
            refused=seen.refused,
            aborted=seen.aborted,
            committing=tuple(
                (keeper.tenure.partition, keeper.begun)
                for keeper in (*self._keepers.values(), *self._leaving)
                if keeper.is_committing
            ),
        )


class _Counts:
    """What `Progress` is made from."""

    __slots__ = ("aborted", "ends", "folded", "kept", "lag", "refused", "restored", "turns")

    def __init__(self) -> None:
        self.turns = self.folded = self.kept = self.restored = self.refused = self.aborted = 0
        self.lag: int | None = None
        self.ends: dict[int, int] = {}  # of the ledger, as last asked for
