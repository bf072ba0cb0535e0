"""Headers of every record: CloudEvents in binary mode, and the trace."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest
from tests.core.record_samples import least

from amends.schemas.codec import RECORDS, Record
from amends.schemas.envelope import headers_of
from amends.schemas.facts import StepEvent, StepStatus


def test_headers_are_cloud_events_in_binary_mode() -> None:
    event = dataclasses.replace(least(StepEvent), status=StepStatus.STARTED, traceparent="00-aa-bb-01")
    headers = dict(headers_of(event, source="/amends/producers/p1", event_id="p1:7", time_ms=1_780_000_000_123))
    assert headers == {
        "ce_specversion": b"1.0",
        "ce_id": b"p1:7",
        "ce_source": b"/amends/producers/p1",
        "ce_type": b"amends.StepEvent.v1",
        "ce_time": b"2026-05-28T20:26:40.123000+00:00",
        "content-type": b"application/avro",
        "traceparent": b"00-aa-bb-01",
    }


@pytest.mark.parametrize("record", RECORDS, ids=lambda kind: kind.__name__)
def test_every_record_has_headers_and_no_empty_one(record: type[Record]) -> None:
    headers = headers_of(least(record), source="s", event_id="e")
    assert {"ce_specversion", "ce_id", "ce_source", "ce_type", "content-type"} <= {name for name, _ in headers}
    assert all(isinstance(value, bytes) and value for _, value in headers)
    assert len({name for name, _ in headers}) == len(headers)


@pytest.mark.parametrize("time_ms", [0, 1, 999, 1_000, 1_779_999_999_000, 1_779_999_999_001])
def test_the_time_is_in_iso_8601(time_ms: int) -> None:
    found = dict(headers_of(least(StepEvent), source="/a", event_id="1", time_ms=time_ms))["ce_time"]
    assert found == datetime.fromtimestamp(time_ms / 1000, UTC).isoformat().encode()
