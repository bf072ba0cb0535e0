"""Publishers that dead letters fit through: a whole record of another topic, with headers.

A topic's limit is on compressed bytes. What somebody wrote compressed may be many times the limit when it is read, and
is written compressed again, by a publisher of its own: compressing costs CPU that the small records need not pay.
"""

from __future__ import annotations

from amends.kafka.records import Headers
from amends.kafka.settings import KafkaSettings

LETTER_BYTES_MAX = 2_097_152
"""What a dead-letter topic takes: a whole record, and headers. More than the client lets through by default."""
PLAIN_BYTES_MAX = 1_572_864
"""A letter over this was compressed when it was read; headers that are added fit beside one below it."""
_CLIENT_BYTES_MAX = 1_000_000_000  # the client judges the size before it compresses


def letting_through(kafka: KafkaSettings) -> KafkaSettings:
    """Return the settings of a publisher that letters up to `PLAIN_BYTES_MAX` fit through."""
    options = {"message.max.bytes": str(LETTER_BYTES_MAX), **kafka.options}
    return kafka.model_copy(update={"options": options})


def compressing(kafka: KafkaSettings) -> KafkaSettings:
    """Return the settings of a publisher that larger letters fit through."""
    options = {**kafka.options, "message.max.bytes": str(_CLIENT_BYTES_MAX), "compression.type": "zstd"}
    return kafka.model_copy(update={"options": options})


def is_large(key: bytes | None, value: bytes | None, headers: Headers) -> bool:
    """Tell whether a letter must be compressed."""
    size = len(key or b"") + len(value or b"")
    return size + sum(len(name) + len(content or b"") for name, content in headers) > PLAIN_BYTES_MAX
