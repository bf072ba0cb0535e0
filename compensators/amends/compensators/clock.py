"""The clock of leases: it never goes back, and it goes on while the machine sleeps.

A1 asks a process to look at its clock before it sends. A clock that stops in a suspended machine would say that no
time has passed, so this is CLOCK_BOOTTIME where there is one. It is the same for all processes of a machine.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock_ms() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
