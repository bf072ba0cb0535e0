"""Ends the worker when a coroutine handler holds its loop, or goes on after it was cancelled.

Neither can be stopped from inside: the one lets nobody run, the other may send at any time under a lease that is over.
The process ends, its attempts are found by their leases, and its supervisor starts it anew. A thread judges, because
the loop is what may be stuck.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable
from itertools import count

from amends.compensators.clock import lease_clock_ms

log = logging.getLogger(__name__)

EXIT_CODE = 70
GRACE_MS = 2_000
"""What a cancelled handler has to clean up, and a busy loop to come round."""


def end_process(reason: str) -> None:
    log.critical("this worker ends: %s", reason)
    faulthandler.dump_traceback(file=sys.stderr)
    os._exit(EXIT_CODE)


class Watching:
    """Something is open in between. (A generator in its place costs three times as much.)"""

    __slots__ = ("_entry", "_number", "_open")

    def __init__(self, open: dict[int, tuple[int, str]], number: int, end_by_ms: int, what: str) -> None:
        self._open = open
        self._number = number
        self._entry = (end_by_ms, what)

    def __enter__(self) -> None:
        self._open[self._number] = self._entry

    def __exit__(self, *_: object) -> None:
        del self._open[self._number]


class LoopWatchdog:
    """Knows what must have ended by when. `on_stuck` is called once, in its thread."""

    def __init__(self, on_stuck: Callable[[str], None] = end_process, *, grace_ms: int = GRACE_MS) -> None:
        self._on_stuck = on_stuck
        self._grace_ms = grace_ms
        self._numbers = count()
        self._open: dict[int, tuple[int, str]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="amends-loop-watchdog", daemon=True)
        self._thread.start()

    def watching(self, end_by_ms: int, what: str) -> Watching:
        """Say that `what` ends by `end_by_ms` of the lease clock, inside of a `with`."""
        return Watching(self._open, next(self._numbers), end_by_ms, what)

    def _watch(self) -> None:
        while not self._stopped.wait(min(0.25, self._grace_ms / 2000)):
            now_ms = lease_clock_ms()
            for end_by_ms, what in list(self._open.values()):
                if now_ms > end_by_ms + self._grace_ms:
                    late_ms = now_ms - end_by_ms
                    self._on_stuck(f"{what} did not end, {late_ms} ms after its lease: it won't yield or be cancelled")
                    return

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
