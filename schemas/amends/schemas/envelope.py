"""Headers of a record: CloudEvents in binary mode, and the trace it belongs to.

The value is never wrapped: `ce_*` headers stand beside it (CloudEvents Kafka protocol binding 1.0), so that meshes can
route records and Kafka tools still see plain Avro. Where a schema registry is in use, a header names the schema, too
(`amends.schemas.framing`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from amends.schemas.codec import Record, schema_named
from amends.schemas.framing import SCHEMA_HEADER

Headers = list[tuple[str, bytes]]

CONTENT_TYPE = b"application/avro"


@lru_cache(maxsize=1_000)
def _constant(record: str, source: str, schema: bytes) -> tuple[tuple[str, bytes], ...]:
    constant = (
        ("ce_specversion", b"1.0"),
        ("ce_source", source.encode()),
        ("ce_type", b"amends." + record.encode() + b".v1"),
        ("content-type", CONTENT_TYPE),
    )
    return (*constant, (SCHEMA_HEADER, schema)) if schema else constant


@lru_cache(maxsize=1_000)
def _second(time_s: int) -> bytes:
    return datetime.fromtimestamp(time_s, UTC).replace(tzinfo=None).isoformat().encode()


def _time(time_ms: int) -> bytes:
    # Many facts are of one second, few of one millisecond.
    time_s, rest_ms = divmod(time_ms, 1_000)
    return b"%b.%03d000+00:00" % (_second(time_s), rest_ms) if rest_ms else _second(time_s) + b"+00:00"


def headers_of(record: Record, *, source: str, event_id: str, time_ms: int | None = None) -> Headers:
    """Return the headers of `record`.

    Args:
        source: who wrote it, a URI reference such as `/amends/producers/<instance>`.
        event_id: unique within the source.
        time_ms: the writer's clock; None leaves `ce_time` out.
    """
    headers: Headers = [
        *_constant(type(record).__name__, source, schema_named(type(record))),
        ("ce_id", event_id.encode()),
    ]
    if time_ms is not None:
        headers.append(("ce_time", _time(time_ms)))
    traceparent = getattr(record, "traceparent", None)
    if traceparent:
        headers.append(("traceparent", traceparent.encode()))
    return headers
