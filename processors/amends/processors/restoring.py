"""What every takeover of a partition does, whichever engine it is for: where to begin, and reading state without care
for the collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from amends.kafka.reader import PartitionReader
from amends.kafka.settings import KafkaSettings
from amends.processors.engine import EngineError, LedgerHoleError, PartitionFold
from amends.processors.tenure import hole_in_words

FETCH_AGAIN_MS = 5
"""A reader that has fetched ahead looks again after this. The client's default is a second: a million records took 10 s
in place of 3."""


class StateUnreadableError(EngineError):
    """The state of a partition is not one that this version can have written."""

    exit_code = 65


class InterruptedTakeoverError(Exception):
    """The process was told to stop while it restored."""


def first_offset(partition: int, kept: int | None, begins: int, ends: int) -> int:
    """Return the ledger offset that must come next.

    Args:
        kept: what comes after the last checkpoint; None: there is none, or it is to be left behind.
        begins, ends: of the ledger's partition.

    Raises:
        LedgerHoleError: facts that were not folded are gone.
    """
    if kept is None:
        return begins
    if kept < begins:
        raise LedgerHoleError(hole_in_words(partition, kept, begins))
    if kept > ends:
        raise LedgerHoleError(
            f"ledger partition {partition} ends at offset {ends}, but facts up to {kept - 1} were folded: the "
            "topic was deleted and made anew, or lost acknowledged records. Find out which; then start once "
            "with --refold to build the state from the ledger as it is now"
        )
    return kept


def recall(
    reader: PartitionReader,
    ledger: str,
    folds: Mapping[int, PartitionFold],
    begins: Mapping[int, int],
    progressed: Callable[[int], bool],
) -> None:
    """Tell folds whose state is built from a ledger that has forgotten its beginning what that holds, before it is
    folded: a reading of it more.

    Args:
        begins: where the ledger's partitions begin.
        progressed: see `takeover.Takeover`.

    Raises:
        InterruptedTakeoverError: `progressed` said so.
        KafkaFault: the broker did not do its part; all may be tried again.
    """
    forgot = [partition for partition in folds if begins[partition] > 0]
    if not forgot:
        return
    ends = reader.ends(ledger, forgot)
    for records in reader.read({place: begins[place.partition] for place in ends}, ends):
        for record in records:
            folds[record.partition].recall(record)
        if not progressed(len(records)):
            raise InterruptedTakeoverError


@contextmanager
def readable(partition: int) -> Iterator[None]:
    """Say in words that what was read inside is no state of ours. Raises StateUnreadableError."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise StateUnreadableError(
            f"the state of ledger partition {partition} can't be read ({type(error).__name__}: {error}): somebody else "
            "wrote to the changelog, or a newer version did. Start that version, or start once with --refold to build "
            "the state anew from the ledger"
        ) from error


def reading_fast(kafka: KafkaSettings) -> KafkaSettings:
    """Return the settings of a reader of whole changelogs."""
    return kafka.model_copy(update={"options": {"fetch.queue.backoff.ms": str(FETCH_AGAIN_MS), **kafka.options}})


@contextmanager
def without_collector() -> Iterator[None]:
    """Millions of new objects that all stay: the garbage collector would look at each of them again and again, for half
    of the time a restore takes."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
