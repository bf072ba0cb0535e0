"""Other processes that may run the same workflow: what of the ledger has to be read because of them.

One that resumes a workflow does not know whether the process before it is gone, and one that is resumed by another
learns of it from the echo. Who has written nothing for a lease is taken to be gone (A1): nothing is read any more,
until the echo tells of the next.
"""

from __future__ import annotations

from amends.producers import clock
from amends.producers.ledger import History
from amends.schemas.facts import Party, StepEvent, WorkflowEvent


class Others:
    """Not locked: the caller holds the scope's lock.

    Attributes:
        read_to: up to there, all that others wrote is known.
    """

    def __init__(self, instance: str, lease_ms: int, started_offset: int) -> None:
        self.read_to = started_offset
        self._instance = instance
        self._lease_ms = lease_ms
        self._answered = started_offset
        self._seen_at_ms: int | None = None  # a sign of another, by the clock that counts sleep; None: there is none
        self._resumed = False

    def may_write(self) -> bool:
        """Whether something may stand on the ledger that another process wrote."""
        return self._seen_at_ms is not None

    def heard(self, answers_offset: int, *, resumed: bool) -> None:
        """An echo came, which answers the workflow STARTED at `answers_offset`."""
        if resumed and not self._resumed:
            self._resumed, self._seen_at_ms = True, clock.elapsed_ms()
        if answers_offset > self._answered:
            if self._seen_at_ms is None:
                self.read_to = answers_offset
            self._answered, self._seen_at_ms = answers_offset, clock.elapsed_ms()

    def written(self, history: History, to_offset: int) -> History:
        """Take what was read up to `to_offset`; return what of it others wrote, or decided."""
        theirs = tuple((offset, fact) for offset, fact in history if not self._is_ours(fact))
        now_ms = clock.elapsed_ms()
        if any(isinstance(fact, StepEvent | WorkflowEvent) and fact.writer is Party.AGENT for _, fact in theirs):
            self._seen_at_ms = now_ms
        elif self._seen_at_ms is not None and now_ms - self._seen_at_ms > self._lease_ms:
            self._seen_at_ms = None
        self.read_to = max(self.read_to, to_offset)
        return theirs

    def _is_ours(self, fact: object) -> bool:
        if isinstance(fact, StepEvent):
            return fact.attempt.startswith(self._instance) and not fact.attempt[len(self._instance) :][:1].isalnum()
        return isinstance(fact, WorkflowEvent) and fact.instance == self._instance
