"""Tenure: one ledger partition for as long as an engine owns it. Pure; every engine is built on it.

It keeps three numbers straight: the offset that must come next, the emissions not yet confirmed, and the point a
checkpoint may cover. A checkpoint is *cut* (changes and offset are taken together, right after the fold emitted),
waits until every emission before the cut is confirmed, and is then *kept* by the engine. Folding goes on meanwhile. A
cut that could not be kept joins the next one, so no change of state is lost to an aborted transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from amends.processors.emission import Emission, LedgerRecord
from amends.processors.engine import LedgerHoleError, PartitionFold, Stretch

CLOCK_JUMP_MS = 60_000
"""Brokers' clocks agree better than this. Append times that go back by more had jumped ahead; to go on from there would
stop every timer until that time is reached again."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What one checkpoint holds: `changes` of state (the last per key) and the ledger offset that comes next."""

    changes: dict[bytes, bytes | None]
    next_offset: int
    emissions_before: int  # emissions with a lower number must be confirmed before it may be kept


class Tenure:
    """The bookkeeping of one partition. Not thread-safe: one thread owns it.

    Args:
        next_offset: the ledger offset that must come next; state up to the one before is in `fold`.
        drop: keys of an older state that the first checkpoint drops, unless the fold writes them anew.
    """

    __slots__ = (
        "_appended_at_ms",
        "_changed",
        "_cut",
        "_due_at_ms",
        "_due_is_known",
        "_emitted",
        "_kept_to",
        "_unconfirmed",
        "_unkept",
        "fold",
        "folded_time_ms",
        "next_offset",
        "partition",
    )

    def __init__(self, partition: int, fold: PartitionFold, next_offset: int, *, drop: Iterable[bytes] = ()) -> None:
        self.partition = partition
        self.fold = fold
        self.next_offset = next_offset
        self.folded_time_ms = -1
        self._appended_at_ms = -1
        self._kept_to = next_offset
        self._changed = False  # without a fact
        self._emitted = 0
        self._unconfirmed: dict[int, None] = {}  # in the order of emission
        self._unkept: dict[bytes, bytes | None] = dict.fromkeys(drop)
        self._due_at_ms: int | None = None
        self._due_is_known = False  # asked at every turn of a loop, and the fold has much to look at for it
        self._cut: Cut | None = None

    # --- facts in ---------------------------------------------------------------------------------------------------

    def take(self, record: LedgerRecord) -> bool:
        """Fold `record`; return whether it was new. One that was folded before is skipped.

        Raises:
            LedgerHoleError: a record between the last one folded and this one is missing.
        """
        if record.offset < self.next_offset:
            return False
        if record.offset > self.next_offset:
            raise LedgerHoleError(hole_in_words(self.partition, self.next_offset, record.offset))
        self.fold.fold(record)
        self._due_is_known = False
        self.next_offset = record.offset + 1
        if record.appended_at_ms < self._appended_at_ms - CLOCK_JUMP_MS:
            self.folded_time_ms = record.appended_at_ms
        self._appended_at_ms = record.appended_at_ms
        self.saw_time(record.appended_at_ms)
        return True

    def saw_time(self, time_ms: int) -> None:
        """Every fact appended before `time_ms` is folded. Time never goes back, unless a clock had jumped (`take`)."""
        self.folded_time_ms = max(self.folded_time_ms, time_ms)

    def refolded(self, stretch: Stretch) -> None:
        """A stretch of the ledger that the fold wanted was read to its end."""
        self.fold.refolded(stretch)
        self._due_is_known = False
        self._changed = True

    def refolding(self) -> Stretch | None:
        """Return a stretch of the ledger that the fold wants read again, once; `refolded` takes it back."""
        if self._due_at_ms == 0:  # as it is where one is wanted
            self._due_is_known = False
        return self.fold.refolding()

    # --- emissions out ----------------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> bool:
        """Return whether the fold may have something to send without a new fact."""
        due_at_ms = self.next_due_ms()
        return due_at_ms is not None and due_at_ms <= now_ms

    def next_due_ms(self) -> int | None:
        """Return when the fold may have something to send without a new fact, None if never."""
        if not self._due_is_known:
            self._due_at_ms, self._due_is_known = self.fold.next_due_ms(), True
        return self._due_at_ms

    def emissions(self, now_ms: int, *, timers: bool) -> list[tuple[int, Emission]]:
        """Return what must be sent now, each with its number, which `confirm` takes back. With `timers` the ledger's
        time is looked at too."""
        found = list(self.fold.timeouts(self.folded_time_ms)) if timers and self.folded_time_ms >= 0 else []
        found.extend(self.fold.outputs(now_ms))
        self._due_is_known = False
        numbered = list(enumerate(found, start=self._emitted))
        self._emitted += len(numbered)
        self._unconfirmed.update((number, None) for number, _ in numbered)
        return numbered

    def confirm(self, number: int) -> None:
        self._unconfirmed.pop(number, None)

    @property
    def unconfirmed(self) -> int:
        return len(self._unconfirmed)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Facts were folded, now or again, that no checkpoint covers."""
        return self._changed or self._kept_to < self.next_offset or bool(self._unkept)

    @property
    def kept_to(self) -> int:
        """The ledger offset of the last checkpoint: what a new owner starts from."""
        return self._kept_to

    def cut(self) -> Cut:
        """Cut a checkpoint here, or return the one that is cut and not kept yet. Call it right after the emissions of
        all folded facts were sent."""
        if self._cut is None:
            self._unkept.update(self.fold.changes())
            self._changed = False
            self._cut = Cut(self._unkept, self.next_offset, self._emitted)
            self._unkept = {}
        return self._cut

    def may_keep(self, cut: Cut) -> bool:
        """Return whether all that was emitted before `cut` is confirmed."""
        first = next(iter(self._unconfirmed), None)
        return first is None or first >= cut.emissions_before

    def kept(self, cut: Cut) -> None:
        """`cut` is durable."""
        assert cut is self._cut, "a checkpoint that was not cut last"
        self._kept_to = cut.next_offset
        self._cut = None

    def not_kept(self, cut: Cut) -> None:
        """`cut` was aborted, and none of it is durable: the next cut holds it too."""
        assert cut is self._cut, "a checkpoint that was not cut last"
        self._unkept = {**cut.changes, **self._unkept}
        self._cut = None


def hole_in_words(partition: int, expected: int, found: int) -> str:
    return (
        f"ledger partition {partition}: offset {expected} must come next but {found} does; the facts between are gone. "
        "Nothing behind them is folded. Either the ledger's retention was shorter than the time the processor was "
        "down (raise it, then rebuild with --refold what the ledger still holds, and review the workflows that were "
        "open), or somebody wrote to the ledger in a transaction or deleted records from it."
    )
