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
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(changed.set)

        with self._condition:
            self._wakers.add(wake)
        try:
            async with asyncio.timeout(within_ms / 1000):
                while (found := look()) is None:
                    await changed.wait()
                    changed.clear()
                return found
        except TimeoutError:
            return look()
        finally:
            with self._condition:
                self._wakers.discard(wake)
