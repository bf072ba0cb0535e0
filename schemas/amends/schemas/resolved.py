"""Records of older schemas, and of a registry's: fastavro resolves them to the current one, this makes the model."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache
from io import BytesIO
from types import UnionType
from typing import Any

import fastavro


def reader_of(record: type, writer_schema: Any, reader_schema: Any) -> Callable[[bytes, int], tuple[Any, int]]:
    """Return what reads a `record` written with another schema than the current one. It may raise anything."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        body = BytesIO(data)
        body.seek(at)
        value = fastavro.schemaless_reader(body, writer_schema, reader_schema)
        return _model(record, typing.cast("dict[str, Any]", value)), body.tell()

    return read


def _model(record: type, value: dict[str, Any]) -> Any:
    for name, maker in _makers(record):
        value[name] = maker(value[name])
    return record(**value)


@cache
def _makers(record: type) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    hints = typing.get_type_hints(record)
    made = ((field.name, _maker(hints[field.name])) for field in dataclasses.fields(record))
    return tuple((name, maker) for name, maker in made if maker is not None)


def _maker(hint: Any) -> Callable[[Any], Any] | None:
    """Return what turns fastavro's value of a field into the model's, or None where they are the same."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, UnionType):
        (inner,) = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        maker = _maker(inner)
        return None if maker is None else lambda value: None if value is None else maker(value)
    if origin is tuple:
        item = _maker(typing.get_args(hint)[0])
        return tuple if item is None else lambda values: tuple(item(value) for value in values)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return typing.cast("Callable[[Any], Any]", hint)
    if dataclasses.is_dataclass(hint):
        return lambda value: _model(typing.cast(type, hint), value)
    return None
