"""Sweeps: looking on the changelog for records of processes that were replaced, long before compaction could keep them.

The first comes soon after a takeover, when who was replaced may still write; then three to a compaction lag.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from amends.kafka.errors import KafkaFault
from amends.processors.faust_changelog import Mark, Rank, Value
from amends.processors.faust_keeper import FaustKeeper
from amends.processors.restoring import InterruptedTakeoverError

LateRecords = Callable[
    [int, int, Rank, Callable[[int], bool]], Awaitable[tuple[list[tuple[bytes, Value, Mark]], int, Rank]]
]
"""See `faust_takeover.late_records`; it breaks off when the last argument says so."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Next:
    keeper: FaustKeeper
    at_ms: int
    since: int  # offset of the changelog
    rank: Rank  # the highest mark before it


class Sweeps:
    """When each partition is swept next. Used in one loop."""

    def __init__(self, late_records: LateRecords, *, first_ms: int, every_ms: int) -> None:
        self._late_records = late_records
        self._first_ms = min(first_ms, every_ms)
        self._every_ms = every_ms
        self._next: dict[int, _Next] = {}

    def hold(self, keeper: FaustKeeper, end: int, rank: Rank, now_ms: int) -> None:
        """A partition was taken over: its changelog was read to `end`, and its state is of `rank`."""
        self._next[keeper.partition] = _Next(keeper, now_ms + self._first_ms, end, rank)

    def drop(self) -> None:
        """All partitions are given up."""
        self._next.clear()

    def due(self, now_ms: int) -> list[FaustKeeper]:
        """Return whose time has come; each is to be swept then."""
        due = [each for each in self._next.values() if each.at_ms <= now_ms]
        for each in due:
            each.at_ms = now_ms + self._every_ms
        return [each.keeper for each in due]

    async def sweep(self, keeper: FaustKeeper, now_ms: int) -> None:
        """Have written again what a record that does not count stands behind. Raises StateUnreadableError."""
        held = self._next.get(keeper.partition)
        if held is None:
            return
        try:
            again, end, rank = await self._late_records(
                keeper.partition, held.since, held.rank, lambda _: not keeper.is_dropped
            )
        except InterruptedTakeoverError:
            return
        except KafkaFault as fault:
            logger.warning("changelog partition %d is swept later: %s", keeper.partition, fault)
            held.at_ms = now_ms + self._first_ms
            return
        if keeper.is_dropped:
            return
        if again:
            logger.warning(
                "changelog partition %d: %d records stand last and do not count; those that do are written again",
                keeper.partition,
                len(again),
            )
            keeper.write_again(again)
        # What was written again is looked at once more: a checkpoint may have come between reading and writing.
        held.at_ms = now_ms + (self._first_ms if again else self._every_ms)
        held.since, held.rank = end, rank
