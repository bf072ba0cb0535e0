"""Bytes of records: Avro single-object encoding (`C3 01`, CRC-64-AVRO fingerprint of the writer's schema, body).

A record names its own schema, so no registry is needed to read the ledger; every released schema is packaged, and an
older record is resolved to the current one. Where the process has a schema registry (`use_framing`), values of topics
are written in its framing (`00` and a 4-byte id) instead; readers take both, side by side. Status-like fields are
strings on the wire: a value this code does not know makes the record unreadable, never some other status.
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
from amends.schemas.framing import FRAME_BYTES, SCHEMA_HEADER, Framing, Headed, framed_id
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

ON_TOPICS: tuple[type[Record], ...] = tuple(record for record in RECORDS if record is not Contract)
"""Records that are values of topics; a contract is a field of others, and is never framed."""

_SINGLE_OBJECT = b"\xc3\x01"
_HEADER_BYTES = 10


A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T", bound=Record)


def _once(function: Callable[[A], R]) -> Callable[[A], R]:
    """`functools.cache` that keeps the signature: type checkers do not see that classes can be hashed."""
    return cache(function)


class UnreadableRecord(ValueError):  # noqa: N818 - what the record is, not that an error occurred
    """Bytes that are no record we know: not Avro, an unknown schema, or a value of a future version."""


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


_framing: Framing | None = None


def use_framing(framing: Framing | None) -> Framing | None:
    """Make `framing` this process's schema registry, None for none; return the one before.

    One for the process, as the packaged schemas are: what an id means does not depend on who reads it.
    """
    global _framing
    before, _framing = _framing, framing
    return before


def schema_named(record: type[Record]) -> bytes:
    """Return what the header of a record says of its schema (`SCHEMA_HEADER`); nothing where there is no registry."""
    return b"" if _framing is None else _fingerprint_text(record)


@_once
def _fingerprint_text(record: type[Record]) -> bytes:
    return fingerprint_of(schema_of(record)).hex().encode()


def encode(record: Record, timestamp_ms: int | None = None) -> bytes:
    """Return the bytes of `record`, with `timestamp_ms` in place of its own if it is given.

    Raises:
        TypeError, AttributeError, KeyError, ValueError: a field is not of its type, a bug of the caller.
    """
    header, write = _writer(type(record))
    return header + (write(record) if timestamp_ms is None else write(record, timestamp_ms))


def encode_value(record: Record, timestamp_ms: int | None = None) -> bytes:
    """As `encode`, for the value of a topic: in the framing of this process's schema registry where its ids are known.

    Never asks the registry.
    """
    header, write = _writer(type(record))
    if _framing is not None:
        header = _framing.frames.get(type(record), header)
    return header + (write(record) if timestamp_ms is None else write(record, timestamp_ms))


def decode(data: bytes | None, stored: Headed | None = None) -> Record:
    """Return the record in `data`.

    Args:
        stored: the record as it stands on its topic, whose value `data` is. Where `data` is in a registry's framing
            and the id is not known, its headers may name the schema; else the registry is asked, if there is one.

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
        read, record = _framed(data, stored)
        at = FRAME_BYTES
    value: Record
    try:
        value, end = read(data, at)
    except Exception as error:  # bytes from anywhere: many kinds are raised, and all mean the same here
        raise UnreadableRecord(f"not a {record.__name__} this version can read: {error}") from error
    if end != len(data):
        raise UnreadableRecord(f"a {record.__name__} of {end} bytes in a value of {len(data)}")
    return value


def _framed(data: bytes, stored: Headed | None) -> tuple[Reader, type]:
    """Return the reader of a record in a registry's framing."""
    number = framed_id(data)
    if number is None:
        raise UnreadableRecord("neither Avro single-object encoding nor a registry's framing")
    found = _framing.known.get(number) if _framing is not None else None
    if found is None and stored is not None:
        found = _named(stored)
    return found or _looked_up(number, _framing)


def _named(stored: Headed) -> tuple[Reader, type] | None:
    """Return the reader of the schema that the record's writer named."""
    text = next((value for name, value in stored.headers if name == SCHEMA_HEADER), b"")
    try:
        return _readers().get(bytes.fromhex(text.decode("ascii")))
    except ValueError:
        return None


def _looked_up(number: int, framing: Framing | None) -> tuple[Reader, type]:
    if framing is None:
        raise UnreadableRecord(f"schema {number} of a registry, and AMENDS_SCHEMA_REGISTRY__URL names none")
    try:
        schema = framing.look_up(number)
    except Exception as error:
        raise UnreadableRecord(f"schema {number} could not be looked up: {error}") from error
    if schema is None:
        raise UnreadableRecord(f"schema {number} is none that the registry knows")
    found = framing.known[number] = _reader_of(number, schema)
    return found


def _reader_of(number: int, schema: Mapping[str, Any]) -> tuple[Reader, type]:
    name = str(schema.get("name", "")).rpartition(".")[2]
    record = _BY_NAME.get(name)
    if record is None:
        raise UnreadableRecord(f"schema {number} is of {name!r}, which is no record of amends")
    try:
        parsed = fastavro.parse_schema(dict(schema))
        ours = _readers().get(fingerprint_of(schema))
    except Exception as error:
        raise UnreadableRecord(f"schema {number} is no Avro schema: {error}") from error
    return ours or (resolved.reader_of(record, parsed, _parsed(record)), record)


def decode_as(record: type[T], data: bytes | None, stored: Headed | None = None) -> T:
    """Return the record in `data`, which must be a `record`. `stored`: as `decode` has it.

    Raises:
        UnreadableRecord: it is not readable, or it is another record.
    """
    found = decode(data, stored)
    if not isinstance(found, record):
        raise UnreadableRecord(f"a {type(found).__name__} where a {record.__name__} is wanted")
    return found
