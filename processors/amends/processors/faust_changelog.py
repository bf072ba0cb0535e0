"""The changelog of the Faust engine: what its records say of themselves, and which of them count. Pure.

Nothing of it is written in a transaction, and a process that was replaced and does not know it yet may still write. So
each record carries a *mark* in a header: how far the ledger was folded when it was written, and which life of the state
it belongs to. A checkpoint is its changes and, once all of them are acknowledged, a *seal*: a record that says that
everything up to there is on the changelog.

State is a function of the ledger up to an offset, whoever folded it. Therefore

- what counts is told by the highest seal, and for each key by the record with the highest mark up to that seal,
  wherever either stands and whoever wrote it: a late record of a process that was replaced never wins, for its mark is
  lower, or it says what the ledger says;
- one thing changes without a fact: a workflow that was forgotten is folded again, and how far that has come no offset
  tells. So a key that the writer of the highest seal has written itself is as that one wrote it, whatever others wrote
  of it. And what an owner finds written by others beyond what counts (`Restored.contested`: half of a checkpoint that
  was not finished) it writes over in its first checkpoint; it writes there, too, what is being folded again. No two
  checkpoints of an owner have one rank, where the seal of the first would cover half of the second;
- a tombstone carries a mark like any record: an older state that lands behind it stays dropped;
- `--refold` begins a new *era*. What was written in an older one no longer counts, however high its mark.

Compaction keeps the last record of a key, not the one that counts. So where the two differ, the one that counts is to
be written again, as it is, before compaction can reach it (`Restored.again`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

HEADER = "amends-mark"
SEAL_KEY = b"\x00seal"
"""No workflow's id begins with NUL, and no other record of the state has this key."""
LEFT_KEY = b"\x00left"
"""On the changelog of any engine: another one has folded the ledger since then (`engine_change`)."""
_FORM = struct.Struct(">qqqq")

Value = bytes | None


class Rank(NamedTuple):
    """What is compared. `folded_to`: ledger offset of the last fact in it, -1 if there is none. `again`: how many
    checkpoints were cut there before, of a state that changed without a fact."""

    era: int
    folded_to: int
    again: int = 0

    def following(self, folded_to: int) -> Rank:
        """Return the rank of the checkpoint after this one, in the same era."""
        return Rank(self.era, folded_to, self.again + 1 if folded_to == self.folded_to else 0)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a record says of itself. `writer` tells the tenures apart."""

    rank: Rank
    writer: int

    def encode(self) -> bytes:
        return _FORM.pack(*self.rank, self.writer)

    @classmethod
    def decode(cls, data: bytes) -> Mark:
        """Raises ValueError."""
        try:
            *rank, writer = _FORM.unpack(data)
        except struct.error as error:
            raise ValueError(f"not a mark: {data!r}") from error
        return cls(Rank(*rank), writer)

    def headers(self) -> list[tuple[str, bytes]]:
        return [(HEADER, self.encode())]


def mark_of(headers: Iterable[tuple[str, bytes]]) -> Mark:
    """Return the mark in the headers of a record of the changelog. Raises ValueError: another program wrote it."""
    for name, data in headers:
        if name == HEADER:
            return Mark.decode(data)
    raise ValueError(f"a record without the header {HEADER}")


@dataclass(frozen=True, slots=True)
class Restored:
    """What a changelog partition says."""

    state: dict[bytes, bytes]
    sealed: Rank | None
    """The highest seal. None: there never was a checkpoint."""
    era_max: int
    """The highest era seen, finished or not; -1 if the changelog is empty."""
    keys: frozenset[bytes]
    """All keys that have a record, of whatever era."""
    again: list[tuple[bytes, Value, Mark]]
    """Records that count and are not the last of their key: to be written again."""
    contested: dict[bytes, Value] = field(default_factory=dict[bytes, Value])
    """Of keys that somebody wrote with a mark no lower than the record that counts, sealed or not: the value that
    counts. To be written over before another seal stands."""


class _Entry(NamedTuple):
    mark: Mark
    value: Value


@dataclass(slots=True)
class Restoring:
    """Takes the records of a changelog partition in their order."""

    era_max: int = -1
    _seal: Mark | None = None
    _last_seal: Mark | None = None
    _entries: dict[bytes, list[_Entry]] = field(default_factory=dict[bytes, list[_Entry]])
    _beaten: set[bytes] = field(default_factory=set[bytes])
    """Keys of which the last record does not count, and is not held."""

    def take(self, key: bytes, value: Value, mark: Mark) -> None:
        rank = mark.rank
        self.era_max = max(self.era_max, rank.era)
        if key == SEAL_KEY:
            self._last_seal = mark
            if self._seal is None or rank >= self._seal.rank:
                self._seal = mark
            return
        entries = self._entries.setdefault(key, [])
        entries.append(_Entry(mark, value))
        if len(entries) > 1:
            self._prune(key, entries)

    @property
    def sealed(self) -> Rank | None:
        """The highest seal so far."""
        return None if self._seal is None else self._seal.rank

    def _prune(self, key: bytes, entries: list[_Entry]) -> None:
        """Of the records that are sealed keep the highest of each writer: a later seal tells whose counts."""
        last, sealed = entries[-1], self.sealed
        if sealed is not None and (len(entries) > 2 or last.mark.rank <= sealed):
            highest: dict[int, _Entry] = {}
            for entry in entries:
                rank, other = entry.mark.rank, highest.get(entry.mark.writer)
                if sealed.era <= rank.era and rank <= sealed and (other is None or rank >= other.mark.rank):
                    highest[entry.mark.writer] = entry
            kept = {id(entry) for entry in highest.values()}
            entries[:] = [entry for entry in entries if id(entry) in kept or entry.mark.rank > sealed]
        if entries and entries[-1] is last:
            self._beaten.discard(key)
        else:
            self._beaten.add(key)

    def ended(self) -> Restored:
        """The partition was read to its end."""
        state: dict[bytes, bytes] = {}
        again: list[tuple[bytes, Value, Mark]] = []
        contested: dict[bytes, Value] = {}
        if self._seal is not None and self._seal is not self._last_seal:
            again.append((SEAL_KEY, b"", self._seal))
        for key, entries in self._entries.items():
            counts = self._that_counts(entries)
            if self._is_contested(entries, counts):
                contested[key] = None if counts is None else counts.value
            if counts is None:
                continue
            if counts is not entries[-1] or key in self._beaten:
                again.append((key, counts.value, counts.mark))
            if counts.value is not None:
                state[key] = counts.value
        return Restored(state, self.sealed, self.era_max, frozenset(self._entries), again, contested)

    def _is_contested(self, entries: list[_Entry], counts: _Entry | None) -> bool:
        sealed = self.sealed
        if sealed is None or (counts is not None and len(entries) == 1):
            return False
        marks = (entry.mark for entry in entries if entry.mark.rank.era == sealed.era)
        if counts is None:
            return any(True for _ in marks)
        return any(mark.rank >= counts.mark.rank and mark != counts.mark for mark in marks)

    def _that_counts(self, entries: list[_Entry]) -> _Entry | None:
        if self._seal is None:
            return None
        sealed, writer = self._seal.rank, self._seal.writer
        covered = [e for e in entries if e.mark.rank <= sealed and e.mark.rank.era == sealed.era]
        if len(covered) < 2:
            return covered[0] if covered else None
        return _highest(e for e in covered if e.mark.writer == writer) or _highest(covered)


def _highest(entries: Iterable[_Entry]) -> _Entry | None:
    """Return the one with the highest rank, of equal ones the last."""
    best: _Entry | None = None
    for entry in entries:
        if best is None or entry.mark.rank >= best.mark.rank:
            best = entry
    return best
