"""What an engine promises the fold, in words, and the two interfaces it stands between.

The fold (`PartitionFold`) is pure: it is given records and asked what to send and what to keep. An engine does the I/O
around it and nothing else. Whichever engine runs, and whatever dies:

1. **Every fact of a partition, in order, without a gap.** A fold is given offset n + 1 after offset n. A hole stops the
   engine with `LedgerHoleError`: the ledger is never written in a transaction, so its offsets have none, and a fold
   that skipped a fact would decide on half the truth.
2. **One owner at a time.** A partition's durable state is what one owner at a time makes it. One that was taken over
   and does not know it yet (a zombie) may still emit, but its checkpoint is refused: by the broker under transactions;
   under Faust it may still be written, and does not count (`faust_changelog`, and decision 0030 for what is left).
3. **Emission before checkpoint.** All that the fold emitted up to a fact is confirmed by the broker before a checkpoint
   covers that fact. A crash between the two emits again; nothing is lost. An emission names the offset it was true at.
4. **State and offset are one.** A checkpoint makes the changes of state and the offset they stand at durable together,
   or neither. After a crash the fold gets back exactly the state of the last checkpoint, then the facts after it.
5. **What was forgotten is read again, beside the fold.** A fold that meets a fact of a workflow it has dropped parks
   it and wants a stretch of the ledger (`refolding`). The engine reads that with a second reader, one stretch of a
   partition at a time, hands it back (`refolded`), and sends what follows; other keys are folded meanwhile. What is
   parked is state: a new owner's fold wants the stretch anew.
6. **Time is the ledger's.** A fold is told of time that every fact appended before it has been folded for: late, never
   early. An engine never lets a timer wait because a partition is busy.

What an engine does not promise: that something is emitted once, or that a wall clock is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from amends.processors.emission import Emission, LedgerRecord


class Stretch(Protocol):
    """A stretch of the ledger that a fold wants to be read for workflows it had forgotten. Any one thread may feed it,
    at its own pace, while the fold goes on; what it holds is its own until it is handed back."""

    @property
    def from_offset(self) -> int:
        """The first offset wanted. It may have risen after `begins_at`, beyond `to_offset`: then nothing is wanted."""
        ...

    @property
    def to_offset(self) -> int:
        """The last offset wanted; the fold has seen it, so it is there to be read."""
        ...

    @property
    def from_ms(self) -> int | None:
        """If not None, what was appended since then is wanted too: the engine looks up where that begins, and tells it
        by `located` before anything else."""
        ...

    def located(self, offset: int, /) -> None:
        """The first record appended at `from_ms` or later stands at `offset`, or the partition ends there."""
        ...

    def begins_at(self, offset: int, /) -> None:
        """The oldest record that the ledger holds stands at `offset`. Told once, before the first record."""
        ...

    def take(self, record: LedgerRecord, /) -> None:
        """Take the next record of the partition, of whatever key."""
        ...


class EngineError(Exception):
    """The engine can't go on and says why, and what to change. `exit_code` is what the process ends with."""

    exit_code = 70


class LedgerHoleError(EngineError):
    """Facts of a partition are missing between what was folded and what can be read. Nothing behind them is folded."""

    exit_code = 65


class RightMissingError(EngineError):
    """Kafka does not let this processor do what it must. What it folded is folded again by whoever may."""

    exit_code = 78


class CheckpointRefusedError(Exception):
    """Somebody else owns the partition now: neither this checkpoint nor a later one is durable."""


class OtherEngineError(EngineError):
    """The state was kept by another engine. `--refold` rebuilds it from the ledger."""

    exit_code = 78


class PartitionFold(Protocol):
    """One ledger partition's fold, as an engine drives it. Called by one thread at a time; never blocks, never raises
    for anything a record may hold."""

    @property
    def folded_to(self) -> int:
        """Offset of the last record folded, -1 if none."""
        ...

    def restore(self, key: bytes, value: bytes | None, /) -> None:
        """Take a record of the changelog, in its order. None drops the key."""
        ...

    def recall(self, record: LedgerRecord, /) -> None:
        """Take a record of the ledger, in order: where state is built anew from one that has forgotten its beginning,
        each from there to its end, before `restored`."""
        ...

    def restored(self, folded_to: int, /) -> None:
        """The changelog has been read to its end; facts up to `folded_to` are in it. Timers are rebuilt here."""
        ...

    def fold(self, record: LedgerRecord, /) -> None: ...

    def outputs(self, now_ms: int, /) -> Sequence[Emission]:
        """Return what must be sent now: each once, and again when its repeat is due."""
        ...

    def timeouts(self, folded_time_ms: int, /) -> Sequence[Emission]:
        """Return Timeout facts for the ledger, given that every fact appended before `folded_time_ms` is folded."""
        ...

    def next_due_ms(self) -> int | None:
        """Return when `outputs`, `timeouts` or `refolding` may next have something without a new fact, None if
        never."""
        ...

    def refolding(self) -> Stretch | None:
        """Return a stretch of the ledger that is to be read, once; None if none is wanted, or one is out already."""
        ...

    def refolded(self, stretch: Any, /) -> None:
        """The stretch was read to its end. State may have changed, and there may be something to send."""
        ...

    def changes(self) -> Sequence[tuple[bytes, bytes | None]]:
        """Return the changelog writes since the last call."""
        ...


FoldFactory = Callable[[int], PartitionFold]
"""Makes the empty fold of a ledger partition."""


Faults = Callable[[str], None]
"""Called at the points of `FAULT_POINTS`, for tests that kill or freeze a process exactly there."""

BEFORE_CHECKPOINT = "before checkpoint"  # all emissions it covers are confirmed
AFTER_CHECKPOINT = "after checkpoint"  # it is durable, and the engine does not know yet
FAULT_POINTS = (BEFORE_CHECKPOINT, AFTER_CHECKPOINT)


def no_faults(_point: str) -> None:
    """The production value of `Faults`."""
