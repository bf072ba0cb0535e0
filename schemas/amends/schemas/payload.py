"""Payloads: UTF-8 JSON bytes of any Python object (the forms are in `payload_values`).

Promise: `encode_payload` returns bytes for whatever comes, so that no call is made whose outcome can't be recorded.
`canonical` is for digests: equal arguments have equal bytes, however they were spelt.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from typing import Any, cast

from pydantic_core import to_json

from amends.schemas.json_text import json_writer
from amends.schemas.payload_marks import Cut, NotKept, Opaque, SecretDigest, UnreadablePayload
from amends.schemas.payload_values import (
    DEPTH_MAX,
    FORM,
    from_json_value,
    is_plain,
    to_json_value,
)
from amends.schemas.slots import quick

__all__ = [
    "DEPTH_MAX",
    "Bounded",
    "Cut",
    "NotKept",
    "Opaque",
    "SecretDigest",
    "UnreadablePayload",
    "canonical",
    "canonical_digest",
    "contains_not_kept",
    "decode_payload",
    "decoded_form",
    "encode_bounded",
    "encode_payload",
    "snapshot",
]

CUT_BYTES_MIN = 256
_INTEGER_DIGITS_MAX = 400  # a number with more digits is written by digits and exponent, not in full


def encode_payload(value: object) -> bytes:
    """Return the bytes of any object. Never raises for what the object is."""
    try:
        if is_plain(value):
            return to_json(value)
    except Exception:  # noqa: S110 - a lone surrogate, a container changed by another thread: the long way takes it
        pass
    return _dump(to_json_value(value))


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def decode_payload(data: bytes) -> Any:
    """Return the value in `data`.

    Raises:
        UnreadablePayload: whatever is wrong with the bytes; nothing else is raised.
    """
    try:
        value = _DECODER.decode(data.decode())
        return value if is_plain(value) else from_json_value(value)
    except UnreadablePayload:
        raise
    except (ValueError, RecursionError) as error:
        raise UnreadablePayload(f"not a payload: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise UnreadablePayload(f"not a payload: {name} is not JSON")


# Made once: `json.loads` and `json.dumps` make theirs anew for each call that says how.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_sorted = json_writer(sort_keys=True)


def decoded_form(value: object) -> Any:
    """Return what `decode_payload(encode_payload(value))` returns. JMESPath sees values in this form."""
    return value if is_plain(value) else from_json_value(to_json_value(value))


def snapshot(value: object) -> Any:
    """Return the decoded form of `value` as it is now: nothing done to `value` later changes it."""
    return _copied(value) if is_plain(value) else from_json_value(to_json_value(value))


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if type(value) is list else value


def contains_not_kept(value: object) -> bool:
    """Tell whether anything in a decoded value is a mark for what was not kept."""
    if isinstance(value, NotKept):
        return True
    if isinstance(value, dict):
        fields = cast("dict[object, object]", value)
        return any(contains_not_kept(key) or contains_not_kept(item) for key, item in fields.items())
    return isinstance(value, list | tuple) and any(contains_not_kept(item) for item in cast("list[object]", value))


# --- bounded --------------------------------------------------------------------------------------------------------


@quick
@dataclass(frozen=True, slots=True)
class Bounded:
    """Bytes within a limit. `digest` is of the whole where it was cut, else None."""

    data: bytes
    digest: str | None = None


def encode_bounded(value: object, limit_bytes: int) -> Bounded:
    """Return the whole payload if it fits `limit_bytes` (at least 256), else a `Cut` that does."""
    assert limit_bytes >= CUT_BYTES_MIN, f"a cut needs {CUT_BYTES_MIN} bytes, {limit_bytes} were given"
    whole = encode_payload(value)
    if len(whole) <= limit_bytes:
        return Bounded(whole)
    digest = sha256(whole).hexdigest()
    # A quoted text grows: each of its bytes is at most two, so half of what is left always fits.
    room = (limit_bytes - CUT_BYTES_MIN // 2 - len(digest)) // 2
    head = whole[: max(0, room)].decode("utf-8", "ignore")
    return Bounded(encode_payload(Cut(len(whole), digest, head)), digest)


# --- canonical ------------------------------------------------------------------------------------------------------


def canonical(value: object) -> bytes:
    """Return bytes that are equal for equal values: keys sorted, numbers by value (100 is 100.0 is Decimal("100")),
    text in NFC. For digests only; it can't be decoded."""
    plain = value if is_plain(value) else to_json_value(value)
    return _sorted(_canonical(plain)).encode()


def canonical_digest(value: object) -> str:
    """Return the SHA-256 of `canonical(value)` as 64 hex digits."""
    return sha256(canonical(value)).hexdigest()


def _nfc(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _canonical(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return _nfc(value)
    if kind is float:
        return _number(int(value) if value.is_integer() else Decimal(repr(value)))
    if kind is list:
        return [_canonical(item) for item in value]
    if kind is not dict:
        return value
    return _canonical_form(value) if FORM in value else {_nfc(key): _canonical(item) for key, item in value.items()}


def _canonical_form(value: dict[str, Any]) -> Any:
    form = value[FORM]
    if form == "items":
        pairs = [[_canonical(key), _canonical(item)] for key, item in value["value"]]
        return {FORM: form, "value": sorted(pairs, key=lambda pair: json.dumps(pair, sort_keys=True))}
    if form == "int":
        return _number(int(value["value"], 16))
    if form == "decimal":
        number = Decimal(value["value"])
        return _number(number) if number.is_finite() else {FORM: "float", "value": str(number).lower()}
    if form == "float":
        return {FORM: "float", "value": str(Decimal(value["value"])).lower()}
    return {key: item if key == FORM else _canonical(item) for key, item in value.items()}


def _number(number: int | Decimal) -> Any:
    if isinstance(number, int):
        if number.bit_length() <= 1_000:
            return number
        return {FORM: "int", "value": hex(number)}
    if not number:
        return 0
    if number.adjusted() <= _INTEGER_DIGITS_MAX and number == number.to_integral_value():
        return _number(int(number))
    sign, digits, exponent = number.as_tuple()
    text = "".join(map(str, digits))
    stripped = text.rstrip("0") or "0"
    assert isinstance(exponent, int), "only finite numbers come here"
    power = exponent + len(text) - len(stripped)
    return {FORM: "number", "value": f"{'-' if sign else ''}{stripped.lstrip('0') or '0'}e{power}"}
