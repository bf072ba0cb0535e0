"""Any Python object as a JSON value, and back.

JSON types stand for themselves. What JSON has no form for is an object with the one reserved key `$amends`, which
names the form: `bytes decimal datetime date time timedelta uuid float int text` come back as what they were; `items`
is a mapping whose keys JSON can't have; `opaque`, `cut` and `secret` come back as marks that say what is not there.
Enums become their value; dataclasses, attrs classes, named tuples and pydantic models their fields; tuples and sets
lists (a set's in the order of their bytes). A generator is never consumed, and no class named in a record is imported.

Total: an object whose own code raises, refers to itself or nests deeper than `DEPTH_MAX` is recorded as opaque text.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID

from amends.schemas.payload_marks import Cut, NotKept, Opaque, SecretDigest, UnreadablePayload

FORM = "$amends"
DEPTH_MAX = 100
OPAQUE_TEXT_CHARACTERS = 1_000
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1


_LEAVES = frozenset({str, bool, type(None)})


def is_plain(value: object, depth: int = 0) -> bool:
    """Tell whether `value` is its own JSON form: JSON types only, finite, and shallower than `DEPTH_MAX`."""
    kind = type(value)
    if kind in _LEAVES:
        return True
    if kind is int:
        return INTEGER_MIN <= cast(int, value) <= INTEGER_MAX
    if kind is float:
        return math.isfinite(cast(float, value))
    if depth >= DEPTH_MAX:
        return False
    if kind is list:
        return _all_plain(cast("list[object]", value), depth + 1)
    if kind is not dict:
        return False
    fields = cast("dict[object, object]", value)
    return FORM not in fields and _fields_plain(fields, depth + 1)


# Loops, not generators: this stands in the path of every call.
def _all_plain(values: Iterable[object], depth: int) -> bool:
    for item in values:  # noqa: SIM110
        if type(item) not in _LEAVES and not is_plain(item, depth):
            return False
    return True


def _fields_plain(fields: dict[object, object], depth: int) -> bool:
    for key, item in fields.items():
        if type(key) is not str or (type(item) not in _LEAVES and not is_plain(item, depth)):
            return False
    return True


def to_json_value(value: object) -> Any:
    """Return the JSON form of any object. Raises nothing of the object's own."""
    return _value(value, ())


def _value(value: object, above: tuple[int, ...]) -> Any:
    try:
        scalar = _SCALARS.get(type(value))
        if scalar is not None:
            return scalar(value)
        if id(value) in above:
            return _opaque(value, "refers to itself")
        if len(above) >= DEPTH_MAX:
            return _opaque(value, f"nested deeper than {DEPTH_MAX}")
        return _container(value, (*above, id(value)))
    except Exception as error:  # the object's own code, which may raise anything: record what can be recorded
        return _opaque(value, f"could not be read: {type(error).__name__}")


def _container(value: object, above: tuple[int, ...]) -> Any:
    if isinstance(value, Enum):
        return _value(value.value, above)
    fields = _fields(value)
    if fields is not None:
        return _mapping(fields, above)
    if hasattr(type(value), "__pydantic_root_model__") and getattr(type(value), "__pydantic_root_model__", False):
        return _value(getattr(value, "root", None), above)
    if isinstance(value, Mapping):
        return _mapping(cast("Mapping[object, object]", value), above)
    if isinstance(value, list | tuple | deque):
        return [_value(item, above) for item in cast("list[object]", value)]
    if isinstance(value, Set):
        return sorted((_value(item, above) for item in cast("Set[object]", value)), key=_text)
    for kind, scalar in _SUBCLASSES:
        if isinstance(value, kind):
            return scalar(value)
    return _opaque(value, None)


def _fields(value: object) -> dict[object, object] | None:
    """The fields of a dataclass, attrs class, named tuple or pydantic model; None for anything else."""
    kind = type(value)
    if dataclasses.is_dataclass(value):
        if isinstance(value, NotKept):
            return None
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if getattr(kind, "__pydantic_root_model__", False):
        return None
    model = getattr(kind, "__pydantic_fields__", None)
    if isinstance(model, Mapping):
        extra = getattr(value, "__pydantic_extra__", None) or {}
        return {**{name: getattr(value, name) for name in cast("Mapping[str, object]", model)}, **extra}
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is not None:
        return {attribute.name: getattr(value, attribute.name) for attribute in attributes}
    names = getattr(kind, "_fields", None)
    if isinstance(value, tuple) and isinstance(names, tuple):
        return dict(zip(names, cast("tuple[object, ...]", value), strict=True))
    return None


def _mapping(value: Mapping[object, object], above: tuple[int, ...]) -> Any:
    items = [(_value(key, above), _value(item, above)) for key, item in value.items()]
    names = {key for key, _ in items if type(key) is str}
    if len(names) == len(items) and FORM not in names:
        return dict(items)
    return {FORM: "items", "value": [[key, item] for key, item in items]}


def _opaque(value: object, why: str | None) -> dict[str, Any]:
    kind = type(value)
    try:
        text = repr(value)
    except Exception as error:  # a repr that raises is still an object that came
        text = f"<repr raised {type(error).__name__}>"
    if why is not None:
        text = f"({why}) {text}"
    raw = text.encode("utf-8", "backslashreplace")
    shown = raw.decode()[:OPAQUE_TEXT_CHARACTERS]
    name = f"{kind.__module__}.{kind.__qualname__}".encode("utf-8", "backslashreplace").decode()
    return {FORM: "opaque", "type": name, "text": shown, "digest": sha256(raw).hexdigest()}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


# --- scalars, exact types first -------------------------------------------------------------------------------------


def _form(name: str, value: str) -> dict[str, str]:
    return {FORM: name, "value": value}


def _of_text(value: str) -> Any:
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate: JSON in UTF-8 has no form for it
        return _form("text", base64.b64encode(text.encode("utf-8", "surrogatepass")).decode())
    return text


def _of_int(value: int) -> Any:
    number = int.__int__(value)
    return number if INTEGER_MIN <= number <= INTEGER_MAX else _form("int", hex(number))


def _of_float(value: float) -> Any:
    number = float.__float__(value)
    return number if math.isfinite(number) else _form("float", repr(number))


def _of_bytes(value: bytes | bytearray | memoryview) -> Any:
    return _form("bytes", base64.b64encode(bytes(value)).decode())


def _of_datetime(value: datetime) -> Any:
    plain = datetime.combine(
        date(value.year, value.month, value.day),
        time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold),
    )
    return _form("datetime", plain.isoformat())


def _of_timedelta(value: timedelta) -> Any:
    return _form("timedelta", f"{value.days}:{value.seconds}:{value.microseconds}")


def _of_decimal(value: Decimal) -> Any:
    return _form("decimal", str(value))


def _of_not_kept(value: NotKept) -> dict[str, Any]:
    name = {Opaque: "opaque", Cut: "cut", SecretDigest: "secret"}[type(value)]
    return {FORM: name, **dataclasses.asdict(value)}


_SCALARS: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    str: _of_text,
    int: _of_int,
    float: _of_float,
    bytes: _of_bytes,
    Decimal: _of_decimal,
    datetime: _of_datetime,
    date: lambda value: _form("date", value.isoformat()),
    time: lambda value: _form("time", value.isoformat()),
    timedelta: _of_timedelta,
    UUID: lambda value: _form("uuid", str(value)),
    Opaque: _of_not_kept,
    Cut: _of_not_kept,
    SecretDigest: _of_not_kept,
}

_SUBCLASSES: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (str, _of_text),
    (int, _of_int),
    (float, _of_float),
    ((bytes, bytearray, memoryview), _of_bytes),
    (Decimal, _of_decimal),
    (datetime, _of_datetime),
    (date, lambda value: _form("date", date(value.year, value.month, value.day).isoformat())),
    (timedelta, _of_timedelta),
    (UUID, lambda value: _form("uuid", str(UUID(int=value.int)))),
    (PurePath, lambda value: _of_text(str(value))),
)


# --- back -----------------------------------------------------------------------------------------------------------


def _timedelta(text: str) -> timedelta:
    days, seconds, microseconds = (int(part) for part in text.split(":"))
    return timedelta(days=days, seconds=seconds, microseconds=microseconds)


_READERS: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda value: base64.b64decode(value, validate=True),
    "decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": _timedelta,
    "uuid": UUID,
    "float": float,
    "int": lambda value: int(value, 16),
    "text": lambda value: base64.b64decode(value, validate=True).decode("utf-8", "surrogatepass"),
}
_MARKS: dict[str, type[NotKept]] = {"opaque": Opaque, "cut": Cut, "secret": SecretDigest}


def from_json_value(value: Any) -> Any:
    """Return the Python value of a JSON form.

    Raises:
        UnreadablePayload: a form this version does not know, or one with a value it can't have.
    """
    if type(value) is list:
        return [from_json_value(item) for item in value]
    if type(value) is not dict:
        return value
    if FORM not in value:
        return {key: from_json_value(item) for key, item in value.items()}
    form = value[FORM]
    try:
        if form == "items":
            return {_hashable(from_json_value(key)): from_json_value(item) for key, item in value["value"]}
        mark = _MARKS.get(form)
        if mark is not None:
            return mark(**{key: item for key, item in value.items() if key != FORM})
        return _READERS[form](value["value"])
    except UnreadablePayload:
        raise
    except Exception as error:  # bytes from anywhere: whatever a reader raises means the same here
        raise UnreadablePayload(f"the form {form!r} of a payload can't be read: {type(error).__name__}") from error


def _hashable(key: Any) -> Any:
    if isinstance(key, dict):
        return tuple((name, _hashable(item)) for name, item in key.items())
    return tuple(_hashable(item) for item in key) if isinstance(key, list) else key
