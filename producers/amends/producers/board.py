"""Waiting, in threads and tasks alike, for what other threads bring about."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Board:
    """Whoever changes what is waited for calls `announce` afterwards; whoever waits looks again."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._wakers: set[Callable[[], None]] = set()

    def announce(self) -> None:
        """Wake all that wait. Callable from any thread; never blocks for long."""
        with self._condition:
            self._condition.notify_all()
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()

    def wait(self, look: Callable[[], T | None], within_ms: int) -> T | None:
        """Block until `look` returns something, for at most `within_ms`; return that, or None."""
        deadline = time.monotonic() + within_ms / 1000
        with self._condition:
            while (found := look()) is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._condition.wait(left)
        return found

    async def wait_async(self, look: Callable[[], T | None], within_ms: int) -> T | None:
        """As `wait`, for a task."""
        if (found := look()) is not None:
            return found
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop)
        with self._condition:
            self._wakers.add(waiter.wake)
        timer = loop.call_later(within_ms / 1000, waiter.give_up)
        try:
            while not waiter.is_late:
                changed = waiter.next_change()  # before the look: what changes after it is told to this one
                if (found := look()) is not None:
                    return found
                await changed
            return look()
        finally:
            timer.cancel()
            with self._condition:
                self._wakers.discard(waiter.wake)


class _Waiter:
    """A task that waits. (`asyncio.timeout` and an `Event` cost thrice as much, and every scope waits once.)"""

    __slots__ = ("_changed", "_loop", "is_late")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_late = False
        self._loop = loop
        self._changed: asyncio.Future[None] = loop.create_future()

    def next_change(self) -> asyncio.Future[None]:
        """Return what is done at the next change. Called in the loop."""
        if self._changed.done():
            self._changed = self._loop.create_future()
        return self._changed

    def wake(self) -> None:
        """Something changed. Callable from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._change)

    def give_up(self) -> None:
        """The time is up. Called in the loop."""
        self.is_late = True
        self._change()

    def _change(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)
