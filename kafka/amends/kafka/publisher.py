"""Confirmed writes: a record is acknowledged by all replicas in sync, or the answer says what is known.

Theory of operation. One librdkafka producer per process, made when first needed; a thread of its own polls it. Answers
that one poll brings are handed over together: one wake-up per event loop and poll (a wake-up per answer costs 2-4x at
32 writes in flight). What an event loop writes in one turn is handed to the client together at the turn's end: else a
busy loop wakes the client's threads for each record, and they fight it for the interpreter (a third of the CPU of a
write at 256 in flight, and fewer requests at the broker). After a fork the child makes its own producer; the parent's
is left alone there.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence

from amends.kafka.errors import MaybeWritten, NotWritten, WriteError
from amends.kafka.handles import keep_for_good
from amends.kafka.producing import Answer, Client
from amends.kafka.records import Ack, Headers, Writable
from amends.kafka.settings import KafkaSettings
from amends.kafka.waiting import Blocker, Callback, OnDone, Waiter
from amends.schemas.older import NewerThanRelease, older

QUEUE_FULL_WAIT_MS = 2
_QUEUE_FULL = "_QUEUE_FULL"
NEWER = "NEWER_THAN_RELEASE"
"""`code` of a record that the release named by `records_of` can't say. It would be refused again."""


class Publisher:
    """Writes records and says for each whether it stands. Usable from any number of threads and event loops, and after
    a fork. Close it when done; a closed one refuses.

    Args:
        deadline_ms: every write has its answer by then, or up to a third of a second later.
        queue_max: how many records may wait for their answer; more are refused (`send`) or wait (`publish`).
        gather_ms: answers may come so much later, many at once. For one whose answers nobody waits for: it costs less.
    """

    def __init__(
        self, settings: KafkaSettings, *, deadline_ms: int = 10_000, queue_max: int = 100_000, gather_ms: int = 0
    ) -> None:
        if deadline_ms < 100:
            raise ValueError(f"deadline_ms must be 100 or more, not {deadline_ms}: a broker needs time to answer")
        self._settings = settings
        self._deadline_ms = deadline_ms
        self._queue_max = queue_max
        self._gather_ms = gather_ms
        self._older = None if settings.records_of is None else older(settings.records_of)
        self._client: Client | None = None
        self._closed = False
        self._begin_process()
        _PUBLISHERS.add(self)

    def _begin_process(self) -> None:
        self._lock = threading.Lock()
        self._order = threading.RLock()  # what is held and what is sent reach the client in the order of the calls
        self._held: deque[_Held] = deque()
        self._handing: set[asyncio.AbstractEventLoop] = set()

    def open(self) -> None:
        """Make the client of this process now. The first write waits half a second for a producer id otherwise."""
        client = self._client
        if client is None or client.broken or client.pid != os.getpid():
            self._open()

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        partition: int | None = None,
        on_done: OnDone,
    ) -> None:
        """Hand over a record; `on_done` gets its answer exactly once, within the deadline. Never blocks, and raises for
        nothing that the world can do.

        `on_done` runs in the publisher's thread (or, if the record is refused at once, in the caller's): it must be
        quick and must not raise. `partition` None: the one of the key by murmur2.
        """
        refused = self._offer_now(topic, key, value, headers, partition, Callback(on_done))
        if refused is not None:
            on_done(refused)

    async def publish(
        self, topic: str, *, key: bytes | None, value: bytes | None, headers: Headers = (), partition: int | None = None
    ) -> Ack:
        """Return once the record is acknowledged. Cancelling leaves the record where it is: it may be written.

        Raises:
            NotWritten: certainly not written.
            MaybeWritten: uncertain.
        """
        loop = asyncio.get_running_loop()
        give_up_at: float | None = None
        while True:
            future = self._hold(loop, topic, key, value, headers, partition)
            try:
                return await future
            except NotWritten as refused:
                give_up_at = give_up_at or time.monotonic() + self._deadline_ms / 1000
                if not _worth_waiting(refused, give_up_at):
                    raise
            await asyncio.sleep(QUEUE_FULL_WAIT_MS / 1000)

    async def publish_each(self, records: Sequence[Writable]) -> list[Ack | WriteError]:
        """As `publish`, for several records at once: return the answer of each, in their order. Raises nothing."""
        return await self.answers(self.begin(records))

    def begin(self, records: Sequence[Writable]) -> list[Begun]:
        """Hand over records in a task and go on; `answers` is to be asked what became of them."""
        loop = asyncio.get_running_loop()
        return [(r, self._hold(loop, r.topic, r.key, r.value, r.headers, r.partition)) for r in records]

    async def answers(self, begun: Sequence[Begun]) -> list[Ack | WriteError]:
        """Return the answer of each record that was begun, in their order. Raises nothing."""
        try:
            return [await self._answer(record, future) for record, future in begun]
        finally:
            for _, future in begun:
                future.cancel()  # where we were cancelled nobody waits any more; what is answered takes no notice

    async def _answer(self, record: Writable, future: asyncio.Future[Ack]) -> Ack | WriteError:
        try:
            return await future
        except NotWritten as refused:
            return await self._again(record) if refused.code == _QUEUE_FULL else refused
        except WriteError as error:
            return error

    async def _again(self, record: Writable) -> Ack | WriteError:
        try:
            return await self.publish(
                record.topic, key=record.key, value=record.value, headers=record.headers, partition=record.partition
            )
        except WriteError as error:
            return error

    def publish_sync(
        self, topic: str, *, key: bytes | None, value: bytes | None, headers: Headers = (), partition: int | None = None
    ) -> Ack:
        """As `publish`, for threads. Blocks up to the deadline."""
        give_up_at = time.monotonic() + self._deadline_ms / 1000
        while True:
            blocker = Blocker()
            refused = self._offer_now(topic, key, value, headers, partition, blocker)
            if refused is None:
                return blocker.wait()
            if not _worth_waiting(refused, give_up_at):
                raise refused
            time.sleep(QUEUE_FULL_WAIT_MS / 1000)

    def flush(self, deadline_ms: int | None = None) -> int:
        """Wait until all that was handed over before has its answer; return how many have not."""
        self._hand_over_held()
        client = self._client
        if client is None or client.pid != os.getpid():
            return 0
        return client.flush(self._deadline_ms if deadline_ms is None else deadline_ms)

    def close(self, deadline_ms: int | None = None) -> None:
        """Flush for at most `deadline_ms`, answer what is left, and end the thread. Twice is harmless."""
        self._hand_over_held()
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None and client.pid == os.getpid():
            client.close(self._deadline_ms if deadline_ms is None else deadline_ms)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold(
        self,
        loop: asyncio.AbstractEventLoop,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
    ) -> asyncio.Future[Ack]:
        """Keep a record until this turn of `loop` ends, and return its answer to be."""
        waiter = Waiter(loop)
        self._held.append((topic, key, value, headers, partition, waiter))
        if loop not in self._handing:
            self._handing.add(loop)
            loop.call_soon(self._turn_ended, loop)
        return waiter.future

    def _turn_ended(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handing.discard(loop)
        self._hand_over_held()

    def _hand_over_held(self) -> None:
        with self._order:
            while self._held:
                topic, key, value, headers, partition, waiter = self._held.popleft()
                try:
                    refused: Exception | None = self._offer(topic, key, value, headers, partition, waiter)
                except Exception as error:  # a bug of the caller, such as a text for a value: it is told, nobody else
                    refused = error
                if refused is not None:
                    waiter.give_later([(waiter, refused)])

    def _offer_now(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        answer: Answer,
    ) -> NotWritten | None:
        with self._order:
            if self._held:
                self._hand_over_held()
            return self._offer(topic, key, value, headers, partition, answer)

    def _offer(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        answer: Answer,
    ) -> NotWritten | None:
        if self._older is not None and value is not None:
            try:
                value = self._older(value)
            except NewerThanRelease as newer:
                return NotWritten(str(newer), code=NEWER)
        client = self._client
        if client is None or client.broken or client.pid != os.getpid():
            client = self._open()
            if client is None:
                return NotWritten("the publisher is closed", code="CLOSED")
        return client.offer(topic, key, value, headers, partition, answer)

    def _open(self) -> Client | None:
        with self._lock:
            if self._closed:
                return None
            client = self._client
            if client is not None and client.pid == os.getpid():
                if not client.broken:
                    return client
                client.retire()
            self._client = Client(
                self._settings, deadline_ms=self._deadline_ms, queue_max=self._queue_max, gather_ms=self._gather_ms
            )
            return self._client

    def _forget_after_fork(self) -> None:
        # The locks may have been held by a thread that does not exist here, what is held is the parent's to write, and
        # its producer must never be destroyed here: it would wait for threads that did not come along. So it is kept
        # alive for good.
        self._begin_process()
        client, self._client = self._client, None
        if client is not None:
            keep_for_good(client)


Begun = tuple[Writable, "asyncio.Future[Ack]"]
"""A record that was handed over, and its answer to be."""

_Held = tuple[str, bytes | None, bytes | None, Headers, int | None, Waiter]


def _worth_waiting(refused: NotWritten, give_up_at: float) -> bool:
    return refused.code == _QUEUE_FULL and time.monotonic() < give_up_at


_PUBLISHERS: weakref.WeakSet[Publisher] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for publisher in list(_PUBLISHERS):
        publisher._forget_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["Ack", "MaybeWritten", "NotWritten", "OnDone", "Publisher", "WriteError"]
