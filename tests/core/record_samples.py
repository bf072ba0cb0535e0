"""Records of every kind for tests: any that can be (hypothesis), and two fixed ones of each class."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from io import BytesIO
from typing import Any

import fastavro
from hypothesis import strategies as st

from amends.schemas.codec import RECORDS, Record, schema_of

_LONGS = st.integers(min_value=-(2**63), max_value=2**63 - 1)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def any_record(*kinds: type[Record]) -> st.SearchStrategy[Any]:
    """Return a strategy for any record of `kinds`, or of all."""
    return st.one_of([_model(kind) for kind in kinds or RECORDS])


def _model(kind: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: _value(hints[field.name]) for field in dataclasses.fields(kind)})


def _value(hint: Any) -> st.SearchStrategy[Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.none() | _value(next(arg for arg in args if arg is not type(None)))
    if origin is tuple:
        return st.lists(_value(args[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(_TEXTS, _TEXTS, max_size=3)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if dataclasses.is_dataclass(hint):
        return _model(typing.cast(type, hint))
    return {str: _TEXTS, int: _LONGS, bool: st.booleans(), bytes: st.binary(max_size=200)}[hint]


def full(kind: type) -> Any:
    """Return a record in which every field is set to something of its own; the same in every process."""
    hints = typing.get_type_hints(kind)
    fields = enumerate(dataclasses.fields(kind))
    return kind(**{field.name: _fixed(hints[field.name], field.name, index) for index, field in fields})


def least(kind: type) -> Any:
    """Return a record of which only what must be is set."""
    hints = typing.get_type_hints(kind)
    wanted = [
        (index, field.name)
        for index, field in enumerate(dataclasses.fields(kind))
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return kind(**{name: _fixed(hints[name], name, index) for index, name in wanted})


def _fixed(hint: Any, name: str, index: int) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _fixed(next(arg for arg in args if arg is not type(None)), name, index)
    if origin is tuple:
        return (_fixed(args[0], f"{name}-1", index), _fixed(args[0], f"{name}-2", index + 1))
    if origin is Mapping:
        return {f"{name}-ä": "ü", "b": str(index)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[index % len(list(hint))]
    if dataclasses.is_dataclass(hint):
        return full(typing.cast(type, hint))
    return {str: f"{name} – ✓ {index}", int: 3**index, bool: True, bytes: name.encode() + bytes([0, 255, index])}[hint]


def avro_body(record: Record, writer: Mapping[str, Any] | None = None, /, **changes: Any) -> bytes:
    """Return the body as fastavro, which shares no code with ours, writes it; `changes` replace fields."""
    out = BytesIO()
    value = {**_plain(record), **changes}
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(writer or schema_of(type(record)))), value)
    return out.getvalue()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
