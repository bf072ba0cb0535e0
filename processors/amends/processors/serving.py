"""What every engine does for its folds beside facts and checkpoints: it sends what they emit, has read again what they
want, and asks them when time has passed. Nothing here blocks but `flush`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from amends.kafka.records import EndObserved
from amends.kafka.settings import KafkaSettings
from amends.processors.emitter import Emitter
from amends.processors.rereader import Rereader
from amends.processors.settings import ProcessorSettings
from amends.processors.tenure import Tenure

LOOK_AGAIN_MS = 50
"""Between two looks at due timers of a partition that brought nothing new."""
UNTOLD_AGAIN_MS = 1_000
"""The same where nobody told the ledger's time."""


class Served(Protocol):
    """A partition that is held. `look_again_at_ms`: when its timers may be looked at again."""

    look_again_at_ms: int

    @property
    def tenure(self) -> Tenure: ...


AServed = TypeVar("AServed", bound=Served)


class Serving:
    """Used in one loop."""

    def __init__(self, kafka: KafkaSettings, settings: ProcessorSettings) -> None:
        self._emitter = Emitter(
            kafka, deadline_ms=settings.emission_deadline_ms, queue_max=2 * settings.unconfirmed_max
        )
        self._rereader = Rereader(kafka)
        self._unconfirmed_max = settings.unconfirmed_max
        self._held: dict[Tenure, None] = {}

    # --- emissions ----------------------------------------------------------------------------------------------------

    @property
    def unconfirmed(self) -> int:
        return self._emitter.unconfirmed

    @property
    def emitted(self) -> int:
        return self._emitter.emitted

    @property
    def is_full(self) -> bool:
        """So much is on its way that folding waits."""
        return self._emitter.unconfirmed > self._unconfirmed_max

    def hold(self, tenure: Tenure) -> None:
        """A partition was taken over. All that is emitted is a function of state: what the owner before did not get
        out comes out now."""
        self._held[tenure] = None
        self.send(tenure)

    def drop(self, tenure: Tenure) -> None:
        """A partition was given up: nobody waits for its emissions, nor for what is read for it."""
        self._held.pop(tenure, None)
        self._rereader.drop(tenure)

    def send(self, tenure: Tenure) -> None:
        """Send what followed from facts."""
        self._emitter.send(tenure, tenure.emissions(wall_ms(), timers=False))

    def confirm(self) -> None:
        """Tell the tenures what was confirmed since the last call. Raises as `Emitter.confirm`."""
        self._emitter.confirm(self._held.__contains__)

    def flush(self, deadline_ms: int) -> None:
        """Wait until all that was sent has its answer; `confirm` brings them."""
        self._emitter.flush(deadline_ms)

    # --- what is read again -------------------------------------------------------------------------------------------

    def fold_again(self) -> None:
        """Have read what was forgotten and is wanted again; take what was read."""
        for tenure in self._held:
            stretch = tenure.refolding()
            if stretch is not None:
                self._rereader.want(tenure, stretch)
        for tenure, read in self._rereader.take():
            tenure.refolded(read)
            self.send(tenure)

    # --- timers -------------------------------------------------------------------------------------------------------

    def look_at_timers(self, due: Iterable[Served], ends: Mapping[int, EndObserved]) -> None:
        """Let timers ring.

        Args:
            ends: where the partitions of the ledger end, as the brokers said; empty if they did not. Time that no fact
                has brought is theirs to tell: only if a partition ends where its fold is, at a moment after it was
                asked for, is everything folded that was appended before.
        """
        at_ms = wall_ms()
        for each in due:
            tenure, end = each.tenure, ends.get(each.tenure.partition)
            if end is not None and end.offset == tenure.next_offset:
                tenure.saw_time(end.observed_at_ms)
            self._emitter.send(tenure, tenure.emissions(at_ms, timers=True))
            each.look_again_at_ms = at_ms + (LOOK_AGAIN_MS if ends else UNTOLD_AGAIN_MS)

    def close(self) -> None:
        """Give up what is on its way, and end."""
        self._rereader.close()
        self._emitter.close()


def due_of(held: Iterable[AServed], at_ms: int) -> list[AServed]:
    """Return whose timers may ring."""
    return [each for each in held if each.look_again_at_ms <= at_ms and each.tenure.due(at_ms)]


def waiting_of(held: Iterable[Tenure], ends: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Return of each partition whose end is known what must come next, and how many facts wait (`Progress.waiting`)."""
    known = ((each, ends[each.partition]) for each in held if each.partition in ends)
    return [(each.partition, each.next_offset, max(0, end - each.next_offset)) for each, end in known]


def wall_ms() -> int:
    """Return what the wall clock says."""
    return time.time_ns() // 1_000_000
