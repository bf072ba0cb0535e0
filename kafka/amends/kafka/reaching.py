"""Whether the brokers answer, for `/healthz`: asked every few seconds, by a client and in a thread of its own.

A part whose brokers are away looks like one that has nothing to do: its clients go on trying, and what it last knew of
the ledger stands still. Nobody is served by it all the same, and starting it anew would not bring the brokers back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from confluent_kafka import KafkaException

from amends.kafka.handles import Producer
from amends.kafka.health import Health, HealthServer
from amends.kafka.options import common_options, logger
from amends.kafka.settings import KafkaSettings

ASK_EVERY_S = 5.0
ANSWER_WITHIN_S = 2.0
SILENT_MAX_MS = 30_000
"""Brokers that are silent for so long are away: a restart of one, or a new leader, takes less."""


class Reach:
    """Since when nobody has answered. Usable from any thread between `start` and `stop`.

    Args:
        ask: returns whether a broker answered. Called in a thread of ours, every `every_s` seconds.
        now_ms: of a clock that never jumps.
    """

    def __init__(
        self, ask: Callable[[], bool], *, every_s: float = ASK_EVERY_S, now_ms: Callable[[], int] | None = None
    ) -> None:
        self._ask = ask
        self._every_s = every_s
        self._now_ms = now_ms or _monotonic_ms
        self._answered_at_ms = self._now_ms()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amends-reach", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask no more. Returns within the time of one question."""
        self._stopping.set()
        self._thread.join(2 * ANSWER_WITHIN_S)

    def silent_ms(self) -> int:
        """Return for how long nobody has answered, as of the last question; 0: somebody did."""
        return self._now_ms() - self._answered_at_ms

    def judging(self, health: Callable[[], Health]) -> Callable[[], Health]:
        """Return `health`, with the brokers' silence as the reason where it knows of none."""

        def judged() -> Health:
            seen, silent_ms = health(), self.silent_ms()
            seen = replace(seen, detail={**seen.detail, "brokers_silent_ms": silent_ms})
            if silent_ms < SILENT_MAX_MS or not seen.healthy:
                return seen
            reason = (
                f"no broker has answered for {silent_ms // 1000} s: nothing is done until one does. See to "
                "them, to AMENDS_KAFKA__BOOTSTRAP_SERVERS and to the network between"
            )
            return replace(seen, healthy=False, reason=reason, waits=True)

        return judged

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._ask():
                self._answered_at_ms = self._now_ms()
            self._stopping.wait(self._every_s)


class Question:
    """Asks the brokers for the ledger's partitions. Owned by the thread that calls it."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._client: Producer | None = None

    def __call__(self) -> bool:
        if self._client is None:
            # What it has to say the part's other clients say, too.
            self._client = Producer({**common_options(self._settings), "log_level": 0}, logger=logger)
        self._client.poll(0)  # a client that has a token renews it there
        try:
            self._client.list_topics(self._settings.topics.ledger, timeout=ANSWER_WITHIN_S)
        except KafkaException:
            return False
        return True


class ReachingHealthServer(HealthServer):
    """A health server that asks the brokers while it runs.

    Args:
        health, metrics, host, port: as of HealthServer, which says what is raised.
    """

    def __init__(
        self,
        reach: Reach,
        health: Callable[[], Health],
        metrics: Callable[[], bytes] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        super().__init__(reach.judging(health), metrics, host=host, port=port)
        self._reach = reach

    def start(self) -> Self:
        self._reach.start()
        return super().start()

    def stop(self) -> None:
        super().stop()
        self._reach.stop()


def reach_of(settings: KafkaSettings) -> Reach:
    """Return what asks these brokers; it is not started."""
    return Reach(Question(settings))


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
