"""What becomes of undos, as the breakers of their tools are told: at once, or when a pass over the ledger is adopted.

A fact that names a forgotten instance is folded for the first time by the pass that folds the instance again, beside
the partition. What it says of a tool counts all the same: which instances are held decides nothing.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from amends.processors.slots import Slot
from amends.processors.state import Step
from amends.schemas.contract import Contract
from amends.schemas.facts import Fact


class Hears(Protocol):
    """Who is told how undos end, and that people say that a tool works again."""

    def ended(
        self, slot: Slot, before: Step, after: Step, contract: Contract | None, fact: Fact, at_ms: int
    ) -> None: ...

    def mended(self, tool: str, by: str, at_ms: int) -> None: ...


class Ended(NamedTuple):
    """An undo ended, or changed."""

    slot: Slot
    before: Step
    after: Step
    contract: Contract | None
    fact: Fact
    at_ms: int


class Mended(NamedTuple):
    """A person says that a tool works again."""

    tool: str
    by: str
    at_ms: int


class Heard:
    """Keeps, for a partition to be told, what a pass folds for the first time: facts at or behind `since_offset`."""

    def __init__(self, since_offset: int) -> None:
        self.offset = -1
        """Of the record that is being folded."""
        self._since_offset = since_offset
        self._kept: list[Ended | Mended] = []

    def ended(self, slot: Slot, before: Step, after: Step, contract: Contract | None, fact: Fact, at_ms: int) -> None:
        if self.offset >= self._since_offset:
            self._kept.append(Ended(slot, before, after, contract, fact, at_ms))

    def mended(self, tool: str, by: str, at_ms: int) -> None:
        if self.offset >= self._since_offset:
            self._kept.append(Mended(tool, by, at_ms))

    def tell(self, hears: Hears) -> None:
        """Tell all that was kept, in the order of the ledger, once."""
        kept, self._kept = self._kept, []
        for told in kept:
            if isinstance(told, Mended):
                hears.mended(*told)
            else:
                hears.ended(*told)
