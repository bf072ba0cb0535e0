"""Going back in the ledger under Faust, which loses facts when it rebalances, and begins where the group stands.

Of the batch at hand Faust hands over the rest, and takes what it handed over for where it is: what is read again then
counts as old, and is thrown away. So a partition is paused until that batch is through. Whatever was buffered on the
way to the agent comes after that all the same; if what must come next still does not, it is asked for once more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from faust.types import TP, ConsumerT

from amends.kafka.errors import KafkaFault
from amends.processors.engine import LedgerHoleError
from amends.processors.faust_keeper import FaustKeeper
from amends.processors.tenure import hole_in_words

THROUGH_S = 0.05
"""Within this a batch that was fetched is through: nothing of a paused partition is handed over any more."""
AGAIN_S = 1.0
REWINDS_MAX = 20
"""For one fact: so often is it asked for, if the ledger is to hold it."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Rewind:
    """Of a partition. `wanted`: for which offset it went back, -1 for none. `is_due`: without a fact that says so."""

    is_due: bool
    wanted: int = -1
    count: int = 0
    again_at_s: float = 0.0


class Rewinds:
    """Used in one loop.

    Args:
        ledger: the topic.
        begins: tells the oldest offset of a partition of the ledger. Raises KafkaFault.
        consumer: Faust's; there once the first partition is held.
    """

    def __init__(
        self,
        ledger: str,
        begins: Callable[[int], Awaitable[int]],
        consumer: Callable[[], ConsumerT],
        *,
        again_s: float = AGAIN_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._begins = begins
        self._consumer = consumer
        self._again_s = again_s
        self._now_s = monotonic_s
        self._rewinds: dict[FaustKeeper, _Rewind] = {}

    def hold(self, keeper: FaustKeeper, *, is_passed: bool) -> None:
        """A partition was taken over. `is_passed`: the group stands behind what must come next (a state built anew), so
        no fact may ever come to say so."""
        self._rewinds[keeper] = _Rewind(is_due=is_passed)

    def drop(self) -> None:
        """All partitions are given up."""
        self._rewinds.clear()

    async def comes_in_order(self, keeper: FaustKeeper, offset: int) -> bool:
        """Return whether no fact is missing before `offset`; else have what must come next read again: what came
        instead comes again after it.

        Raises LedgerHoleError: the ledger does not hold it, or does not bring it.
        """
        wanted = keeper.tenure.next_offset
        if offset > wanted:
            await self.go_back(keeper, offset)
            return False
        if offset == wanted and keeper in self._rewinds:
            self._rewinds[keeper].again_at_s = 0.0
        return True

    def due(self) -> list[FaustKeeper]:
        """Return whose partitions are to go back now, though no fact said so; each once."""
        now_s = self._now_s()
        due = [keeper for keeper, each in self._rewinds.items() if each.is_due and each.again_at_s <= now_s]
        for keeper in due:
            self._rewinds[keeper].is_due = False
        return due

    async def go_back(self, keeper: FaustKeeper, found: int) -> None:
        """Have the partition read from what must come next, unless it is being read from there already.

        Raises LedgerHoleError.
        """
        rewind, partition, wanted = self._rewinds.get(keeper), keeper.partition, keeper.tenure.next_offset
        if rewind is None or self._now_s() < rewind.again_at_s:
            return
        rewind.again_at_s = self._now_s() + self._again_s
        try:
            begins = await self._begins(partition)
        except KafkaFault as fault:
            logger.warning("ledger partition %d: %d came and %d must: %s", partition, found, wanted, fault)
            rewind.again_at_s = self._now_s() + self._again_s
            rewind.is_due = True  # whether or not another fact comes
            return
        rewind.count = rewind.count + 1 if rewind.wanted == wanted else 1
        rewind.wanted = wanted
        if begins > wanted or rewind.count > REWINDS_MAX:
            raise LedgerHoleError(hole_in_words(partition, wanted, max(begins, found)))
        logger.warning("ledger partition %d: %d came and %d must; reading from there", partition, found, wanted)
        if not keeper.is_dropped:
            await self._seek(keeper, TP(self._ledger, partition), wanted)

    async def _seek(self, keeper: FaustKeeper, place: TP, wanted: int) -> None:
        consumer = self._consumer()
        consumer.pause_partitions({place})
        try:
            await asyncio.sleep(THROUGH_S)
            if not keeper.is_dropped:
                await consumer.seek_wait({place: wanted})
        finally:
            if not keeper.is_dropped:
                consumer.resume_partitions({place})
