"""The shared language: models and schemas are one thing, bytes are read for ever, and nothing else is ever raised."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.avro_of_models import schema
from tests.core.compatibility import SCHEMAS
from tests.core.record_samples import any_record, avro_body, full, least

from amends.schemas.codec import (
    RECORDS,
    Record,
    UnreadableRecord,
    decode,
    decode_as,
    encode,
    fingerprint_of,
    schema_of,
)
from amends.schemas.commands import Incident
from amends.schemas.facts import Resolution, StepEvent, Timeout, UndoEvent, WorkflowEvent
from amends.schemas.wire import write_long

HEADER_BYTES = 10


def names(records: tuple[type[Record], ...]) -> list[str]:
    return [record.__name__ for record in records]


# --- model and schema ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", RECORDS, ids=names(RECORDS))
def test_a_model_and_its_schema_are_one_thing_spelt_twice(record: type[Record]) -> None:
    told = "after adding a field: .venv/bin/python tests/core/avro_of_models.py schemas/amends/schemas/avro"
    assert schema_of(record) == schema(record), told


def test_every_schema_in_the_folder_is_a_record() -> None:
    assert {path.stem for path in SCHEMAS.glob("*.avsc")} == set(names(RECORDS))


@pytest.mark.parametrize("record", RECORDS, ids=names(RECORDS))
def test_no_schema_has_an_enum_or_a_union_that_an_old_reader_could_choke_on(record: type[Record]) -> None:
    def walk(node: Any) -> None:
        if isinstance(node, list):
            assert len(node) == 2, f"a union is null or something, in this order: {node}"
            assert node[0] == "null", f"a union is null or something, in this order: {node}"
            walk(node[1])
        elif isinstance(node, dict):
            assert node["type"] != "enum", "statuses are strings: a new one must not break an old reader's schema"
            for field in node.get("fields", ()):
                walk(field["type"])
            for inner in ("items", "values"):
                if inner in node:
                    walk(node[inner])

    walk(schema_of(record))


# --- round trips -----------------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(any_record())
def test_what_is_written_is_read(record: Record) -> None:
    assert decode(encode(record)) == record


@settings(max_examples=300, deadline=None)
@given(any_record())
def test_our_bytes_are_those_of_another_avro_library(record: Record) -> None:
    data = encode(record)
    assert data[:2] == b"\xc3\x01"
    assert data[2:HEADER_BYTES] == fingerprint_of(schema_of(type(record)))
    assert data[HEADER_BYTES:] == avro_body(record)


def test_numbers_of_every_length_are_those_of_another_avro_library() -> None:
    ends = {sign * (1 << bits) + by for bits in range(64) for sign in (1, -1) for by in (-1, 0, 1)}
    for value in sorted(end for end in ends if -(2**63) <= end < 2**63):
        expected = io.BytesIO()
        fastavro.schemaless_writer(expected, "long", value)
        assert write_long(value) == expected.getvalue(), value


@pytest.mark.parametrize("record", RECORDS, ids=names(RECORDS))
@pytest.mark.parametrize("make", [full, least])
def test_every_field_of_every_record_survives(record: type[Record], make: Any) -> None:
    assert decode(encode(make(record))) == make(record)


def test_a_block_with_its_size_before_it_is_read_too() -> None:
    # Avro lets a writer give an array's or map's block as a negative count and its size; others do.
    plain = encode(dataclasses.replace(least(Timeout), attributes={"a": "b"}))
    ours = b"\x02\x02a\x02b\x00"
    assert plain.endswith(ours)
    assert decode(plain.removesuffix(ours) + b"\x01\x08\x02a\x02b\x00") == decode(plain)


@pytest.mark.parametrize("wrong", [{"workflow_id": None}, {"epoch": "1"}, {"epoch": 2**63}, {"attempt": 3}])
def test_a_field_of_another_type_is_refused_when_it_is_written(wrong: dict[str, Any]) -> None:
    event = dataclasses.replace(least(StepEvent), **wrong)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        encode(event)


# --- bytes from anywhere ---------------------------------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode(data)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(RECORDS), st.binary(max_size=300))
def test_no_body_raises_anything_but_unreadable(kind: type[Record], body: bytes) -> None:
    try:
        found = decode(encode(full(kind))[:HEADER_BYTES] + body)
    except UnreadableRecord:
        return
    assert type(found) is kind


@pytest.mark.parametrize("record", RECORDS, ids=names(RECORDS))
def test_a_record_cut_anywhere_is_unreadable(record: type[Record]) -> None:
    data = encode(full(record))
    for end in range(len(data)):
        with pytest.raises(UnreadableRecord):
            decode(data[:end])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(RECORDS), st.data())
def test_a_record_with_a_flipped_bit_is_unreadable_or_a_record(kind: type[Record], data: st.DataObject) -> None:
    raw = bytearray(encode(full(kind)))
    at = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[at // 8] ^= 1 << at % 8
    with contextlib.suppress(UnreadableRecord):
        assert isinstance(decode(bytes(raw)), kind)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "tombstone"),
        (b"", "neither"),
        (b"{}", "neither"),
        (b"\xc3\x01", "fingerprint"),
        (b"\xc3\x01" + bytes(8), "newer version"),
        (b"\x00\x00\x00\x00\x07x", "schema 7 of a registry"),
        (encode(least(Timeout)) + b"\x00", "in a value of"),
        (encode(least(Timeout))[:HEADER_BYTES] + b"\xff" * 30, "more than ten bytes"),
        (encode(least(Timeout))[:HEADER_BYTES] + b"\x01", "negative length"),
        (encode(least(Timeout))[:HEADER_BYTES] + b"\x02\xff", "utf-8"),
    ],
)
def test_what_is_wrong_with_bytes_is_said(data: bytes | None, said: str) -> None:
    with pytest.raises(UnreadableRecord, match=said):
        decode(data)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (StepEvent, "status"),
        (StepEvent, "side_effect_classification"),
        (WorkflowEvent, "status"),
        (UndoEvent, "status"),
        (Resolution, "decision"),
        (Timeout, "kind"),
        (Incident, "state"),
    ],
)
def test_a_status_of_a_future_version_is_unreadable_and_never_some_other(kind: type[Record], field: str) -> None:
    record = least(kind)
    data = encode(record)[:HEADER_BYTES] + avro_body(record, **{field: "EVAPORATED"})
    with pytest.raises(UnreadableRecord, match="EVAPORATED"):
        decode(data)


def test_another_record_than_the_one_wanted_is_unreadable() -> None:
    data = encode(least(Timeout))
    assert decode_as(Timeout, data) == least(Timeout)
    with pytest.raises(UnreadableRecord, match="a Timeout where a StepEvent is wanted"):
        decode_as(StepEvent, data)
