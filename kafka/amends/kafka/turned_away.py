"""What brokers last said when they turned a client of this process away while it ran.

Clients go on trying by themselves: a certificate is rotated, a password is corrected, and all goes on. Until then the
log and /healthz say why nothing moves. Nobody tells when a broker lets a client in again, so what was heard counts for
a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError

logger = logging.getLogger("amends.kafka.access")

COUNTS_MS = 40_000
"""A client says the same again after half a minute at the latest."""
SAY_AGAIN_S = 30.0

TURNED_AWAY = frozenset({
    KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM, KafkaError.ILLEGAL_SASL_STATE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
})  # fmt: skip
"""What a client says of a broker that answers, and does not let it in or lets it do too little."""


class TurnedAway:
    """Usable from any thread. `now_s`: a clock that never jumps."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._words = ""
        self._heard_at_s = self._said_at_s = float("-inf")

    def hear(self, error: KafkaError) -> None:
        """Take an error that a client reports; only those of `TURNED_AWAY` count."""
        if error.code() not in TURNED_AWAY:
            return
        now_s = self._now_s()
        with self._lock:
            new = now_s - self._said_at_s >= SAY_AGAIN_S
            self._words, self._heard_at_s = error.str(), now_s
            if new:
                self._said_at_s = now_s
        if new:
            logger.error("Kafka turns this process away, which goes on trying: %s", error.str())

    def forget(self) -> None:
        """Know nothing, as in a new process."""
        with self._lock:
            self._heard_at_s = self._said_at_s = float("-inf")

    def words(self) -> str:
        """Return what was heard lately, or nothing."""
        with self._lock:
            lately = self._now_s() - self._heard_at_s < COUNTS_MS / 1000
            return f"Kafka turns this process away: {self._words}" if lately else ""


turned_away = TurnedAway()
"""Of this process: a process has one Kafka."""
