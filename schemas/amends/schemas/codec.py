"""Bytes of records: Avro single-object encoding (`C3 01`, CRC-64-AVRO fingerprint of the writer's schema, body).

A record names its own schema, so no registry is needed to read the ledger; every released schema is packaged, and an
older record is resolved to the current one. Readers take a registry's framing (`00` and a 4-byte id) too, once a
`registered` look-up is given. Status-like fields are strings on the wire: a value this code does not know makes the
record unreadable, never some other status.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from amends.schemas import resolved, straight
from amends.schemas.commands import (
    DeadLetter,
    Incident,
    ProbeCommand,
    ResendCommand,
    UndoCommand,
    WorkflowEcho,
)
from amends.schemas.contract import Contract
from amends.schemas.facts import Carry, Resolution, StepEvent, Timeout, UndoEvent, WorkflowEvent
from amends.schemas.releases import released, released_versions
from amends.schemas.wire import Reader

Record = (
    StepEvent
    | WorkflowEvent
    | UndoEvent
    | Resolution
    | Timeout
    | Carry
    | UndoCommand
    | ProbeCommand
    | ResendCommand
    | WorkflowEcho
    | Incident
    | DeadLetter
    | Contract
)
RECORDS: tuple[type[Record], ...] = typing.get_args(Record)
_BY_NAME = {record.__name__: record for record in RECORDS}

_SINGLE_OBJECT = b"\xc3\x01"
_REGISTERED = 0x00
_HEADER_BYTES = 10
_FRAME_BYTES = 5


A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T", bound=Record)


def _once(function: Callable[[A], R]) -> Callable[[A], R]:
    """`functools.cache` that keeps the signature: type checkers do not see that classes can be hashed."""
    return cache(function)


class UnreadableRecord(ValueError):  # noqa: N818 - what the record is, not that an error occurred
    """Bytes that are no record we know: not Avro, an unknown schema, or a value of a future version."""


Registered = Callable[[int], Mapping[str, Any] | None]
"""Looks up a registry's schema id; None if it is not known."""


@_once
def schema_of(record: type[Record]) -> dict[str, Any]:
    """Return the current schema of `record`, as its `.avsc` has it."""
    text = (files("amends.schemas") / "avro" / f"{record.__name__}.avsc").read_text("utf-8")
    return typing.cast("dict[str, Any]", json.loads(text))


@_once
def _parsed(record: type[Record]) -> Any:
    return fastavro.parse_schema(schema_of(record))


def fingerprint_of(schema: Mapping[str, Any]) -> bytes:
    """Return the 8 bytes that name `schema` on the wire (CRC-64-AVRO of its canonical form, little endian)."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(dict(schema)), "CRC-64-AVRO"))


@cache
def _readers() -> dict[bytes, tuple[Reader, type[Record]]]:
    """Readers of every schema ever released, and of the current ones, by fingerprint."""
    known: dict[bytes, tuple[Reader, type[Record]]] = {}
    for version in released_versions():
        for name, schema in released(version).items():
            record = _BY_NAME.get(name)
            if record is not None:
                parsed = fastavro.parse_schema(dict(schema))
                known[fingerprint_of(schema)] = (resolved.reader_of(record, parsed, _parsed(record)), record)
    for record in RECORDS:  # last: a release with the current schema is read the fast way
        known[fingerprint_of(schema_of(record))] = (straight.reader_of(record), record)
    return known


@_once
def _writer(record: type[Record]) -> tuple[bytes, straight.RecordWriter]:
    return _SINGLE_OBJECT + fingerprint_of(schema_of(record)), straight.writer_of(record)


def encode(record: Record, timestamp_ms: int | None = None) -> bytes:
    """Return the bytes of `record`, with `timestamp_ms` in place of its own if it is given.

    Raises:
        TypeError, AttributeError, KeyError, ValueError: a field is not of its type, a bug of the caller.
    """
    header, write = _writer(type(record))
    return header + (write(record) if timestamp_ms is None else write(record, timestamp_ms))


def decode(data: bytes | None, *, registered: Registered | None = None) -> Record:
    """Return the record in `data`.

    Raises:
        UnreadableRecord: whatever is wrong with the bytes; nothing else is raised.
    """
    if data is None:
        raise UnreadableRecord("no value (a tombstone) where a record is wanted")
    if data[:2] == _SINGLE_OBJECT:
        found = _readers().get(data[2:_HEADER_BYTES])
        if found is None:
            raise UnreadableRecord(f"unknown schema fingerprint {data[2:_HEADER_BYTES].hex()}: a newer version?")
        read, record = found
        at = _HEADER_BYTES
    else:
        read, record = _framed(data, registered)
        at = _FRAME_BYTES
    try:
        value, end = read(data, at)
    except Exception as error:  # bytes from anywhere: many kinds are raised, and all mean the same here
        raise UnreadableRecord(f"not a {record.__name__} this version can read: {error}") from error
    if end != len(data):
        raise UnreadableRecord(f"a {record.__name__} of {end} bytes in a value of {len(data)}")
    return typing.cast(Record, value)


def _framed(data: bytes, registered: Registered | None) -> tuple[Reader, type[Record]]:
    """Return the reader of a record in a registry's framing."""
    if len(data) <= _FRAME_BYTES or data[0] != _REGISTERED:
        raise UnreadableRecord("neither Avro single-object encoding nor a registry's framing")
    number = int.from_bytes(data[1:_FRAME_BYTES], "big")
    try:
        schema = registered(number) if registered is not None else None
    except Exception as error:
        raise UnreadableRecord(f"schema {number} could not be looked up: {error}") from error
    if schema is None:
        raise UnreadableRecord(f"schema {number} of a registry this process does not know")
    name = str(schema.get("name", "")).rpartition(".")[2]
    record = _BY_NAME.get(name)
    if record is None:
        raise UnreadableRecord(f"schema {number} is of {name!r}, which is no record of amends")
    try:
        parsed = fastavro.parse_schema(dict(schema))
    except Exception as error:
        raise UnreadableRecord(f"schema {number} is no Avro schema: {error}") from error
    return resolved.reader_of(record, parsed, _parsed(record)), record


def decode_as(record: type[T], data: bytes | None, *, registered: Registered | None = None) -> T:
    """Return the record in `data`, which must be a `record`.

    Raises:
        UnreadableRecord: it is not readable, or it is another record.
    """
    found = decode(data, registered=registered)
    if not isinstance(found, record):
        raise UnreadableRecord(f"a {type(found).__name__} where a {record.__name__} is wanted")
    return found
