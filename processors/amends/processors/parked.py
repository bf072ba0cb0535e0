"""A workflow that is parked: a fact named an instance that was forgotten, and it is folded again from its start.

Rules
- What is parked is in the checkpoint: where the instance began, and the fact that named it. A new owner begins anew.
- While one instance of an id is parked, facts that do not name a held instance of the id wait, in order. They stand on
  the ledger: one that dies with the process's memory is read again, because a new owner reads up to where it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from amends.processors.emission import LedgerRecord

WAITING_MAX = 1_000
"""Records that wait in memory for one instance. Beyond them the ledger is read on instead."""


@dataclass(slots=True)
class Parked:
    """An instance that is being folded again."""

    workflow_offset: int
    """Where its STARTED stands. Of a child that its parent asks for nobody knows that: it is where the request is."""
    since_offset: int
    """The fact that named it. What of this id stands from here on and was not folded is folded after."""
    was_gone: bool = False
    """It is an incident: the ledger did not hold its start when it was looked for before."""
    from_ms: int | None = None
    """A child that its parent asks for: what was appended since then is read, to find it."""
    waiting: list[LedgerRecord] = field(default_factory=list[LedgerRecord])
    overflowed: bool = False

    def wait(self, record: LedgerRecord) -> None:
        """Keep a record for after."""
        if len(self.waiting) >= WAITING_MAX:
            self.overflowed = True
            self.waiting.clear()
        if not self.overflowed:
            self.waiting.append(record)
