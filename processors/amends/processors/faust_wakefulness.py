"""Whether this process may still count itself a member: who slept through a session is silent until the group has told.

The broker refuses no write of a member that was replaced. One that goes on working learns of it by its next heartbeat;
one that slept (a paused machine) would write on for as long as that takes, for the facts and emissions at hand.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

LOOK_S = 0.02

logger = logging.getLogger(__name__)


class Wakefulness:
    """Used in one loop, which looks at it at least every `slept_ms` while it is awake.

    Args:
        slept_ms: who has not looked for so long has slept.
        silent_ms: within this, one who wakes hears from the group.
    """

    def __init__(self, *, slept_ms: int, silent_ms: int, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = monotonic_s
        self._slept_s = slept_ms / 1000
        self._silent_s = silent_ms / 1000
        self._looked_at_s = self._now_s()
        self._silent_until_s = 0.0

    def look(self) -> bool:
        """Look at the clock; return whether nothing may be written now."""
        now_s = self._now_s()
        gap_s, self._looked_at_s = now_s - self._looked_at_s, now_s
        if gap_s > self._slept_s:
            logger.warning("slept for %.1f s: silent until the group has said whether it went on", gap_s)
            self._silent_until_s = now_s + self._silent_s
        return now_s < self._silent_until_s

    def is_member(self) -> None:
        """The group has just given this process its partitions."""
        self._looked_at_s = self._now_s()
        self._silent_until_s = 0.0

    async def awake(self) -> None:
        """Return when something may be written: at once, unless this process slept."""
        while self.look():  # noqa: ASYNC110  # nothing but the clock ends it
            await asyncio.sleep(LOOK_S)
