"""When a partition is to look at a workflow again: one time each, the last that was set."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from itertools import count

from amends.processors.slots import Slot


class Alarms:
    """Times of slots, the soonest first; of one time, the one that was set first.

    Nearly every fact puts the end of a lease off. So a slot keeps the entry it has in the heap until that comes to the
    top, and is entered anew only for an earlier time: the heap holds what is awaited, not every fact of the last lease.
    """

    __slots__ = ("_entered", "_heap", "_numbers", "_set")

    def __init__(self) -> None:
        self._set: dict[Slot, tuple[int, int]] = {}  # the time, and how many were set before it
        self._entered: dict[Slot, tuple[int, int]] = {}  # its entry; others of it in the heap count no more
        self._heap: list[tuple[int, int, Slot]] = []  # an entry is not later than the time set
        self._numbers = count()

    def set(self, slot: Slot, at_ms: int | None) -> None:
        """Ring for `slot` at a time, and at no other; None: never."""
        if at_ms is None:
            self._set.pop(slot, None)
            return
        before = self._set.get(slot)
        if before is not None and before[0] == at_ms:
            return
        made = self._set[slot] = (at_ms, next(self._numbers))
        entered = self._entered.get(slot)
        if entered is None or at_ms < entered[0]:
            self._entered[slot] = made
            heappush(self._heap, (*made, slot))

    def take(self, until_ms: int) -> Slot | None:
        """Return a slot whose time has come, once; None if there is none any more."""
        at_ms = self.next_ms()
        if at_ms is None or at_ms > until_ms:
            return None
        slot = heappop(self._heap)[2]
        del self._set[slot], self._entered[slot]
        return slot

    def next_ms(self) -> int | None:
        """Return when the next one rings."""
        heap = self._heap
        while heap:
            at_ms, number, slot = heap[0]
            entry, rings = (at_ms, number), self._set.get(slot)
            if self._entered.get(slot) != entry:
                heappop(heap)
            elif rings is None:
                heappop(heap)
                del self._entered[slot]
            elif rings != entry:  # it was put off
                self._entered[slot] = rings
                heapreplace(heap, (*rings, slot))
            else:
                return at_ms
        return None

    def later_than(self, at_ms: int) -> list[Slot]:
        """Return the slots that ring after `at_ms`."""
        return [slot for slot, (rings_ms, _) in self._set.items() if rings_ms > at_ms]
