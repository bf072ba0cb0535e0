"""The savepoints of one workflow, as its agent knows them, and which of its calls a turn condemned.

What a turn condemned is for the fold to say, and the echo tells it: the calls of an ended epoch whose STARTED stands
behind the savepoint. Here it decides only which call is met again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from amends.schemas.commands import EndedEpoch

IN_FLIGHT = 2**62
"""The offset of a fact whose acknowledgement has not come: behind all that are known."""


class Place(NamedTuple):
    """Where a fact stands, and of which epoch it is."""

    epoch: int
    offset: int


def is_condemned(places: Iterable[Place], turns: tuple[EndedEpoch, ...]) -> bool:
    """Whether one of these STARTED stands behind where a turn went back to."""
    return bool(turns) and any(p.epoch <= t.epoch and p.offset > t.offset for p in places for t in turns)


@dataclass(slots=True)
class _Savepoint:
    name: str
    place: Place
    counts: Counter[str] | None  # None: taken by an earlier instance, and not met yet
    written_ms: int = 0  # when its fact was made, by the clock of who made it


class Savepoints:
    """In the order they were taken. Not locked: the caller holds the scope's lock."""

    def __init__(self) -> None:
        self._taken: list[_Savepoint] = []
        self._met: Counter[str] = Counter()

    def names(self, turns: tuple[EndedEpoch, ...]) -> tuple[str, ...]:
        """Return the names that may be undone to, oldest first, each once."""
        return tuple(dict.fromkeys(s.name for s in self._standing(turns)))

    def remembered(self, name: str, place: Place, written_ms: int) -> None:
        """Take over a savepoint of an earlier instance. Of one that was written more than once the first counts, as
        in the fold, but where nothing stands between."""
        known = ((s.name, s.place.epoch, s.written_ms) for s in self._taken)
        if (name, place.epoch, written_ms) not in known:
            self._taken.append(_Savepoint(name, place, None, written_ms))

    def meet(self, name: str, turns: tuple[EndedEpoch, ...], counts: Counter[str]) -> bool:
        """Whether the savepoint that is taken now was taken at this place by an earlier instance."""
        number = self._met[name]
        self._met[name] = number + 1
        same = [s for s in self._standing(turns) if s.name == name]
        if number >= len(same):
            return False
        same[number].counts = Counter(counts)
        return True

    def kept(self, name: str, place: Place, counts: Counter[str]) -> None:
        """A savepoint was written."""
        self._taken.append(_Savepoint(name, place, Counter(counts)))

    def undone_to(self, turns: tuple[EndedEpoch, ...], started_offset: int, name: str) -> Counter[str] | None:
        """Forget what the turns condemned; return the counts of calls as they were where the last one went back to,
        None if they are not known here.

        Args:
            name: of the savepoint that it went back to. The fold may have moved it, over nothing, to a repeat of it.
        """
        self._taken = self._standing(turns)
        self._met = Counter(s.name for s in self._taken if s.counts is not None)
        if not turns or turns[-1].offset == started_offset:
            return Counter()
        found = next((s for s in reversed(self._taken) if s.name == name or s.place.offset == turns[-1].offset), None)
        return None if found is None or found.counts is None else Counter(found.counts)

    def _standing(self, turns: tuple[EndedEpoch, ...]) -> list[_Savepoint]:
        return [s for s in self._taken if not is_condemned((s.place,), turns)]
