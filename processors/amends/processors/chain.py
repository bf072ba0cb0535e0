"""The order of undoing where all steps stand in one: the case of `dependencies` that needs no graph.

It is asked of workflows of a few steps, whose policy undoes nothing side by side or of whose steps nobody looked what
they name. It costs a look at each step, and nothing is kept between two facts.
"""

from __future__ import annotations

from collections.abc import Iterable

from amends.processors.dependencies import Rank
from amends.processors.state import Step

STEPS_MAX = 32
"""Of workflows with more the order is kept, so that a fact costs what its own step costs."""


class Chain:
    """Steps in one order, each built on the one before.

    `ready` is the last step that is to be undone, as `Dependencies` has it.
    """

    def __init__(self, steps: Iterable[tuple[Step, bool, int]]) -> None:
        """Take all steps in order: (step, whether it is to be undone, when the window for that closes)."""
        self._base: dict[int, int] = {}
        self._ranks: dict[int, Rank] = {}  # of those that are to be undone
        self._held: set[int] = set()
        self.ready: dict[str, list[Rank]] = {}
        before = -1
        last: Step | None = None
        for step, pending, closes_at_ms in steps:
            self._base[step.number] = before
            before = step.number
            if pending:
                last = step
                self._ranks[step.number] = (closes_at_ms, -step.first_offset, step.number)
        if last is not None:
            self.ready[last.tool_name] = [self._ranks[last.number]]
            at = self._base[last.number]
            while at >= 0:
                self._held.add(at)
                at = self._base[at]

    def bases_of(self, number: int) -> tuple[int, ...]:
        """Return the step that this one was built on, if any."""
        base = self._base[number]
        return () if base < 0 else (base,)

    def is_pending(self, number: int) -> bool:
        return number in self._ranks

    def held_by(self, number: int) -> int:
        """Return how many of the nearest steps that were built on this one hold it."""
        return 1 if number in self._held else 0

    def rank_of(self, number: int) -> Rank:
        return self._ranks[number]
