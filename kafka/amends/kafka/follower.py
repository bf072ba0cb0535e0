"""Following a ledger: what was said of a key between two offsets, mostly from memory.

One thread reads the followed partitions at their tail into an index by key of the last minutes (measured: a read back
there takes 0.3 ms at p90; a seek 2 to 500). What is older than the index is read by a second consumer in a second
thread, which reads the whole range.

Where nobody waits the thread rests for a while between two looks, and the client keeps what comes: on a quiet ledger
each record would wake it otherwise, and most of them are never asked for. A read wakes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial

from amends.kafka.errors import KafkaFault, ReadTimedOut, RecordGone
from amends.kafka.following import Mailbox, PartitionIndex, Told, Waiter
from amends.kafka.owned import GATHER_MS, TAIL
from amends.kafka.reader import PartitionConsumer, PartitionReader
from amends.kafka.records import Record, TopicPartition
from amends.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)

POLL_MS = 50
REST_MS = 25
"""How long it rests where nobody waits. Then several records cost one look."""
LOOK_AGAIN_MS = 100
"""Between two looks at what is to be forgotten, and at reads that are late."""
RETRY_MS = 1_000
REPLACE_AFTER_MS = 10_000
"""A consumer that finds no partition for so long is replaced. After all brokers had been killed at once, one of
librdkafka 2.16 said "Unknown partition" of a topic for good, where others found it (chaos, seed 20261203)."""


class LedgerFollower:
    """Reads a topic by key and offset. Usable from any threads and loops; close it when done.

    Args:
        keep_ms: how long a record stays in the index after it was read.
        bytes_max: how much the index holds; the oldest go first.
    """

    def __init__(
        self, settings: KafkaSettings, topic: str, *, keep_ms: int = 120_000, bytes_max: int = 256 * 1024 * 1024
    ) -> None:
        self.topic = topic
        self.looks = 0
        """How often the thread looked for new records."""
        self.sought = 0
        """How many reads the second consumer had to make."""
        self._settings = settings
        self._keep_ms = keep_ms
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._indexes: dict[int, PartitionIndex] = {}
        self._mailboxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}
        self._moves: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._older: queue.SimpleQueue[_Range | None] = queue.SimpleQueue()
        self._stopping = False
        self._wanted = threading.Event()
        self._look_again_at_ms = 0
        self._unfound_since: float | None = None
        self._failure: KafkaFault | None = None
        self._threads = [
            threading.Thread(target=self._follow, name="amends-follower", daemon=True),
            threading.Thread(target=self._read_older, name="amends-follower-older", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def follow(self, partition: int) -> None:
        """Follow a partition from its tail on. Returns at once; reads wait until it is followed. Twice is harmless."""
        with self._lock:
            if partition not in self._indexes:
                self._indexes[partition] = PartitionIndex()
                self._moves.put(("add", partition))
                self._wanted.set()

    def unfollow(self, partition: int) -> None:
        """Follow it no longer and forget its index. Reads that wait for it fail with ReadTimedOut."""
        with self._lock:
            index = self._indexes.pop(partition, None)
            if index is None:
                return
            self._moves.put(("remove", partition))
            waiters = index.take_waiters()
        for waiter in waiters:
            waiter.tell(ReadTimedOut(f"{self.topic}[{partition}] is followed no longer"))

    async def read(
        self, partition: int, key: bytes, from_offset: int, to_offset: int, *, deadline_ms: int = 10_000
    ) -> list[Record]:
        """Return all records of `key` at offsets from `from_offset` to `to_offset`, both included, in order; wait until
        everything up to `to_offset` was read. The partition must be followed.

        Raises:
            ReadTimedOut: not read that far before the deadline.
            RecordGone: the topic no longer holds `from_offset`.
        """
        if (held := self._at_hand(partition, key, from_offset, to_offset)) is not None:
            return held
        loop = asyncio.get_running_loop()
        mailbox = self._mailboxes.get(loop) or self._new_mailbox(loop)
        future: asyncio.Future[list[Record]] = loop.create_future()
        self._begin_read(
            partition, Waiter(key, from_offset, to_offset, _after(deadline_ms), partial(mailbox.put, future))
        )
        return await future

    def read_sync(
        self, partition: int, key: bytes, from_offset: int, to_offset: int, *, deadline_ms: int = 10_000
    ) -> list[Record]:
        """As `read`, for threads."""
        future: Future[list[Record]] = Future()
        waiter = Waiter(key, from_offset, to_offset, _after(deadline_ms), lambda told: _settle(future, lambda: told))
        self._begin_read(partition, waiter)
        return future.result()

    async def fetch(self, partition: int, offset: int, *, deadline_ms: int = 10_000) -> Record:
        """Return the record that stands at `offset`; the partition need not be followed.

        Raises:
            ReadTimedOut: not read before the deadline.
            RecordGone: nothing stands there, or no longer.
        """
        record, is_to_come = self._held_at(partition, offset)
        if is_to_come:
            await self.read(partition, b"", offset, offset, deadline_ms=deadline_ms)
            record, _ = self._held_at(partition, offset)
        if record is not None:
            return record
        wanted = _Range(partition, None, offset, offset, _after(deadline_ms))
        self._older.put(wanted)
        records = await asyncio.wrap_future(wanted.future)
        if not records:
            raise RecordGone(f"nothing stands at {self.topic}[{partition}]@{offset}")
        return records[0]

    def followed_to(self, partition: int) -> int | None:
        """Return the next offset the follower will read; None while the partition is not followed yet."""
        with self._lock:
            index = self._indexes.get(partition)
            return None if index is None or not index.placed else index.next_offset

    @property
    def failure(self) -> KafkaFault | None:
        """What ended the follower, if anything did. Every read fails from then on: the process must not go on."""
        return self._failure

    def close(self) -> None:
        """End both threads; reads that wait fail. Twice is harmless."""
        self._stopping = True
        self._wanted.set()
        self._older.put(None)
        for thread in self._threads:
            thread.join()
        for partition in list(self._indexes):
            self.unfollow(partition)

    def __enter__(self) -> LedgerFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _at_hand(self, partition: int, key: bytes, from_offset: int, to_offset: int) -> list[Record] | None:
        with self._lock:
            index = self._indexes.get(partition)
            if (
                index is None
                or not index.reached(to_offset)
                or from_offset < index.begins_at
                or self._failure is not None
            ):
                return None
            return index.select(key, from_offset, to_offset)

    def _held_at(self, partition: int, offset: int) -> tuple[Record | None, bool]:
        """Return the record that is held of `offset`, and whether the follower has yet to come there."""
        with self._lock:
            index = self._indexes.get(partition)
            if index is None or not index.placed:
                return None, False
            return index.at(offset), not index.reached(offset)

    def _new_mailbox(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        with self._lock:
            for closed in [known for known, mailbox in self._mailboxes.items() if mailbox.closed]:
                del self._mailboxes[closed]
            return self._mailboxes.setdefault(loop, Mailbox(loop))

    def _begin_read(self, partition: int, waiter: Waiter) -> None:
        if self._failure is not None or self._stopping:
            waiter.tell(self._failure or ReadTimedOut("the follower is closed"))
            return
        with self._lock:
            index = self._indexes.get(partition)
            if index is not None and not index.reached(waiter.to_offset):
                index.wait(waiter)
                self._wanted.set()
                return
        if index is None:
            waiter.tell(ReadTimedOut(f"{self.topic}[{partition}] is not followed"))
        else:
            self._answer(partition, index, waiter)

    def _answer(self, partition: int, index: PartitionIndex, waiter: Waiter) -> None:
        """Answer a waiter whose last offset was reached."""
        with self._lock:
            held, begins_at = index.select(waiter.key, waiter.from_offset, waiter.to_offset), index.begins_at
        if waiter.from_offset >= begins_at:
            waiter.tell(held)
            return
        last = min(waiter.to_offset, begins_at - 1)
        older = _Range(partition, waiter.key, waiter.from_offset, last, waiter.give_up_at)
        older.future.add_done_callback(lambda done: waiter.tell_after(done, held))
        self._older.put(older)

    def _follow(self) -> None:
        try:
            while not self._stopping:
                with PartitionConsumer(self._settings, says_ends=False, gather_ms=GATHER_MS) as consumer:
                    self._follow_with(consumer)
        except KafkaFault as error:
            self._fail(error)
        except Exception as error:
            logger.exception("a bug in the follower")
            self._fail(KafkaFault(f"a bug in the follower: {error}"))

    def _follow_with(self, consumer: PartitionConsumer) -> None:
        """Read until the end, or until another consumer is to try."""
        with self._lock:
            placed = {number: index.next_offset for number, index in self._indexes.items() if index.placed}
        if placed:
            consumer.add({TopicPartition(self.topic, number): offset for number, offset in placed.items()})
        rested = False
        while not self._stopping and not self._is_blind():
            self._move(consumer)
            records = consumer.poll_batch(POLL_MS).records
            self.looks += 1
            if rested:
                consumer.hurry()  # that many came at once is no sign of load
            self._index(records)
            self._time_out()
            rested = self._rest()

    def _is_blind(self) -> bool:
        since = self._unfound_since
        if since is None or time.monotonic() - since < REPLACE_AFTER_MS / 1000:
            return False
        self._unfound_since = None
        return True

    def _rest(self) -> bool:
        """Rest if nobody waits, until somebody does or `REST_MS` are over; return whether it did."""
        self._wanted.clear()
        with self._lock:
            somebody_waits = any(index.awaited for index in self._indexes.values())
        if somebody_waits or self._stopping or not self._moves.empty():
            return False
        self._wanted.wait(REST_MS / 1000)
        return True

    def _move(self, consumer: PartitionConsumer) -> None:
        while not self._moves.empty():
            move, partition = self._moves.get()
            place = TopicPartition(self.topic, partition)
            consumer.remove([place])
            if move == "remove":
                continue
            try:
                start = consumer.add({place: TAIL}, RETRY_MS)[place]
            except ReadTimedOut as error:
                logger.warning("following %s[%d] is tried again: %s", self.topic, partition, error)
                self._moves.put((move, partition))
                self._unfound_since = self._unfound_since or time.monotonic()
                return
            self._unfound_since = None
            self._place(partition, start)

    def _place(self, partition: int, start: int) -> None:
        with self._lock:
            index = self._indexes.get(partition)
            if index is None:
                return  # unfollowed meanwhile: its removal is the next move
            index.place(start)
            ready = index.take_reached()
        self._answer_all(partition, index, ready)

    def _index(self, records: list[Record]) -> None:
        now_ms = int(time.monotonic() * 1000)
        touched: dict[int, PartitionIndex] = {}
        ready: list[tuple[int, PartitionIndex, list[Waiter]]] = []
        with self._lock:
            for record in records:
                index = self._indexes.get(record.partition)
                if index is not None and index.placed:
                    index.add(record, now_ms)
                    touched[record.partition] = index
            bytes_max = self._bytes_max // max(1, len(self._indexes))
            late = now_ms >= self._look_again_at_ms
            for index in (self._indexes if late else touched).values():
                index.forget(now_ms - self._keep_ms, bytes_max)
            for partition, index in touched.items():
                ready.append((partition, index, index.take_reached()))
        for partition, index, waiters in ready:
            self._answer_all(partition, index, waiters)

    def _answer_all(self, partition: int, index: PartitionIndex, waiters: list[Waiter]) -> None:
        for waiter in waiters:
            self._answer(partition, index, waiter)

    def _time_out(self) -> None:
        now = time.monotonic()
        if now * 1000 < self._look_again_at_ms:
            return
        self._look_again_at_ms = int(now * 1000) + LOOK_AGAIN_MS
        with self._lock:
            late = [(p, w) for p, index in self._indexes.items() for w in index.take_late(now)]
        for partition, waiter in late:
            waiter.tell(ReadTimedOut(f"{self.topic}[{partition}] was not read up to {waiter.to_offset} in time"))

    def _read_older(self) -> None:
        with PartitionReader(self._settings) as reader:
            while (wanted := self._older.get()) is not None:
                _settle(wanted.future, lambda wanted=wanted: self._range(reader, wanted))  # type: ignore[misc]

    def _range(self, reader: PartitionReader, wanted: _Range) -> list[Record]:
        self.sought += 1
        place = TopicPartition(self.topic, wanted.partition)
        found: list[Record] = []
        left_ms = max(1, int((wanted.give_up_at - time.monotonic()) * 1000))
        first, _ = reader.watermarks(place, left_ms)
        if first > wanted.from_offset:
            raise RecordGone(f"{self.topic}[{wanted.partition}]@{wanted.from_offset} is gone; it now begins at {first}")
        for records in reader.read({place: wanted.from_offset}, {place: wanted.to_offset + 1}, idle_max_ms=left_ms):
            found += [record for record in records if wanted.key is None or record.key == wanted.key]
            if time.monotonic() > wanted.give_up_at:
                raise ReadTimedOut(f"{place} from {wanted.from_offset} to {wanted.to_offset}: not read in time")
        return found

    def _fail(self, error: KafkaFault) -> None:
        logger.error("the follower of %s ended: %s", self.topic, error)
        with self._lock:
            self._failure = error
            waiters = [waiter for index in self._indexes.values() for waiter in index.take_waiters()]
        for waiter in waiters:
            waiter.tell(error)


@dataclass(slots=True)
class _Range:
    """A read for the second consumer; `key` None: of every key."""

    partition: int
    key: bytes | None
    from_offset: int
    to_offset: int
    give_up_at: float
    future: Future[list[Record]] = field(default_factory=Future)


def _after(deadline_ms: int) -> float:
    return time.monotonic() + deadline_ms / 1000


def _settle(future: Future[list[Record]], work: Callable[[], Told]) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
        try:
            told = work()
            if isinstance(told, Exception):
                future.set_exception(told)
            else:
                future.set_result(told)
        except Exception as error:  # the one place that turns a failure into an answer
            future.set_exception(error)
