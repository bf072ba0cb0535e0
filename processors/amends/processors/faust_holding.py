"""The partitions of a process under Faust: taken over after a rebalance, held, and given up before the next one.

A rebalance takes all and gives anew. What was being taken over or written when the group went on is broken off: nothing
of a partition that was given up is sealed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from amends.kafka.errors import KafkaFault
from amends.processors.engine import Faults
from amends.processors.faust_changelog import Rank
from amends.processors.faust_keeper import FaustKeeper, Write
from amends.processors.faust_rewinds import Rewinds
from amends.processors.faust_sweeps import Sweeps
from amends.processors.faust_takeover import Taken
from amends.processors.faust_wakefulness import Wakefulness
from amends.processors.restoring import InterruptedTakeoverError
from amends.processors.serving import Serving, wall_ms

Read = Callable[[frozenset[int], frozenset[int]], Awaitable[Sequence[Taken]]]

logger = logging.getLogger(__name__)

TAKE_AGAIN_S = 1.0
LAST_CHECKPOINT_S = 5.0
LOOK_S = 0.003
"""Between two looks whether all is confirmed that a last checkpoint covers."""


class Holding:
    """Used in Faust's loop.

    Args:
        read: reads the state of partitions, of the second ones to leave it behind. Raises as `FaustTakeover.take`.
        refold: partitions of which the state is to be left behind and built anew, once for each.
        write: hands a record of the changelog to Faust's client.
    """

    def __init__(
        self,
        read: Read,
        serving: Serving,
        sweeps: Sweeps,
        rewinds: Rewinds,
        wakefulness: Wakefulness,
        *,
        refold: set[int],
        checkpoint_ms: int,
        write: Write,
        faults: Faults,
    ) -> None:
        self._read = read
        self._serving = serving
        self._sweeps = sweeps
        self._rewinds = rewinds
        self._wakefulness = wakefulness
        self._to_refold = refold
        self._checkpoint_ms = checkpoint_ms
        self._write = write
        self._faults = faults
        self._keepers: dict[int, FaustKeeper] = {}
        self._assignment = 0  # counts what the group took away
        self._kept_before = 0
        self.taking: tuple[int, ...] = ()
        """Partitions that are being taken over."""
        self.refused = 0
        """Checkpoints that another owner made worthless."""

    def __iter__(self) -> Iterator[FaustKeeper]:
        return iter(tuple(self._keepers.values()))

    def keeper(self, partition: int) -> FaustKeeper | None:
        """Return the keeper of a partition that is held."""
        return self._keepers.get(partition)

    @property
    def kept(self) -> int:
        """Checkpoints kept since the start."""
        return self._kept_before + sum(keeper.kept for keeper in self._keepers.values())

    # --- they come ----------------------------------------------------------------------------------------------------

    async def take(self, partitions: frozenset[int], goes_on: Callable[[], bool]) -> None:
        """Become the owner of exactly these partitions, unless they are taken away meanwhile or the process ends.

        Raises EngineError: it can't be, and a person must mend it.
        """
        self._wakefulness.is_member()
        number, began_at = self._assignment, time.monotonic()
        self.taking = tuple(sorted(partitions))
        logger.info("taking over ledger partitions %s", list(self.taking))

        def is_wanted() -> bool:
            return goes_on() and number == self._assignment

        taken = await self._taken(partitions, is_wanted)
        await self._wakefulness.awake()  # who slept while it read may have been replaced
        if taken is None or not is_wanted():
            return
        self.taking = ()
        for each in taken:
            self.hold(each)
        logger.info("took over ledger partitions %s in %.1f s", sorted(partitions), time.monotonic() - began_at)

    async def _taken(self, partitions: frozenset[int], is_wanted: Callable[[], bool]) -> Sequence[Taken] | None:
        while is_wanted():
            try:
                return await self._read(partitions, frozenset(self._to_refold))
            except InterruptedTakeoverError:
                return None
            except KafkaFault as fault:
                logger.warning("taking over ledger partitions %s again: %s", sorted(partitions), fault)
                await asyncio.sleep(TAKE_AGAIN_S)
        return None

    def hold(self, taken: Taken) -> None:
        """Fold a partition from now on."""
        tenure = taken.tenure
        self._keepers[tenure.partition] = keeper = FaustKeeper(
            taken,
            writer=secrets.randbits(62),
            checkpoint_ms=self._checkpoint_ms,
            write=self._write,
            awake=self._wakefulness.awake,
            faults=self._faults,
        )
        self._sweeps.hold(keeper, taken.end, Rank(taken.era, tenure.next_offset - 1), wall_ms())
        self._rewinds.hold(keeper, is_passed=taken.is_passed)
        self._serving.hold(tenure)

    # --- they go ------------------------------------------------------------------------------------------------------

    async def give_up(self, *, keep: bool) -> None:
        """Give everything up, after a last checkpoint if that is to be had.

        Args:
            keep: whether a last checkpoint may be tried.

        Raises whatever kept it from one; everything is given up all the same.
        """
        self._assignment += 1
        self.taking = ()
        try:
            if keep and not self._wakefulness.look():
                await asyncio.wait_for(self._last_checkpoints(), LAST_CHECKPOINT_S)
        finally:
            self._drop()

    async def _last_checkpoints(self) -> None:
        while self._serving.unconfirmed:
            self._serving.confirm()
            await asyncio.sleep(LOOK_S)
        await asyncio.gather(*(keeper.last() for keeper in self))

    def _drop(self) -> None:
        silent = self._wakefulness.look()
        for keeper in self:
            if keeper.is_committing and silent:
                self.refused += 1
            keeper.drop()
            self._serving.drop(keeper.tenure)
            self._kept_before += keeper.kept
        # What was built anew and never kept is built anew by whoever takes it, this process too.
        self._to_refold -= {partition for partition, keeper in self._keepers.items() if keeper.kept}
        self._keepers = {}
        self._sweeps.drop()
        self._rewinds.drop()
