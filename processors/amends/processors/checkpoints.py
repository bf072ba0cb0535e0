"""Checkpoints of one partition on Kafka: cut by the loop, committed by a thread, while folding goes on.

A transaction takes 4 ms alone and 15 under load, and eight partitions have eight, since each has a transactional id of
its own. In the loop that would be a third of its time, so `commit` runs in a pool; the loop only cuts and collects.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from amends.kafka.errors import CheckpointAborted, CheckpointFenced
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.processors.emission import Emission
from amends.processors.engine import AFTER_CHECKPOINT, BEFORE_CHECKPOINT, CheckpointRefusedError, Faults
from amends.processors.takeover import Taken
from amends.processors.tenure import Cut

logger = logging.getLogger(__name__)

SHARE = 20
"""Commits may take so small a part of the time, all partitions' together: one costs the broker the same whatever it
holds."""
PUT_OFF_MAX_MS = 1_000
"""For that a checkpoint is cut so late at most: who takes over folds what it would have held."""


def pace_ms(checkpoint_ms: int, took_ms: int, partitions: int = 1) -> int:
    """Return how long after its first fact a checkpoint is cut, where the last commit took `took_ms` and so many
    partitions of this process have facts to keep."""
    return max(checkpoint_ms, min(SHARE * took_ms * partitions, PUT_OFF_MAX_MS))


class Keeper:
    """Keeps the checkpoints of a partition that was taken over. Used by the loop's thread alone.

    Args:
        checkpoint_ms: from the first fact a checkpoint holds until it is cut; longer where commits take long.
    """

    def __init__(
        self, taken: Taken, kafka: KafkaSettings, pool: ThreadPoolExecutor, *, checkpoint_ms: int, faults: Faults
    ) -> None:
        self.tenure = taken.tenure
        self.place = TopicPartition(kafka.topics.ledger, taken.tenure.partition)
        self.look_again_at_ms = 0
        """When timers and repeats may be looked at again."""
        self.begun = 0
        """Commits that were begun."""
        self._checkpointer = taken.checkpointer
        self._changelog = kafka.topics.changelog()
        self._pool = pool
        self._checkpoint_ms = checkpoint_ms
        self._took_ms = 0
        self._faults = faults
        self._due_at_ms: int | None = None
        self._cut: Cut | None = None
        self._commit: Future[None] | None = None

    def advance(self, now_ms: int, group_metadata: Callable[[], object], *, partitions: int) -> None:
        """Cut a checkpoint when it is time, and begin to commit it once all it covers is confirmed. Never blocks.

        `partitions`: how many of this process have facts to keep.
        """
        if self._commit is not None:
            return
        if self._cut is None:
            if not self._is_time(now_ms, partitions):
                return
            self._cut = self.tenure.cut()
            self._due_at_ms = None
        if self.tenure.may_keep(self._cut):
            self._begin(self._cut, group_metadata)

    def collect(self) -> bool | None:
        """Take the end of a commit: True if kept, False if aborted (it joins the next), None if there is none.

        Raises:
            CheckpointRefusedError: the partition has another owner. Drop it, write nothing more.
        """
        if self._commit is None or not self._commit.done():
            return None
        commit, cut = self._commit, self._cut
        self._commit = self._cut = None
        assert cut is not None
        try:
            commit.result()
        except CheckpointAborted as aborted:
            logger.warning("checkpoint of ledger partition %d: %s; it joins the next", self.place.partition, aborted)
            self.tenure.not_kept(cut)
            return False
        except CheckpointFenced as fenced:
            raise CheckpointRefusedError(str(fenced)) from fenced
        self.tenure.kept(cut)
        return True

    @property
    def is_waiting(self) -> bool:
        """A checkpoint is on its way."""
        return self._cut is not None

    @property
    def is_committing(self) -> bool:
        return self._commit is not None

    def due_in_ms(self, now_ms: int) -> int | None:
        """Return how long until the next checkpoint is cut, None if nothing was folded."""
        return None if self._due_at_ms is None else max(0, self._due_at_ms - now_ms)

    def last(self, deadline_s: float, group_metadata: Callable[[], object]) -> bool:
        """Commit all that was folded, blocking; return whether a new owner will find it.

        Raises:
            CheckpointRefusedError: there is another owner.
        """
        if self._commit is not None:
            self._commit.exception(deadline_s)
            self.collect()
        self._cut = self._cut or (self.tenure.cut() if self.tenure.dirty else None)
        if self._cut is not None and self.tenure.may_keep(self._cut):
            self._begin(self._cut, group_metadata).exception(deadline_s)
            self.collect()
        return not self.tenure.dirty

    def close(self) -> None:
        """Let go of the partition in the background, once what is being committed has ended."""
        if self._commit is None:
            self._pool.submit(self._checkpointer.close)
        else:
            self._commit.add_done_callback(lambda _: self._checkpointer.close())

    def _is_time(self, now_ms: int, partitions: int) -> bool:
        if self._due_at_ms is None and self.tenure.dirty:
            self._due_at_ms = now_ms + pace_ms(self._checkpoint_ms, self._took_ms, partitions)
        return self._due_at_ms is not None and self._due_at_ms <= now_ms

    def _begin(self, cut: Cut, group_metadata: Callable[[], object]) -> Future[None]:
        self.begun += 1
        self._commit = self._pool.submit(self._committed, cut, group_metadata())
        return self._commit

    def _committed(self, cut: Cut, group_metadata: object) -> None:
        records = [Emission(self._changelog, key, value, self.place.partition) for key, value in cut.changes.items()]
        self._faults(BEFORE_CHECKPOINT)
        began_at = time.monotonic()
        self._checkpointer.commit(records, {self.place: cut.next_offset}, group_metadata)
        self._took_ms = int((time.monotonic() - began_at) * 1000)
        self._faults(AFTER_CHECKPOINT)
