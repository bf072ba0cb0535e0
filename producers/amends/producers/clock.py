"""The two clocks of a producer."""

from __future__ import annotations

import time

from amends.producers.effects import Instant

# CLOCK_MONOTONIC stands still while a machine is suspended, and a lease does not: the fence must see that sleep (A1).
_SLEEP_COUNTS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_ms() -> int:
    """Return milliseconds that only grow, sleep of the machine included where the platform can tell."""
    return time.clock_gettime_ns(_SLEEP_COUNTS) // 1_000_000


def wall_ms() -> int:
    """Return milliseconds since 1970, for people."""
    return time.time_ns() // 1_000_000


def now() -> Instant:
    """Return both."""
    return Instant(elapsed_ms(), wall_ms())
