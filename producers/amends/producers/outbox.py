"""Facts that a workflow owes the ledger: written in the background, in order, until they stand there."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from amends.producers.effects import Acknowledged, Write
from amends.producers.ledger import OnWritten
from amends.schemas.facts import StepEvent, WorkflowEvent

logger = logging.getLogger(__name__)

Owed = StepEvent | WorkflowEvent

OWED_MAX = 10_000
"""An enforced workflow owes a handful: its calls wait. An observed one may outrun a ledger that is down."""


class Outbox:
    """One fact is under way at a time, so that a claim never overtakes what it depends on.

    A write that fails, or whose end is unknown, is made again: a fact names what it speaks of, so twice is once.
    """

    def __init__(self, send: Callable[[Owed, OnWritten], None], changed: Callable[[], None]) -> None:
        self._send = send
        self._changed = changed
        self._lock = threading.Lock()
        self._owed: deque[Owed] = deque()
        self._under_way = False
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._owed)

    def put(self, fact: Owed) -> None:
        """Owe `fact`. Never blocks."""
        with self._lock:
            if len(self._owed) >= OWED_MAX:
                self._dropped += 1
                if self._dropped == 1:
                    logger.error("workflow %s owes %d facts; further ones are lost", fact.workflow_id, OWED_MAX)
                return
            self._owed.append(fact)
        self.retry()

    def retry(self) -> None:
        """Send the oldest fact owed, unless one is under way. Called again from time to time."""
        with self._lock:
            if self._under_way or not self._owed:
                return
            self._under_way = True
            oldest = self._owed[0]
        self._send(oldest, self._written)

    def _written(self, write: Write) -> None:
        stands = isinstance(write, Acknowledged)
        with self._lock:
            self._under_way = False
            if stands:
                self._owed.popleft()
        if stands:
            self._changed()
            self.retry()
