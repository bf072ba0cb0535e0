"""Whether an engine that met a fault joins its group again, or ends because that would not help."""

from __future__ import annotations

from amends.kafka.errors import AccessRefused, GroupRefused, OwnershipLost, RecordGone, TopicsWrong
from amends.processors.engine import EngineError, RightMissingError
from amends.processors.engine_change import TwoEnginesError, two_engines_in_words
from amends.schemas.topics import TRANSACTIONS

STARTS_WITHOUT_CHECKPOINT_MAX = 20
WAIT_MS = 200
WAIT_MAX_MS = 5_000


class Rejoining:
    """Counts the starts between which no checkpoint was kept."""

    def __init__(self, instance_id: str | None, group: str) -> None:
        self._group = group
        self._instance_id = instance_id
        self._starts = 0
        self._kept = 0

    def after(self, fault: Exception, kept: int) -> int:
        """Return how long to wait before joining again, in ms. `kept`: checkpoints kept so far.

        Raises:
            EngineError: a person must mend it, or it was tried often enough.
        """
        if isinstance(fault, OwnershipLost) and "group.instance.id" in str(fault):
            raise EngineError(
                f"another process has the instance id {self._instance_id!r} too: give each its own ({fault})"
            ) from fault
        if isinstance(fault, AccessRefused):
            raise RightMissingError(str(fault)) from fault
        if isinstance(fault, GroupRefused):
            raise TwoEnginesError(two_engines_in_words(TRANSACTIONS, self._group)) from fault
        if isinstance(fault, TopicsWrong | RecordGone):
            raise EngineError(str(fault)) from fault
        self._starts = 1 if kept > self._kept else self._starts + 1
        self._kept = kept
        if self._starts > STARTS_WITHOUT_CHECKPOINT_MAX:
            raise EngineError(
                f"joined {self._starts} times without keeping one checkpoint; the last: {fault}"
            ) from fault
        return int(min(WAIT_MAX_MS, WAIT_MS * 2 ** (self._starts - 1)))
