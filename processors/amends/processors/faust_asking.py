"""What blocks, for the Faust engine: a thread that asks the brokers, so that Faust's loop goes on."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from amends.kafka.consumer import committed_offsets
from amends.kafka.errors import KafkaFault, ReadTimedOut
from amends.kafka.groups import require_membership
from amends.kafka.reader import PartitionReader
from amends.kafka.records import EndObserved, TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.processors.engine import FoldFactory
from amends.processors.faust_changelog import Mark, Rank, Value
from amends.processors.faust_takeover import FaustTakeover, Taken, late_records
from amends.processors.restoring import reading_fast
from amends.processors.settings import ProcessorSettings
from amends.schemas.topics import FAUST

logger = logging.getLogger(__name__)

REQUEST_MS = 1_000

Answer = TypeVar("Answer")


class Asking:
    """Used in one loop. Short questions, takeovers and sweeps have a thread each: a sweep may read a whole changelog,
    and nobody is to wait for it."""

    def __init__(
        self, kafka: KafkaSettings, settings: ProcessorSettings, fold: FoldFactory, progressed: Callable[[int], bool]
    ) -> None:
        self._kafka = kafka
        self._group = settings.application_id
        self._takeover = FaustTakeover(kafka, settings.application_id, fold, progressed)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="amends-asking")
        self._takeovers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="amends-takeover")
        self._sweeps = ThreadPoolExecutor(max_workers=1, thread_name_prefix="amends-sweep")
        self._reader: PartitionReader | None = None  # of the first thread
        self._stood: Mapping[TopicPartition, int] = {}

    async def take(self, partitions: Collection[int], refold: Collection[int]) -> list[Taken]:
        """See `FaustTakeover.take`."""
        return await self._in(self._takeovers, functools.partial(self._takeover.take, partitions, refold))

    async def late_records(
        self, partition: int, since: int, rank: Rank, goes_on: Callable[[int], bool]
    ) -> tuple[list[tuple[bytes, Value, Mark]], int, Rank]:
        """See `faust_takeover.late_records`. `goes_on` is asked in another thread."""

        def read() -> tuple[list[tuple[bytes, Value, Mark]], int, Rank]:
            with PartitionReader(reading_fast(self._kafka)) as reader:
                return late_records(self._kafka, reader, partition, since, rank, goes_on)

        return await self._in(self._sweeps, read)

    async def ledger_begins(self, partition: int) -> int:
        """Return the oldest offset of the ledger's partition. Raises ReadTimedOut."""
        place = TopicPartition(self._kafka.topics.ledger, partition)
        return await self._in(self._thread, lambda: self._mine().watermarks(place)[0])

    async def ledger_ends(self, partitions: Iterable[int]) -> dict[int, EndObserved]:
        """Return where partitions of the ledger end; nothing if the broker is away: timers wait then."""
        places = [TopicPartition(self._kafka.topics.ledger, partition) for partition in partitions]
        try:
            ends = await self._in(self._thread, lambda: self._mine().observe_ends(places, REQUEST_MS))
        except ReadTimedOut as late:
            logger.warning("where the ledger ends is not known, and timers wait: %s", late)
            return {}
        return {place.partition: end for place, end in ends.items()}

    async def changelog_ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Raises ReadTimedOut."""
        topic = self._kafka.topics.changelog(FAUST)
        ends = await self._in(self._thread, lambda: self._mine().ends(topic, partitions))
        return {place.partition: end for place, end in ends.items()}

    async def idle_lag(self) -> int | None:
        """Return how many facts wait in partitions that nobody has moved since the last question, None if the broker is
        away: where a group gives nobody anything, that is a stall like any other."""
        try:
            return await self._in(self._thread, self._idle_lag)
        except KafkaFault:
            return None

    async def require_membership(self) -> None:
        """Raise AccessRefused if this client may not be a member of the group: Faust's client would wait, and say
        nothing. Brokers that are away are not asked: a connection that breaks under this question ends the process
        (librdkafka#4605, a use after free of admin clients that ask a group's coordinator)."""
        if self._kafka.embedded:
            return
        try:
            await self.ledger_begins(0)
        except KafkaFault:
            return
        await asyncio.to_thread(require_membership, self._kafka, self._group)

    def close(self) -> None:
        """Let go of threads and reader."""

        def end() -> None:
            if self._reader is not None:
                self._reader.close()

        self._thread.submit(end)
        self._thread.shutdown()
        for pool in (self._takeovers, self._sweeps):  # both look whether they are to go on
            pool.shutdown(wait=False, cancel_futures=True)

    def _idle_lag(self) -> int:
        places = [TopicPartition(self._kafka.topics.ledger, partition) for partition in range(self._kafka.partitions)]
        ends = self._mine().observe_ends(places, REQUEST_MS)
        stand = dict.fromkeys(ends, 0) | committed_offsets(self._kafka, self._group, ends, REQUEST_MS)
        stood, self._stood = self._stood, stand
        still = [place for place in stand if stood.get(place) == stand[place]]
        return sum(max(0, ends[place].offset - stand[place]) for place in still)

    def _mine(self) -> PartitionReader:
        if self._reader is None:
            self._reader = PartitionReader(self._kafka)
        return self._reader

    async def _in(self, pool: ThreadPoolExecutor, question: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(pool, question)
