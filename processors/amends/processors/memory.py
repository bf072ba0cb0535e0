"""A broker and an engine in memory: the same promises, one step at a time, every fault on demand.

Nothing here has a thread, a clock or chance of its own. A test or the simulation decides what happens next: fold one
fact, send one emission, cut, keep, crash, take a partition from an owner that goes on as a zombie.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from amends.processors.emission import Emission
from amends.processors.engine import (
    AFTER_CHECKPOINT,
    BEFORE_CHECKPOINT,
    CheckpointRefusedError,
    Faults,
    FoldFactory,
    LedgerHoleError,
    no_faults,
)
from amends.processors.memory_broker import MemoryBroker, StoredRecord
from amends.processors.tenure import Cut, Tenure, hole_in_words
from amends.schemas.topics import Topics

__all__ = ["MemoryBroker", "MemoryEngine", "StoredRecord"]


@dataclass(slots=True)
class _Held:
    tenure: Tenure
    epoch: int
    outbox: deque[tuple[int, Emission]] = field(default_factory=deque[tuple[int, Emission]])


class MemoryEngine:
    """An engine on a `MemoryBroker`, driven step by step. Several on one broker are several processes.

    A partition that another engine takes stays in this one's hands until `lose` or a refused checkpoint: until then it
    is a zombie that folds and emits.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        topics: Topics,
        fold: FoldFactory,
        now_ms: Callable[[], int],
        *,
        group: str = "amends",
        faults: Faults = no_faults,
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._make_fold = fold
        self._now_ms = now_ms
        self._group = group
        self._faults = faults
        self._held: dict[int, _Held] = {}
        self.refused = 0
        """Checkpoints that were refused, because a partition had a later owner."""

    @property
    def partitions(self) -> list[int]:
        """The partitions this engine takes for its own."""
        return sorted(self._held)

    def holds(self, partition: int) -> bool:
        """Whether this engine takes the partition for its own."""
        return partition in self._held

    def tenure(self, partition: int) -> Tenure:
        return self._held[partition].tenure

    # --- ownership --------------------------------------------------------------------------------------------------

    def take(self, partition: int) -> None:
        """Become the owner: end the one before, read the offset, restore the state.

        Raises:
            LedgerHoleError: the ledger no longer holds the facts after the last checkpoint.
        """
        epoch = self._broker.initialise(self._transactional_id(partition))
        start = self._broker.start(self._topics.ledger, partition)
        committed = self._broker.committed(self._group, self._topics.ledger, partition)
        next_offset = start if committed is None else committed
        if start > next_offset:
            raise LedgerHoleError(hole_in_words(partition, next_offset, start))
        fold = self._make_fold(partition)
        for record in self._broker.read(self._topics.changelog(), partition):
            assert record.key is not None
            fold.restore(record.key, record.value)
        for record in self._broker.read(self._topics.ledger, partition, start) if committed is None and start else ():
            fold.recall(record)
        fold.restored(next_offset - 1)
        held = _Held(Tenure(partition, fold, next_offset), epoch)
        self._held[partition] = held
        self._collect(held, timers=False)

    def lose(self, partition: int) -> None:
        """Drop the partition at once; nothing is written."""
        self._held.pop(partition, None)

    def release(self, partition: int) -> None:
        """Give the partition up cleanly: a last checkpoint, then drop it."""
        held = self._held[partition]
        self._send_all(held)
        self.checkpoint(partition)
        self.lose(partition)

    def crash(self) -> None:
        """Lose everything that is not on the broker, as kill -9 does."""
        self._held.clear()

    # --- single steps -----------------------------------------------------------------------------------------------

    def fold_next(self, partition: int) -> bool:
        """Fold the next fact, put what it emits into the outbox, and return whether there was one.

        Raises:
            LedgerHoleError: the ledger no longer holds it.
        """
        held = self._held[partition]
        next_offset, start = held.tenure.next_offset, self._broker.start(self._topics.ledger, partition)
        if next_offset < start:
            raise LedgerHoleError(hole_in_words(partition, next_offset, start))
        found = self._broker.read(self._topics.ledger, partition, next_offset, 1)
        if not found:
            held.tenure.saw_time(self._now_ms())
            return False
        held.tenure.take(found[0])
        self._collect(held, timers=False)
        return True

    def tick(self, partition: int) -> int:
        """Read what the fold wants read again; let due timers and repeats into the outbox, and return how many."""
        held = self._held[partition]
        before = len(held.outbox)
        while self.refold_next(partition):
            pass
        self._collect(held, timers=True)
        return len(held.outbox) - before

    def refold_next(self, partition: int) -> bool:
        """Read the next stretch of the ledger that the fold wants for workflows it had forgotten, and return whether
        there was one."""
        held = self._held[partition]
        stretch = held.tenure.refolding()
        if stretch is None:
            return False
        if stretch.from_ms is not None:
            stretch.located(self._broker.offset_at(self._topics.ledger, partition, stretch.from_ms))
        stretch.begins_at(self._broker.start(self._topics.ledger, partition))
        wanted = stretch.to_offset + 1 - stretch.from_offset
        if wanted > 0:
            for record in self._broker.read(self._topics.ledger, partition, stretch.from_offset, wanted):
                stretch.take(record)
        held.tenure.refolded(stretch)
        self._collect(held, timers=False)
        return True

    def send_next(self, partition: int) -> StoredRecord | None:
        """Send the oldest emission of the outbox, confirmed; return it as stored."""
        held = self._held[partition]
        if not held.outbox:
            return None
        number, emission = held.outbox.popleft()
        stored = self._broker.append(
            emission.topic,
            key=emission.key,
            value=emission.value,
            partition=emission.partition,
            headers=emission.headers,
        )
        held.tenure.confirm(number)
        return stored

    def checkpoint(self, partition: int) -> bool:
        """Make state and offset durable; return whether they are. Emissions that are not sent yet, or a later owner,
        prevent it; in the second case the partition is dropped."""
        held = self._held[partition]
        tenure = held.tenure
        if not tenure.dirty:
            return True
        cut = tenure.cut()
        if not tenure.may_keep(cut):
            return False
        self._faults(BEFORE_CHECKPOINT)
        try:
            self._commit(partition, held.epoch, cut)
        except CheckpointRefusedError:
            self.refused += 1
            self.lose(partition)
            return False
        self._faults(AFTER_CHECKPOINT)
        tenure.kept(cut)
        return True

    # --- many steps -------------------------------------------------------------------------------------------------

    def step(self, partition: int, *, facts_max: int = 1_000) -> int:
        """Fold what has arrived, send, look at timers, checkpoint; return how many facts and emissions there were."""
        done = 0
        while done < facts_max and self.fold_next(partition):
            done += 1
        self.tick(partition)
        done += self._send_all(self._held[partition])
        self.checkpoint(partition)
        return done

    def settle(self, *, rounds_max: int = 1_000) -> int:
        """Step all partitions until a round changes nothing; return how many rounds that took."""
        for rounds in range(rounds_max):
            if not sum(self.step(partition) for partition in self.partitions):
                return rounds
        raise AssertionError(f"still busy after {rounds_max} rounds: does the fold answer its own records for ever?")

    def _collect(self, held: _Held, *, timers: bool) -> None:
        held.outbox.extend(held.tenure.emissions(self._now_ms(), timers=timers))

    def _send_all(self, held: _Held) -> int:
        sent = 0
        while self.send_next(held.tenure.partition) is not None:
            sent += 1
        return sent

    def _commit(self, partition: int, epoch: int, cut: Cut) -> None:
        changelog = self._topics.changelog()
        records = [Emission(changelog, key, value, partition) for key, value in cut.changes.items()]
        offsets = {(self._topics.ledger, partition): cut.next_offset}
        self._broker.commit(self._transactional_id(partition), epoch, records, self._group, offsets)

    def _transactional_id(self, partition: int) -> str:
        return f"{self._group}-{partition}"
