"""When a partition is to look at a workflow again: one time each, the last that was set."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from amends.processors.slots import Slot


class Alarms:
    """Times of slots, the soonest first."""

    __slots__ = ("_at_ms", "_heap", "_numbers")

    def __init__(self) -> None:
        self._at_ms: dict[Slot, int] = {}
        self._heap: list[tuple[int, int, Slot]] = []  # an entry counts if it is the time set
        self._numbers = count()

    def set(self, slot: Slot, at_ms: int | None) -> None:
        """Ring for `slot` at a time, and at no other; None: never."""
        if at_ms is None:
            self._at_ms.pop(slot, None)
        elif self._at_ms.get(slot) != at_ms:
            self._at_ms[slot] = at_ms
            heappush(self._heap, (at_ms, next(self._numbers), slot))

    def take(self, until_ms: int) -> Slot | None:
        """Return a slot whose time has come, once; None if there is none any more."""
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            at_ms, _, slot = heappop(heap)
            if self._at_ms.get(slot) == at_ms:
                del self._at_ms[slot]
                return slot
        return None

    def next_ms(self) -> int | None:
        """Return when the next one rings."""
        heap = self._heap
        while heap and self._at_ms.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def later_than(self, at_ms: int) -> list[Slot]:
        """Return the slots that ring after `at_ms`."""
        return [slot for slot, rings_ms in self._at_ms.items() if rings_ms > at_ms]
