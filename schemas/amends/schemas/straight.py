"""Straight-line Avro for our own records: one writer and one reader function per class, generated from its types.

Why not fastavro alone: it takes and gives dicts and checks every union, which costs more than the bytes themselves
(measured for a StepEvent with 1 kB of output: 16 and 21 µs; these functions: about 5 and 6). Every fact is encoded
once and decoded by each reader of the ledger, so this is the hottest code there is. The bytes are the same as
fastavro's for the class's `.avsc`; tests compare the two for every record. Only the current schema is read here: an
older one is resolved by fastavro (`resolved`).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from types import UnionType
from typing import Any

from amends.schemas import wire
from amends.schemas.wire import Reader, Writer

RecordWriter = Callable[..., bytes]
"""Takes a record, and `timestamp_ms` or not."""

_PIECES = (
    "SMALL",
    "SMALL_END",
    "more",
    "read_array",
    "read_map",
    "write_array",
    "write_long",
    "write_map",
)


class _Source:
    """Lines of a function and the objects they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {name: getattr(wire, name) for name in _PIECES}

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def bind(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def compiled(self, name: str) -> Any:
        # As dataclasses does it: the text is made of our own classes' field names, nothing of it comes from outside.
        exec("\n".join(self.lines), self.names)  # noqa: S102
        return self.names[name]


def _optional(hint: Any) -> Any:
    """Return X of `X | None`, else None."""
    if typing.get_origin(hint) not in (typing.Union, UnionType):
        return None
    (inner,) = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    return inner


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def writer_of(record: type) -> RecordWriter:
    """Return the function that gives the Avro body of a `record`; with `timestamp_ms` given, as if that were its own.
    (A copy with another time would cost more than the bytes, and every fact of a compensator is stamped.)"""
    source, hints = _Source(), typing.get_type_hints(record)
    source.add(0, "def write(r, timestamp_ms=None):")
    for index, field in enumerate(dataclasses.fields(record)):
        source.add(1, f"v = r.{field.name}")
        if field.name == "timestamp_ms":
            source.add(1, "if timestamp_ms is not None:", "    v = timestamp_ms")
        inner = _optional(hints[field.name])
        if inner is None:
            source.add(1, f"b{index} = {_written(source, hints[field.name], 'v')}")
        else:
            source.add(1, f'b{index} = b"\\x00" if v is None else b"\\x02" + {_written(source, inner, "v")}')
    parts = ", ".join(f"b{index}" for index in range(len(dataclasses.fields(record))))
    source.add(1, f'return b"".join(({parts},))')
    return typing.cast(RecordWriter, source.compiled("write"))


def _written(source: _Source, hint: Any, value: str) -> str:
    """Return the expression for the bytes of `value`."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        item = source.bind(_item_writer(typing.get_args(hint)[0]))
        return f"(write_array({value}, {item}) if {value} else b'\\x00')"
    if origin is Mapping:
        return f"(write_map({value}) if {value} else b'\\x00')"
    if _is_enum(hint):
        return f"{source.bind({member: wire.text(member.value) for member in hint})}[{value}]"
    if dataclasses.is_dataclass(hint):
        return f"{source.bind(writer_of(typing.cast(type, hint)))}({value})"
    if hint is int:
        return f"(SMALL[{value}] if -1 <= {value} < SMALL_END else write_long({value}))"
    # Written out where it stands: a call of `text` costs as much as what it does.
    sized = "((SMALL[n] if (n := len(e)) < SMALL_END else write_long(n)) + e)"
    return {
        str: sized.replace("len(e)", f"len(e := {value}.encode())"),
        bytes: sized.replace("len(e)", f"len(e := {value})"),
        bool: f'(b"\\x01" if {value} else b"\\x00")',
    }[hint]


def _item_writer(hint: Any) -> Writer:
    return wire.text if hint is str else writer_of(hint)


def reader_of(record: type) -> Reader:
    """Return the function that reads a `record`'s Avro body."""
    source, hints = _Source(), typing.get_type_hints(record)
    source.add(0, "def read(data, at):")
    for index, field in enumerate(dataclasses.fields(record)):
        target, inner = f"f{index}", _optional(hints[field.name])
        if inner is None:
            _read(source, 1, target, hints[field.name])
            continue
        source.add(1, "n = data[at]", "at += 1", "if n == 2:")
        _read(source, 2, target, inner)
        source.add(1, "elif n == 0:", f"    {target} = None")
        source.add(1, "else:", f"    raise ValueError('no such branch of {field.name}')")
    _construct(source, record)
    return typing.cast(Reader, source.compiled("read"))


def _construct(source: _Source, record: type) -> None:
    """Add the lines that make the model. A frozen, slotted class is filled slot by slot: its own constructor does the
    same through `object.__setattr__`, in twice the time."""
    assert not hasattr(record, "__post_init__"), f"{record.__name__} would not be checked"
    source.add(1, f"m = {source.bind(object.__new__)}({source.bind(record)})")
    for index, field in enumerate(dataclasses.fields(record)):
        source.add(1, f"{source.bind(getattr(record, field.name).__set__)}(m, f{index})")
    source.add(1, "return m, at")


def _read(source: _Source, depth: int, target: str, hint: Any) -> None:
    """Add the lines that read a value of `hint` into `target`."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        item = source.bind(_item_reader(typing.get_args(hint)[0]))
        source.add(depth, "if data[at] == 0:", "    at += 1", f"    {target} = ()")
        source.add(depth, "else:", f"    {target}, at = read_array(data, at, {item})")
    elif origin is Mapping:
        source.add(depth, "if data[at] == 0:", "    at += 1", f"    {target} = {{}}")
        source.add(depth, "else:", f"    {target}, at = read_map(data, at)")
    elif dataclasses.is_dataclass(hint):
        source.add(depth, f"{target}, at = {source.bind(reader_of(typing.cast(type, hint)))}(data, at)")
    elif hint is bool:
        source.add(depth, f"{target} = {source.bind((False, True))}[data[at]]", "at += 1")
    else:
        source.add(depth, "n = data[at]", "at += 1")
        if hint is int:
            source.add(depth, "if n > 127:", "    n, at = more(data, at, n)", f"{target} = (n >> 1) ^ -(n & 1)")
        else:
            _read_sized(source, depth, target, hint)


def _read_sized(source: _Source, depth: int, target: str, hint: Any) -> None:
    is_text = hint is str
    if is_text:  # most texts of most facts are empty: what a field says only in some
        source.add(depth, "if n == 0:", f"    {target} = ''", "else:")
        depth += 1
    source.add(depth, "if n > 127:", "    n, at = more(data, at, n)")
    source.add(depth, "if n & 1:", "    raise ValueError('a negative length')", "e = at + (n >> 1)")
    if _is_enum(hint):
        source.add(depth, f"{target} = {source.bind(wire.Members(hint))}[data[at:e]]")
    else:
        source.add(depth, f"{target} = data[at:e]" + (".decode()" if is_text else ""))
    # A slice beyond the end is short, not an error: the next byte's index, or the caller's check of the end, finds it.
    source.add(depth, "at = e")


def _item_reader(hint: Any) -> Reader:
    return wire.read_text if hint is str else reader_of(hint)
