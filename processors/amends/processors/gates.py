"""Gates: how many undos of a tool, or of a lane, a partition has under way at once, how many it begins a second, and
who waits for a place.

Rules
- An undo takes its place when it is commanded and gives it back when its attempt ended, or its run stopped before it.
- A gate that had nothing under way lets few undos through at first, and one more for each that took: a tool that is
  broken is found out by a few.
- Who waits is let through in the order in which the workflows turned, whenever they came to the gate: nobody starves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from amends.processors.breakers import CLOSED, Breaker, BreakerTerms
from amends.processors.slots import Slot
from amends.schemas.contract import UndoTerms

FIRST_PLACES = 16
"""Undos of a tool that are under way before one of them took."""

Turn = tuple[int, int]
"""When a workflow turned, and where it began: its turn in a queue."""

_numbers = count()


class Queue:
    """Slots that wait, by turn. Each once."""

    __slots__ = ("_heap", "_turns")

    def __init__(self) -> None:
        self._turns: dict[Slot, Turn] = {}
        self._heap: list[tuple[Turn, int, Slot]] = []  # an entry counts while its slot waits

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, slot: Slot, turn: Turn) -> None:
        if self._turns.get(slot) != turn:
            self._turns[slot] = turn
            heappush(self._heap, (turn, next(_numbers), slot))

    def discard(self, slot: Slot) -> None:
        self._turns.pop(slot, None)

    def is_before(self, turn: Turn) -> bool:
        """Whether somebody waits whose turn is sooner."""
        self._tidy()
        return bool(self._heap) and self._heap[0][0] < turn

    def take(self, *, by_arrival: bool = False) -> Slot | None:
        """Return whose turn it is, and let him wait no longer; None if nobody waits.

        Args:
            by_arrival: who has waited longest, not who turned first: it goes around among all.
        """
        if by_arrival:
            found = next(iter(self._turns), None)
            if found is not None:
                del self._turns[found]
            return found
        self._tidy()
        if not self._heap:
            return None
        slot = heappop(self._heap)[2]
        del self._turns[slot]
        return slot

    def _tidy(self) -> None:
        heap = self._heap
        while heap and self._turns.get(heap[0][2]) != heap[0][0]:
            heappop(heap)


@dataclass(slots=True)
class Rate:
    """So many a second, and at most a second's worth at once. It begins with nothing, so that restarts gain nothing."""

    per_s: float
    tokens: float = 0.0
    at_ms: int = 0

    def available(self, now_ms: int) -> int:
        """Return how many may begin now."""
        if self.at_ms == 0 or now_ms < self.at_ms:  # the first time, or a clock was put back
            self.at_ms = now_ms
        most = max(1.0, self.per_s)
        self.tokens = min(most, self.tokens + (now_ms - self.at_ms) * self.per_s / 1_000)
        self.at_ms = now_ms
        return int(self.tokens + 1e-9)

    def next_ms(self) -> int:
        """Return when one more may begin."""
        return self.at_ms + max(1, int((1.0 - self.tokens) * 1_000 / self.per_s + 0.999))


@dataclass(slots=True, eq=False)
class Gate:
    """Of a lane, or of a tool."""

    name: str
    places: int
    """Undos under way at most."""
    grows: bool = False
    """Whether it lets few through at first: a tool's, where there is a breaker."""
    rate: Rate | None = None
    lane: str = ""
    terms: UndoTerms | None = None
    """Of a tool: those whose bounds it has."""
    breaker: Breaker = CLOSED
    breaker_terms: BreakerTerms = field(default_factory=BreakerTerms)
    taken: int = 0
    queue: Queue = field(default_factory=Queue)
    called: Slot | None = None
    """Who was last called from the queue."""
    probe: tuple[Slot, int] | None = None
    """The undo that was let through an open breaker: its workflow, and the number of its step."""
    put_off: tuple[Slot, int] | None = None
    """The undo of these that waits itself: it was to be commanded again, and the breaker had opened anew."""
    _grown: int = 0

    def lets_through(self, now_ms: int, mine: tuple[Slot, int] | None, *, has_place: bool) -> bool:
        """Whether an undo may be commanded now.

        Args:
            mine: the undo in question; None: any other.
            has_place: it was commanded before, and is to be again.
        """
        if self.breaker.is_open:
            return now_ms >= self.breaker.retry_at_ms and (self.probe is None or self.probe == mine)
        if has_place:
            return True
        if self.taken >= self.places or (self.grows and self.taken >= FIRST_PLACES + self._grown):
            return False
        return self.rate is None or self.rate.available(now_ms) > 0

    def is_turn_of(self, slot: Slot, turn: Turn) -> bool:
        """Whether nobody goes before. Through an open breaker each goes in turn, so that none spends its budget on it
        alone."""
        if self.breaker.is_open:
            return self.called is slot or not self.queue
        return not self.queue.is_before(turn)

    def calls(self, now_ms: int) -> bool:
        """Whether one of those that wait may go on now."""
        return self.lets_through(now_ms, self.put_off, has_place=False)

    def call(self) -> Slot | None:
        """Return who is to go next, and let him wait no longer. While an undo is let through an open breaker nobody
        else is."""
        if self.breaker.is_open and self.probe is not None:
            self.called, self.put_off = self.probe[0], None
            self.queue.discard(self.called)
        else:
            self.called = self.queue.take(by_arrival=self.breaker.is_open)
        return self.called

    def next_ms(self, now_ms: int) -> int | None:
        """Return when time alone lets one of those that wait through; None if an undo must end first."""
        if not self.queue:
            return None
        if self.breaker.is_open:
            return None if self.probe not in (None, self.put_off) else self.breaker.retry_at_ms
        if self.lets_through(now_ms, None, has_place=False):
            return now_ms
        full = self.taken >= self.places or (self.grows and self.taken >= FIRST_PLACES + self._grown)
        return None if full or self.rate is None else self.rate.next_ms()

    def take(self) -> None:
        self.taken += 1
        if self.rate is not None:
            self.rate.tokens -= 1

    def give_back(self, *, took: bool) -> None:
        """An undo is under way no longer; `took` if that is because it closed."""
        self.taken -= 1
        if took:
            self._grown += 1
        if not self.taken and not self.queue:
            self._grown = 0

    def mended(self) -> None:
        """Its breaker closed: it begins with one, and grows."""
        self._grown = 1 - FIRST_PLACES
