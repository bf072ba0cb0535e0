"""Checkpoints of one partition under Faust: its changes, then the seal; then Faust is told that the facts are done.

Nothing of it is atomic, and nothing needs to be. Until the seal stands, a new owner begins at the seal before. Faust
commits offsets of facts that were acknowledged to it, and that is done only behind the seal: where the group stands is
never ahead of the state.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from faust.types import EventT

from amends.processors.checkpoints import pace_ms
from amends.processors.engine import AFTER_CHECKPOINT, BEFORE_CHECKPOINT, EngineError, Faults
from amends.processors.faust_changelog import SEAL_KEY, Mark, Rank, Value
from amends.processors.faust_takeover import Taken
from amends.processors.tenure import Cut

LOOK_S = 0.003
"""Between two looks whether all is confirmed that a checkpoint covers."""

Write = Callable[[int, bytes, bytes | None, Mark], Awaitable[Awaitable[Any]]]
Awake = Callable[[], Awaitable[None]]
Acknowledge = Callable[[EventT[Any]], Awaitable[object]]


class ChangelogLostError(EngineError):
    """A record of the changelog was not acknowledged. Nothing behind it is sealed or committed; the process ends."""

    exit_code = 75


class FaustKeeper:
    """Keeps the checkpoints of a partition that was taken over. Used in the loop alone.

    Args:
        writer: tells this tenure from all others.
        write: hands a record of the changelog to the client.
        awake: returns once this process is known not to have slept through its session.
    """

    def __init__(
        self, taken: Taken, *, writer: int, checkpoint_ms: int, write: Write, awake: Awake, faults: Faults
    ) -> None:
        self.tenure = taken.tenure
        self.partition = taken.tenure.partition
        self.writer = writer
        self.is_dropped = False
        self.look_again_at_ms = 0
        """When timers and repeats may be looked at again."""
        self.begun = 0
        """Checkpoints that were begun."""
        self.kept = 0
        self._ends = False
        self._era = taken.era
        self._again = taken.again
        self._contested = taken.contested
        self._sealed = taken.sealed
        self._checkpoint_ms = checkpoint_ms
        self._write = write
        self._awake = awake
        self._faults = faults
        self._took_ms = 0
        self._due_at_ms: int | None = None
        self._under_way: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[int, EventT[Any], Acknowledge]] = deque()

    # --- facts --------------------------------------------------------------------------------------------------------

    async def done(self, offset: int, event: EventT[Any], acknowledge: Acknowledge) -> None:
        """A fact was folded, or had been: Faust is told so once the state that holds it is kept."""
        if offset < self.tenure.kept_to:
            await acknowledge(event)
        else:
            self._waiting.append((offset, event, acknowledge))

    # --- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def is_committing(self) -> bool:
        return self._under_way is not None

    def advance(self, now_ms: int) -> None:
        """Cut a checkpoint when it is time, and begin to write it. Raises what the one before ended with."""
        if self._ends or self.is_dropped:
            return
        if self._under_way is not None:
            if not self._under_way.done():
                return
            task, self._under_way = self._under_way, None
            task.result()
        if self._again:
            again, self._again = self._again, []
            self._begin(self.write(again))
            return
        if self._due_at_ms is None and self.tenure.dirty:
            self._due_at_ms = now_ms + pace_ms(self._checkpoint_ms, self._took_ms)
        if self._due_at_ms is not None and self._due_at_ms <= now_ms:
            self._due_at_ms = None
            self._begin(self._keep(self.tenure.cut()))

    def write_again(self, records: list[tuple[bytes, Value, Mark]]) -> None:
        """Have records written again as they are, between two checkpoints."""
        self._again = records

    async def last(self) -> None:
        """Keep all that was folded; nothing is begun after this. Raises ChangelogLostError."""
        self._ends = True
        if self._under_way is not None:
            await self._under_way
        if self.tenure.dirty:
            await self._keep(self.tenure.cut())

    def drop(self) -> None:
        """The partition is somebody else's: what is being written is broken off, and no seal follows it."""
        self.is_dropped = True
        if self._under_way is not None:
            self._under_way.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._under_way = asyncio.get_running_loop().create_task(work)

    async def _keep(self, cut: Cut) -> None:
        self.begun += 1
        while not self.tenure.may_keep(cut):
            if self.is_dropped:
                return
            await asyncio.sleep(LOOK_S)
        self._faults(BEFORE_CHECKPOINT)
        await self._awake()
        if self.is_dropped:
            return
        began_at = time.monotonic()
        folded_to, sealed = cut.next_offset - 1, self._sealed
        rank = Rank(self._era, folded_to) if sealed is None else sealed.following(folded_to)
        mark = Mark(rank, self.writer)
        await self.write([(key, value, mark) for key, value in {**self._contested, **cut.changes}.items()])
        await self._awake()
        if self.is_dropped:
            return
        await self.write([(SEAL_KEY, b"", mark)])
        self._took_ms = int((time.monotonic() - began_at) * 1000)
        self._faults(AFTER_CHECKPOINT)
        self.tenure.kept(cut)
        self._sealed = rank
        self._contested = {}
        self.kept += 1
        while self._waiting and self._waiting[0][0] < cut.next_offset:
            _, event, acknowledge = self._waiting.popleft()
            if not self.is_dropped:
                await acknowledge(event)

    async def write(self, records: list[tuple[bytes, bytes | None, Mark]]) -> None:
        """Write records of the changelog; return when all are acknowledged. Raises ChangelogLostError."""
        try:
            sent = [await self._write(self.partition, key, value, mark) for key, value, mark in records]
            await asyncio.gather(*sent)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # whatever the client raises: what is not acknowledged must not be sealed
            raise ChangelogLostError(
                f"a record of the changelog of ledger partition {self.partition} was not acknowledged "
                f"({type(error).__name__}: {error}). What it belongs to is folded again from the checkpoint before. If "
                "this comes again: a state larger than the topic's max.message.bytes, or rights that are missing"
            ) from error
