"""Bytes of records: Avro single-object encoding (`C3 01`, CRC-64-AVRO fingerprint of the writer's schema, body).

A record names its own schema, so no registry is needed to read the ledger; every released schema is packaged, and an
older record is resolved to the current one. Readers take a registry's framing (`00` and a 4-byte id) too, once a
`registered` look-up is given. Status-like fields are strings on the wire: a value this code does not know makes the
record unreadable, never some other status.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from types import UnionType
from typing import Any, TypeVar

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

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

_SINGLE_OBJECT = b"\xc3\x01"
_REGISTERED = 0x00
_HEADER_BYTES = 10


class UnreadableRecord(ValueError):
    """Bytes that are no record we know: not Avro, an unknown schema, or a value of a future version."""


Registered = Callable[[int], Mapping[str, Any] | None]
"""Looks up a registry's schema id; None if it is not known."""


@cache
def schema_of(record: type[Record]) -> dict[str, Any]:
    """Return the current schema of `record`, as its `.avsc` has it."""
    text = (files("amends.schemas") / "avro" / f"{record.__name__}.avsc").read_text("utf-8")
    return typing.cast("dict[str, Any]", json.loads(text))


@cache
def _parsed(record: type[Record]) -> Any:
    return fastavro.parse_schema(schema_of(record))


def fingerprint_of(schema: Mapping[str, Any]) -> bytes:
    """Return the 8 bytes that name `schema` on the wire (CRC-64-AVRO of its canonical form, little endian)."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@cache
def _header(record: type[Record]) -> bytes:
    return _SINGLE_OBJECT + fingerprint_of(schema_of(record))


def _releases() -> list[Traversable]:
    folder = files("amends.schemas") / "avro" / "released"
    return [entry for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []


@cache
def _readers() -> dict[bytes, tuple[Any, type[Record]]]:
    """Every schema ever released, and the current ones, by fingerprint."""
    by_name = {record.__name__: record for record in RECORDS}
    known: dict[bytes, tuple[Any, type[Record]]] = {}
    for release in _releases():
        for file in release.iterdir():
            name = file.name.removesuffix(".avsc")
            if name in by_name:
                schema = json.loads(file.read_text("utf-8"))
                known[fingerprint_of(schema)] = (fastavro.parse_schema(schema), by_name[name])
    for record in RECORDS:
        known[fingerprint_of(schema_of(record))] = (_parsed(record), record)
    return known


# --- model <-> what fastavro takes ---------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in _names(type(value))}
    if type(value) is tuple:
        return [_plain(item) for item in value]
    return value


@cache
def _names(record: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(record))


@cache
def _nested(record: type) -> tuple[str, ...]:
    """Names of fields that hold a record or a tuple, which fastavro does not take as they are."""
    hints = typing.get_type_hints(record)
    return tuple(n for n in _names(record) if _maker(hints[n]) is not None and not _is_enum(hints[n]))


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _maker(hint: Any) -> Callable[[Any], Any] | None:
    """Return what turns fastavro's value of a field into the model's, or None where they are the same."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, UnionType):
        inner = [_maker(arg) for arg in typing.get_args(hint) if arg is not type(None)]
        makers = [maker for maker in inner if maker is not None]
        if not makers:
            return None
        only = makers[0]
        return lambda value: None if value is None else only(value)
    if origin is tuple:
        item = _maker(typing.get_args(hint)[0])
        return tuple if item is None else lambda values: tuple(item(value) for value in values)
    if _is_enum(hint):
        return typing.cast("Callable[[Any], Any]", hint)
    if dataclasses.is_dataclass(hint):
        return lambda value: _model(typing.cast(type, hint), value)
    return None


@cache
def _makers(record: type) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    hints = typing.get_type_hints(record)
    made = ((name, _maker(hints[name])) for name in _names(record))
    return tuple((name, maker) for name, maker in made if maker is not None)


def _model(record: type, value: dict[str, Any]) -> Any:
    for name, maker in _makers(record):
        value[name] = maker(value[name])
    return record(**value)


# --- bytes ----------------------------------------------------------------------------------------------------------


def encode(record: Record) -> bytes:
    """Return the bytes of `record`."""
    kind = type(record)
    value = {name: getattr(record, name) for name in _names(kind)}
    for name in _nested(kind):
        value[name] = _plain(value[name])
    out = BytesIO()
    out.write(_header(kind))
    fastavro.schemaless_writer(out, _parsed(kind), value)
    return out.getvalue()


def decode(data: bytes | None, *, registered: Registered | None = None) -> Record:
    """Return the record in `data`.

    Raises:
        UnreadableRecord: whatever is wrong with the bytes; nothing else is raised.
    """
    if data is None:
        raise UnreadableRecord("no value (a tombstone) where a record is wanted")
    writer, record, start = _writer(data, registered)
    body = BytesIO(data)
    body.seek(start)
    try:
        reader = _parsed(record)
        value = fastavro.schemaless_reader(body, writer, None if writer is reader else reader)
        return typing.cast(Record, _model(record, typing.cast("dict[str, Any]", value)))
    except Exception as error:  # bytes from anywhere: fastavro raises many kinds, and all mean the same here
        raise UnreadableRecord(f"not a {record.__name__} this version can read: {error}") from error


def _writer(data: bytes, registered: Registered | None) -> tuple[Any, type[Record], int]:
    if data[:2] == _SINGLE_OBJECT:
        found = _readers().get(data[2:_HEADER_BYTES])
        if found is None:
            raise UnreadableRecord(f"unknown schema fingerprint {data[2:_HEADER_BYTES].hex()}: a newer version?")
        return found[0], found[1], _HEADER_BYTES
    if len(data) > 5 and data[0] == _REGISTERED:
        number = int.from_bytes(data[1:5], "big")
        schema = registered(number) if registered is not None else None
        if schema is None:
            raise UnreadableRecord(f"schema {number} of a registry this process does not know")
        name = str(schema.get("name", "")).rpartition(".")[2]
        for record in RECORDS:
            if record.__name__ == name:
                return fastavro.parse_schema(dict(schema)), record, 5
        raise UnreadableRecord(f"schema {number} is of {name!r}, which is no record of amends")
    raise UnreadableRecord("neither Avro single-object encoding nor a registry's framing")


T = TypeVar("T", bound=Record)


def decode_as(record: type[T], data: bytes | None, *, registered: Registered | None = None) -> T:
    """Return the record in `data`, which must be a `record`.

    Raises:
        UnreadableRecord: it is not readable, or it is another record.
    """
    found = decode(data, registered=registered)
    if not isinstance(found, record):
        raise UnreadableRecord(f"a {type(found).__name__} where a {record.__name__} is wanted")
    return found
