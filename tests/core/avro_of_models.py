"""The Avro schema a model class calls for. The test compares it with the `.avsc`; run as a script it writes them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import types
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from amends.schemas.codec import RECORDS

NAMESPACE = "amends"


def schema(record: type) -> dict[str, Any]:
    """Return the schema of a record class, its nested records spelt out where they are first named."""
    return _record(record, set())


def _record(record: type, named: set[str]) -> dict[str, Any]:
    named.add(record.__name__)
    hints = typing.get_type_hints(record)
    fields = []
    for field in dataclasses.fields(record):
        entry: dict[str, Any] = {"name": field.name, "type": _type(hints[field.name], named)}
        default = _default(field)
        if default is not dataclasses.MISSING:
            entry["default"] = default
        fields.append(entry)
    doc = " ".join((record.__doc__ or "").split("\n\n")[0].split())
    return {"type": "record", "name": record.__name__, "namespace": NAMESPACE, "doc": doc, "fields": fields}


def _type(hint: Any, named: set[str]) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [a for a in args if a is not type(None)]
        return ["null", _type(inner, named)]
    if origin is tuple:
        return {"type": "array", "items": _type(args[0], named)}
    if origin is Mapping:
        return {"type": "map", "values": _type(args[1], named)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "string"
    if dataclasses.is_dataclass(hint):
        record = typing.cast(type, hint)
        return record.__name__ if record.__name__ in named else _record(record, named)
    return {str: "string", int: "long", bool: "boolean", bytes: "bytes"}[hint]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return _json(field.default_factory())
    return field.default if field.default is dataclasses.MISSING else _json(field.default)


def _json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def write(folder: Path) -> None:
    for record in RECORDS:
        (folder / f"{record.__name__}.avsc").write_text(json.dumps(schema(record), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    # The golden records of the schema that is not released yet follow it; those of a release never change.
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-m", "tests.core.golden_records"], cwd=root, check=True)
