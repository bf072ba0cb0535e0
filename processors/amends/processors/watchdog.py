"""The watchdog: ends a process that makes no progress while there is lag.

A fold that hangs, a client whose call never returns, a partition nobody serves, be it one among others that move: from
inside, none of them can be mended, and each looks like silence from outside. So the process ends, loudly, and its
supervisor starts it anew, or the group finds another owner. A broker that can't be reached is no reason: a restart
would not bring it back.

A checkpoint that never ends is one, though facts are folded: the client's `send_offsets_to_transaction` can wait for
ever where a coordinator was away for a moment, whatever time it was given (confluentinc/librdkafka#5456). No call of it
is given more than seconds, so one that is under way for `stall_ms` hangs; the next owner would fold ever more again.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

EXIT_CODE = 71


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an engine stands, as its loop last saw it."""

    turns: int = 0  # of the loop
    folded: int = 0  # facts since the start
    kept: int = 0  # checkpoints since the start
    lag: int | None = None  # facts appended and not folded; None: the broker was not reached
    partitions: tuple[int, ...] = ()  # those that are folded
    taking: tuple[int, ...] = ()  # those that are being taken over
    restored: int = 0  # changelog records since the start
    unconfirmed: int = 0
    emitted: int = 0
    refused: int = 0  # checkpoints refused because another owner is there
    aborted: int = 0
    waiting: tuple[tuple[int, int, int], ...] = ()
    """Of each partition whose end is known: its number, the offset that must come next, and how many facts wait."""
    committing: tuple[tuple[int, int], ...] = ()  # commits under way: partition, and the how manieth


class Watchdog:
    """Judges a sequence of looks. Pure: the time comes in."""

    def __init__(self, stall_ms: int) -> None:
        self._stall_ms = stall_ms
        self._last: Progress | None = None
        self._turned_at_ms = 0
        self._moved_at_ms = 0
        self._committing_since_ms: dict[tuple[int, int], int] = {}
        self._waiting_since_ms: dict[tuple[int, int], int] = {}

    def verdict(self, now_ms: int, seen: Progress) -> str | None:
        """Return why the process must end, or None. `now_ms` is of a clock that never jumps."""
        last, self._last = self._last, seen
        if last is None or seen.turns != last.turns:
            self._turned_at_ms = now_ms
        if last is None or not seen.lag or _moved(last, seen):
            self._moved_at_ms = now_ms
        hang = self._for_too_long(self._committing_since_ms, seen.committing, now_ms)
        stand = self._for_too_long(self._waiting_since_ms, [place[:2] for place in seen.waiting if place[2]], now_ms)
        if now_ms - self._turned_at_ms >= self._stall_ms:
            return f"its loop has not come round for {now_ms - self._turned_at_ms} ms: a call never returned"
        if hang:
            return f"checkpoints of partitions {hang} have not ended for {self._stall_ms} ms: a call never returned"
        if now_ms - self._moved_at_ms >= self._stall_ms:
            return (
                f"no fact was folded and no state restored for {now_ms - self._moved_at_ms} ms, "
                f"while {seen.lag} facts wait in partitions {list(seen.partitions + seen.taking)}"
            )
        if stand:
            return f"no fact was folded in partitions {stand} for {self._stall_ms} ms, while facts wait there"
        return None

    def _for_too_long(
        self, since_ms: dict[tuple[int, int], int], seen: Iterable[tuple[int, int]], now_ms: int
    ) -> list[int]:
        """Keep since when each is as it is; return the partitions of those that have not changed for `stall_ms`."""
        now = {each: since_ms.get(each, now_ms) for each in seen}
        since_ms.clear()
        since_ms.update(now)
        return sorted({each[0] for each, began_ms in now.items() if now_ms - began_ms >= self._stall_ms})


def _moved(last: Progress, seen: Progress) -> bool:
    return (seen.folded, seen.restored) != (last.folded, last.restored) or seen.partitions != last.partitions


def end_process(reason: str) -> NoReturn:
    """End the process at once, without clean-up: what hangs could hang that too."""
    sys.stderr.write(f"amends: the processor ends itself (exit code {EXIT_CODE}): {reason}\n")
    sys.stderr.flush()
    os._exit(EXIT_CODE)


class WatchdogThread:
    """Looks every twentieth of `stall_ms` from a thread of its own."""

    def __init__(
        self,
        stall_ms: int,
        progress: Callable[[], Progress],
        monotonic_ms: Callable[[], int],
        *,
        end: Callable[[str], object] = end_process,
    ) -> None:
        self._judge = Watchdog(stall_ms)
        self._wait_s = stall_ms / 20_000
        self._progress = progress
        self._monotonic_ms = monotonic_ms
        self._end = end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="amends-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._wait_s):
            reason = self._judge.verdict(self._monotonic_ms(), self._progress())
            if reason is not None:
                self._end(reason)
                return
