"""When each of a workflow's unknown steps is due, asked again only where the answer may be another.

A fact changes one step, but the plan asks of all that are unknown when their probes are due, and the timers when they
leave the ladder. What was found of a step stays true while the step and what it was asked about stay the same, for a
span of time: only steps that changed, or whose span ended, are looked at again. Nothing of it is kept: a workflow built
anew looks at each step once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from amends.processors.windows import Timetable


class Due(NamedTuple):
    """What was found of a step at a time, true from `since_ms` until `until_ms` is reached."""

    at_ms: int | None  # None: not by time alone
    since_ms: int
    until_ms: int | None


NEVER = Due(None, 0, None)
_EMPTY: Final = Timetable()


class Agenda:
    """Steps by when they are due. It is brought up to date by `refresh`, before anything is asked of it."""

    __slots__ = ("_about", "_due", "_looked_at", "_since", "_stale", "_until", "known")

    def __init__(self) -> None:
        self._due = self._since = self._until = _EMPTY  # until a step is looked at: most are only touched, and dropped
        self.known: set[int] = set()
        """The steps that are of interest: of most workflows there are none."""
        self._stale: set[int] = set()
        self._looked_at: set[int] = set()
        self._about: object = None

    def touch(self, number: int) -> None:
        """A step is new here, or changed."""
        self.known.add(number)
        self._stale.add(number)

    def drop(self, number: int) -> None:
        """A step is of no interest any more."""
        self.known.discard(number)
        self._stale.discard(number)
        if number in self._looked_at:
            self._looked_at.discard(number)
            for table in (self._due, self._since, self._until):
                table.set(number, None)

    def refresh(self, now_ms: int, about: object, look: Callable[[int], Due]) -> None:
        """Look again where that may bring something else at `now_ms`.

        Args:
            about: what the answers depend on beside their steps and the time; another one than before: all are asked.
        """
        if about != self._about:
            self._stale.update(self.known)
            self._about = about
        while self._until.entries and self._until.entries[0][0] <= now_ms:
            self._reopen(self._until.entries[0][1])
        while self._since.entries and self._since.entries[-1][0] > now_ms:  # time went back
            self._reopen(self._since.entries[-1][1])
        if self._stale:
            if self._due is _EMPTY:
                self._due, self._since, self._until = Timetable(), Timetable(), Timetable()
            for number in self._stale:
                found = look(number)
                self._due.set(number, found.at_ms)
                self._since.set(number, found.since_ms or None)
                self._until.set(number, found.until_ms)
            self._looked_at |= self._stale
            self._stale.clear()

    def _reopen(self, number: int) -> None:
        self._stale.add(number)
        self._since.set(number, None)
        self._until.set(number, None)

    def ask_anew(self) -> None:
        """Forget what was put off."""
        self._stale.update(self.known)

    def put_off(self, number: int, at_ms: int) -> bool:
        """A step that is due at some time is not before `at_ms`, unless it changes; return whether it is at all."""
        if not self._due.has(number):
            return False
        self._due.set(number, at_ms)
        return True

    def due(self, now_ms: int) -> list[int]:
        """Return the steps that are due."""
        return [number for _, number in self._due.entries[: self._behind(now_ms)]]

    def next_ms(self, now_ms: int) -> int | None:
        """Return when the next one is due that isn't yet."""
        behind = self._behind(now_ms)
        return self._due.entries[behind][0] if behind < len(self._due.entries) else None

    def upcoming(self, now_ms: int) -> list[tuple[int, int]]:
        """Return the steps that are due, and the next one, each with its time."""
        return self._due.entries[: self._behind(now_ms) + 1]

    def first_ms(self) -> int | None:
        """Return when the first one is or was due."""
        return self._due.entries[0][0] if self._due.entries else None

    def _behind(self, now_ms: int) -> int:
        return bisect_right(self._due.entries, (now_ms + 1, -1))


NOTHING_DUE: Final = Agenda()
"""Of a workflow of which no step was ever unknown: most have no other, and two of their own would cost more than a fact
of theirs does. Nothing is put into it."""
