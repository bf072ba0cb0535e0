"""Sends what the folds emit, as plain confirmed writes, and hands the confirmations back to the loop's thread."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from amends.kafka.letters import compressing, is_large, letting_through
from amends.kafka.publisher import NEWER, Ack, Publisher, WriteError
from amends.kafka.settings import KafkaSettings
from amends.processors.emission import Emission
from amends.processors.engine import EngineError, RightMissingError
from amends.processors.tenure import Tenure

logger = logging.getLogger(__name__)

REFUSED_FOR_GOOD = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD"})
"""Answers to an emission that would be the same the next time."""

GATHER_MS = 20
"""How much later confirmations may come, many at once: only checkpoints wait for them, and those come a
tenth of a second apart or more."""

NO_RIGHT = frozenset({"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"})


class EmissionLostError(Exception):
    """An emission was not confirmed. The fold thinks it was sent, so it begins again from its checkpoint."""


class Emitter:
    """Used by the loop's thread alone.

    Args:
        deadline_ms: an emission that is not confirmed by then is lost.
        queue_max: emissions that may be on their way at once.
    """

    def __init__(self, kafka: KafkaSettings, *, deadline_ms: int, queue_max: int) -> None:
        self._publisher = Publisher(
            letting_through(kafka), deadline_ms=deadline_ms, queue_max=queue_max, gather_ms=GATHER_MS
        )
        self._large = Publisher(compressing(kafka), deadline_ms=deadline_ms, queue_max=queue_max)  # opens at first use
        self._answers: deque[tuple[Tenure, int, Ack | WriteError]] = deque()
        self.unconfirmed = 0
        self.emitted = 0

    def send(self, tenure: Tenure, emissions: list[tuple[int, Emission]]) -> None:
        """Hand over what a tenure emits. Never blocks."""
        for number, emission in emissions:
            large = is_large(emission.key, emission.value, emission.headers)
            (self._large if large else self._publisher).send(
                emission.topic,
                key=emission.key,
                value=emission.value,
                partition=emission.partition,
                headers=emission.headers,
                on_done=partial(self._answered, tenure, number),
            )
        self.unconfirmed += len(emissions)
        self.emitted += len(emissions)

    def confirm(self, is_held: Callable[[Tenure], bool]) -> None:
        """Tell the tenures what was confirmed since the last call.

        Args:
            is_held: whether a tenure still counts; nobody waits for the emissions of one that was dropped.

        Raises:
            EmissionLostError: an emission was not confirmed in time; its partition must be folded again.
            EngineError: it never will be.
        """
        while self._answers:
            tenure, number, answer = self._answers.popleft()
            self.unconfirmed -= 1
            if isinstance(answer, Ack):
                tenure.confirm(number)
            elif answer.code == NEWER:  # an upgrade is under way: the older release would not have sent it either
                logger.warning("ledger partition %d: not sent, %s", tenure.partition, answer)
                tenure.confirm(number)
            elif is_held(tenure):
                raise _lost(tenure.partition, answer)

    def flush(self, deadline_ms: int) -> None:
        """Wait until all that was sent has its answer; `confirm` brings them."""
        self._publisher.flush(deadline_ms)
        self._large.flush(deadline_ms)

    def close(self) -> None:
        """Give up what is on its way, and end."""
        self._publisher.close(0)
        self._large.close(0)

    def _answered(self, tenure: Tenure, number: int, answer: Ack | WriteError) -> None:
        self._answers.append((tenure, number, answer))  # in a publisher's thread


def _lost(partition: int, answer: WriteError) -> Exception:
    if answer.code in REFUSED_FOR_GOOD:
        return EngineError(
            f"ledger partition {partition} emits a record that Kafka refuses for good: {answer}. Raise the topic's "
            "max.message.bytes; what was emitted before it is kept"
        )
    if answer.code in NO_RIGHT:
        return RightMissingError(
            f"ledger partition {partition} emits what this processor may not write: {answer}. `amends acls` prints "
            "what it needs; nothing is lost, the fact is folded again"
        )
    return EmissionLostError(f"an emission of ledger partition {partition} was not confirmed: {answer}")
