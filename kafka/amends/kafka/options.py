"""Options of the Kafka client: which amends sets itself, which it refuses, and the sets each client starts from."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from amends.kafka.handles import Producer
from amends.kafka.secrets import is_secret
from amends.kafka.turned_away import turned_away

if TYPE_CHECKING:
    from amends.kafka.settings import KafkaSettings

Options = dict[str, Any]

SAY_AGAIN_S = 10.0


class _SayOnce(logging.Filter):
    """Lets one line of each kind through in a while: a client that can't connect says so many times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.getMessage().partition(" ")[0]
        if record.levelno >= logging.CRITICAL or time.monotonic() > self._said.get(kind, 0.0) + SAY_AGAIN_S:
            self._said[kind] = time.monotonic()
            return True
        return False


logger = logging.getLogger("amends.kafka.client")
"""Where the client's own words go."""
logger.addFilter(_SayOnce())

_ACKNOWLEDGED = "an acknowledged record must be on all replicas in sync, once and in order"
_PARTITIONER = "every client must put a key on the same partition"
_CHECKPOINT = "the protocol decides which offsets are committed, and when"
_ISOLATION = "records of an aborted checkpoint must not be read"
_DEADLINE = "the deadline of a write is set where the publisher is made"
_OWN = "amends gives each client its own"

REFUSED: Mapping[str, str] = {
    "acks": _ACKNOWLEDGED,
    "request.required.acks": _ACKNOWLEDGED,
    "enable.idempotence": _ACKNOWLEDGED,
    "retries": _ACKNOWLEDGED,
    "message.send.max.retries": _ACKNOWLEDGED,
    "partitioner": _PARTITIONER,
    "isolation.level": _ISOLATION,
    "enable.auto.commit": _CHECKPOINT,
    "auto.commit.enable": _CHECKPOINT,
    "auto.commit.interval.ms": _CHECKPOINT,
    "enable.auto.offset.store": _CHECKPOINT,
    "offset.store.method": _CHECKPOINT,
    "auto.offset.reset": "where a reader begins is decided by what it reads for",
    "delivery.timeout.ms": _DEADLINE,
    "message.timeout.ms": _DEADLINE,
    "enable.partition.eof": "the end of a partition must be reported",
    "enable.gapless.guarantee": "one record that can't be written must not stop the others",
    "allow.auto.create.topics": "a topic made by accident has the wrong layout",
    "group.protocol": "fencing by session and group metadata is tested with the classic protocol only",
    "partition.assignment.strategy": "partitions that are to move together must be assigned alike",
    "transactional.id": _OWN,
    "group.id": _OWN,
    "group.instance.id": _OWN,
    "statistics.interval.ms": "the publisher reads the statistics",
    "bootstrap.servers": "it has a setting of its own, bootstrap_servers",
    "metadata.broker.list": "it has a setting of its own, bootstrap_servers",
}


def check_options(options: Mapping[str, str], *, known_fields: Iterable[str] = ()) -> None:
    """Raise ValueError if an option breaks a promise, or if the client does not know it or its value."""
    for name in options:
        if name in REFUSED:
            raise ValueError(f"option {name} is refused: {REFUSED[name]}; remove it")
    if not options:
        return
    _check_that_security_is_used(options)
    # A client that is to have tokens asks for one at once: here it asks nobody.
    tried = {name: _NOBODY if name == TOKEN_ENDPOINT else value for name, value in options.items()}
    try:
        # The client itself is the list of what it knows. It connects to nothing without servers.
        Producer({**tried, "log_level": 0}, logger=_SILENT)
    except (KafkaException, TypeError, ValueError) as error:
        raise ValueError(_unknown(str(error), options, known_fields)) from None


TOKEN_ENDPOINT, _NOBODY = "sasl.oauthbearer.token.endpoint.url", "http://127.0.0.1:9/"


def _check_that_security_is_used(options: Mapping[str, str]) -> None:
    """Raise ValueError where the client would leave options aside without a word, and send what they protect openly."""
    protocol = options.get("security.protocol", "plaintext").upper()
    unused = [("SSL", "ssl.", "SSL, SASL_SSL"), ("SASL", "sasl.", "SASL_SSL, SASL_PLAINTEXT")]
    for part, beginning, ways in unused:
        named = sorted(name for name in options if name.startswith(beginning))
        if named and part not in protocol:
            raise ValueError(
                f"{', '.join(named)} would have no effect with security.protocol {protocol}: set "
                f"AMENDS_KAFKA__SECURITY_PROTOCOL to one with {part} ({ways})"
            )
    endpoint = options.get(TOKEN_ENDPOINT)
    if endpoint is not None and not endpoint.startswith(("https://", "http://")):
        raise ValueError(f"{TOKEN_ENDPOINT} must begin with https:// or http://")
    if "SASL" in protocol and not options.keys() & {"sasl.mechanism", "sasl.mechanisms"}:
        raise ValueError("sasl.mechanism is missing: set AMENDS_KAFKA__SASL_MECHANISM, such as SCRAM-SHA-512")


def _unknown(words: str, options: Mapping[str, str], known_fields: Iterable[str]) -> str:
    found = re.search(r'str="(.*)"', words)
    reason = found.group(1) if found else words
    for name, value in options.items():
        if is_secret(name) and value:
            reason = reason.replace(value, "********")
    unknown = re.search(r'No such configuration property: "([^"]+)"', reason)
    if not unknown:
        return f"the Kafka client refuses these options: {reason}"
    name = unknown.group(1)
    near = get_close_matches(name.replace(".", "_"), list(known_fields), n=1)
    return f"neither a setting nor an option of the Kafka client: {name}" + (
        f"; did you mean {near[0]}?" if near else ""
    )


_SILENT = logging.getLogger("amends.kafka.client.trial")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


def common_options(settings: KafkaSettings) -> Options:
    """Return what every client starts from."""
    return {
        "client.id": "amends",
        "reconnect.backoff.ms": 50,
        # The default of 10 s kept a producer away for 8 s after the broker was back.
        "reconnect.backoff.max.ms": 1_000,
        "socket.keepalive.enable": True,
        "log.connection.close": False,
        # A topic that does not exist is said so after this, in place of 30 s.
        "topic.metadata.propagation.max.ms": 3_000,
        **settings.options,
        "bootstrap.servers": settings.bootstrap_servers,
        "error_cb": turned_away.hear,
    }


def producer_options(settings: KafkaSettings, *, deadline_ms: int, queue_max: int) -> Options:
    """Return the options of a producer whose acknowledgements can be believed."""
    return {
        "linger.ms": 0,  # best for latency and for confirmed throughput alike
        "queue.buffering.max.kbytes": 262_144,
        "request.timeout.ms": max(1, min(30_000, deadline_ms // 2)),
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 500,
        **common_options(settings),
        # A request costs the embedded broker fifty times what a record does: what comes during one goes with the next.
        **({"max.in.flight.requests.per.connection": 1} if settings.embedded else {}),
        "queue.buffering.max.messages": queue_max,
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "delivery.timeout.ms": deadline_ms,
    }


def transaction_options(settings: KafkaSettings, *, transactional_id: str, timeout_ms: int) -> Options:
    """Return the options of a producer that writes checkpoints."""
    return {
        **producer_options(settings, deadline_ms=timeout_ms, queue_max=1_000_000),
        # With the default of 100 each of two transactions back to back takes 100 ms.
        "retry.backoff.ms": 1,
        "retry.backoff.max.ms": 5,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
    }


def consumer_options(settings: KafkaSettings, *, group: str, fetch_wait_ms: int | None = None) -> Options:
    """Return the options of a consumer.

    `fetch_wait_ms`: 10 for readers that jump about (a seek waits for the fetch that is under way). On the embedded
    broker it is one for all: see `EMBEDDED_FETCH_WAIT_MS`.
    """
    options: Options = {
        "queued.max.messages.kbytes": 65_536,
        **common_options(settings),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
    }
    if settings.embedded:
        fetch_wait_ms = EMBEDDED_FETCH_WAIT_MS
    if fetch_wait_ms is not None:
        options["fetch.wait.max.ms"] = fetch_wait_ms
    return options


EMBEDDED_FETCH_WAIT_MS = 30
"""A fetch of the embedded broker does not wake on new data, so it must be short. But what is not found in that time is
not returned, and every batch of a partition is looked through: with 2 ms one of 4,000 batches is not read any more."""
