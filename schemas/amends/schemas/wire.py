"""Avro's values as bytes: the pieces that `straight` puts records together from.

Readers take bytes from anywhere. They raise (IndexError, ValueError, UnicodeDecodeError) on what is not such a value,
never return a wrong one, and need time in proportion to the bytes: no count in the bytes makes them allocate ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

Writer = Callable[[Any], bytes]
Reader = Callable[[bytes, int], tuple[Any, int]]
"""Takes bytes and where the record begins; returns it and where it ended."""

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_VARINT_BYTES_MAX = 10
_FOUR_BYTES, _SIX_BYTES, _SEVEN_BYTES = 1 << 28, 1 << 35, 1 << 42  # the first numbers that take more, as many, more


def write_long(value: int) -> bytes:
    """Return `value` as Avro's zig-zag varint.

    Raises:
        ValueError: it does not fit in 64 bits.
    """
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise ValueError(f"{value} does not fit in 64 bits")
    rest = (value << 1) ^ (value >> 63)
    # Offsets, times and leases stand in every record: of up to four bytes, or of six, they are written without a loop.
    if rest < _FOUR_BYTES:
        if rest < 0x80:
            return bytes((rest,))
        if rest < 0x4000:
            return bytes((rest & 0x7F | 0x80, rest >> 7))
        if rest < 0x20_0000:
            return bytes((rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14))
        return bytes((rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14 & 0x7F | 0x80, rest >> 21))
    if _SIX_BYTES <= rest < _SEVEN_BYTES:
        low, high = rest & 0x1F_FFFF, rest >> 21
        return bytes(
            (
                low & 0x7F | 0x80,
                low >> 7 & 0x7F | 0x80,
                low >> 14 | 0x80,
                high & 0x7F | 0x80,
                high >> 7 & 0x7F | 0x80,
                high >> 14,
            )
        )
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


SMALL_END = 2_048
SMALL = [*(write_long(value) for value in range(SMALL_END)), write_long(-1)]
"""Varints of the numbers that occur most, lengths and counts; -1, an offset that is not known, is the last."""


def sized(raw: bytes) -> bytes:
    size = len(raw)
    return (SMALL[size] if size < SMALL_END else write_long(size)) + raw


def text(value: str) -> bytes:
    return sized(value.encode())


def write_map(value: Mapping[str, str]) -> bytes:
    if not value:
        return b"\x00"
    entries = b"".join([text(name) + text(item) for name, item in value.items()])
    return write_long(len(value)) + entries + b"\x00"


def write_array(values: tuple[Any, ...], item: Writer) -> bytes:
    if not values:
        return b"\x00"
    return write_long(len(values)) + b"".join([item(value) for value in values]) + b"\x00"


def more(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Return the rest of a varint whose first byte is `first`, not yet un-zig-zagged, and where it ended."""
    value, shift = first & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise ValueError("a number of more than ten bytes")
    if value >> 64:
        raise ValueError("a number of more than 64 bits")
    return value, at


def read_long(data: bytes, at: int) -> tuple[int, int]:
    raw, at = more(data, at + 1, data[at]) if data[at] > 0x7F else (data[at], at + 1)
    return (raw >> 1) ^ -(raw & 1), at


def read_text(data: bytes, at: int) -> tuple[str, int]:
    size, at = read_long(data, at)
    if size < 0:
        raise ValueError("a negative length")
    end = at + size
    return data[at:end].decode(), end


def _block(data: bytes, at: int) -> tuple[int, int]:
    """Return the count of the next block of an array or map, and where its items begin; 0 ends it."""
    count, at = read_long(data, at)
    if count < 0:  # a count with the block's size behind it, for readers that skip
        _, at = read_long(data, at)
        count = -count
    return count, at


def read_map(data: bytes, at: int) -> tuple[dict[str, str], int]:
    found: dict[str, str] = {}
    while True:
        count, at = _block(data, at)
        if count == 0:
            return found, at
        for _ in range(count):
            name, at = read_text(data, at)
            found[name], at = read_text(data, at)


def read_array(data: bytes, at: int, item: Reader) -> tuple[tuple[Any, ...], int]:
    found: list[Any] = []
    while True:
        count, at = _block(data, at)
        if count == 0:
            return tuple(found), at
        for _ in range(count):
            value, at = item(data, at)
            found.append(value)


class Members(dict[bytes, Any]):
    """An enum's members by the bytes of their values; another value is of a future version."""

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__((str(member.value).encode(), member) for member in kind)
        self.kind = kind

    def __missing__(self, raw: bytes) -> Any:
        raise ValueError(f"{raw.decode(errors='replace')!r} is no {self.kind.__name__}")
