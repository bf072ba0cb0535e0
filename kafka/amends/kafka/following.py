"""The index of one followed partition: the last minutes by key, and who waits. Guarded by the follower's lock."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable

from amends.kafka.records import Record

_RECORD_COST_BYTES = 400
"""What a record costs beside its key and value, roughly."""


Told = list[Record] | Exception


class Waiter:
    """A read that is not answered yet. `give_up_at` is in monotonic seconds; `tell` is called with the answer, once."""

    __slots__ = ("from_offset", "give_up_at", "key", "tell", "to_offset")

    def __init__(
        self, key: bytes, from_offset: int, to_offset: int, give_up_at: float, tell: Callable[[Told], None]
    ) -> None:
        self.key = key
        self.from_offset = from_offset
        self.to_offset = to_offset
        self.give_up_at = give_up_at
        self.tell = tell

    def tell_after(self, older: concurrent.futures.Future[list[Record]], held: list[Record]) -> None:
        """Answer with what was read from the topic and then what the index held."""
        error = older.exception()
        self.tell(error if isinstance(error, Exception) else older.result() + held)


class Mailbox:
    """Answers for the coroutines of one event loop: one wake-up for all that come before it is awake."""

    __slots__ = ("_answers", "_loop", "_woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answers: deque[tuple[asyncio.Future[list[Record]], Told]] = deque()
        self._woken = False

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def put(self, future: asyncio.Future[list[Record]], told: Told) -> None:
        """Answer `future`. Called from any thread."""
        self._answers.append((future, told))
        if not self._woken:  # it is set back before the box is emptied, so that no answer stays
            self._woken = True
            with contextlib.suppress(RuntimeError):  # a loop that is closed has nobody left who waits
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._woken = False
        while self._answers:
            future, told = self._answers.popleft()
            if future.done():  # cancelled meanwhile
                continue
            if isinstance(told, Exception):
                future.set_exception(told)
            else:
                future.set_result(told)


class PartitionIndex:
    """Every record at offsets from `begins_at` up to, not including, `next_offset`, once `placed`."""

    __slots__ = ("_by_key", "_bytes", "_order", "_waiters", "begins_at", "next_offset", "placed")

    def __init__(self) -> None:
        self.placed = False
        self.begins_at = 0
        self.next_offset = 0
        self._bytes = 0
        self._by_key: dict[bytes, list[Record]] = {}
        self._order: deque[tuple[int, Record]] = deque()
        self._waiters: list[Waiter] = []

    def place(self, offset: int) -> None:
        """Begin at `offset`: nothing before it is held."""
        self.placed = True
        self.begins_at = self.next_offset = offset
        self._bytes = 0
        self._by_key.clear()
        self._order.clear()

    def add(self, record: Record, now_ms: int) -> None:
        self._order.append((now_ms, record))
        self._by_key.setdefault(record.key or b"", []).append(record)
        self._bytes += _cost(record)
        self.next_offset = record.offset + 1

    def forget(self, read_before_ms: int, bytes_max: int) -> None:
        """Drop what was read before `read_before_ms`, and the oldest until `bytes_max` holds."""
        while self._order and (self._order[0][0] < read_before_ms or self._bytes > bytes_max):
            _, record = self._order.popleft()
            self._bytes -= _cost(record)
            key = record.key or b""
            of_key = self._by_key[key]
            if len(of_key) == 1:
                del self._by_key[key]
            else:
                del of_key[0]
            self.begins_at = record.offset + 1

    def select(self, key: bytes, from_offset: int, to_offset: int) -> list[Record]:
        """Return the records of `key` that are held, in that range."""
        of_key = self._by_key.get(key, [])
        first = bisect_left(of_key, from_offset, key=lambda record: record.offset)
        last = bisect_right(of_key, to_offset, key=lambda record: record.offset)
        return of_key[first:last]

    def at(self, offset: int) -> Record | None:
        """Return the record at `offset`, if it is held."""
        found = bisect_left(self._order, offset, key=lambda entry: entry[1].offset)
        if found < len(self._order) and self._order[found][1].offset == offset:
            return self._order[found][1]
        return None

    def reached(self, offset: int) -> bool:
        return self.placed and self.next_offset > offset

    @property
    def awaited(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    def wait(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)

    def take_reached(self) -> list[Waiter]:
        """Return, once, those whose last offset was reached."""
        return self._take([waiter for waiter in self._waiters if self.reached(waiter.to_offset)])

    def take_late(self, now: float) -> list[Waiter]:
        """Return, once, those whose deadline has passed."""
        return self._take([waiter for waiter in self._waiters if waiter.give_up_at < now])

    def take_waiters(self) -> list[Waiter]:
        return self._take(list(self._waiters))

    def _take(self, taken: list[Waiter]) -> list[Waiter]:
        if taken:
            self._waiters = [waiter for waiter in self._waiters if waiter not in taken]
        return taken


def _cost(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"") + _RECORD_COST_BYTES
