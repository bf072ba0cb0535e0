"""The schemas of every release, packaged, and whether readers and writers of two of them understand each other.

Our schemas use a part of Avro: records, arrays, maps, `["null", X]`, and plain types. For that part FULL compatibility
(each reads the other) is: the same types, and a default on whatever only one of them has. Tests hold this against
Apache Avro's own checker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

Schema = Mapping[str, Any]


def released_versions() -> list[str]:
    """Return the versions whose schemas are packaged, oldest first."""
    folder = files("amends.schemas") / "avro" / "released"
    versions = [entry.name for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []
    return sorted(versions, key=lambda version: [int(part) for part in version.split(".")])


def released(version: str) -> dict[str, dict[str, Any]]:
    """Return a release's schemas by record name."""
    folder = files("amends.schemas") / "avro" / "released" / version
    found = {entry.name: entry for entry in folder.iterdir() if entry.name.endswith(".avsc")}
    return {name.removesuffix(".avsc"): json.loads(entry.read_text("utf-8")) for name, entry in sorted(found.items())}


def incompatibilities(older: Schema, newer: Schema) -> list[str]:
    """Return, in words, why readers of either can't read what the other wrote; empty if they can."""
    return list(_records(older, newer, {}, {}, str(newer["name"])))


Names = dict[str, Schema]


def _records(old: Schema, new: Schema, old_names: Names, new_names: Names, at: str) -> Iterator[str]:
    old_names[str(old["name"])], new_names[str(new["name"])] = old, new
    before = {field["name"]: field for field in old["fields"]}
    after = {field["name"]: field for field in new["fields"]}
    if old["name"] != new["name"]:
        yield f"{at}: {old['name']} became {new['name']}"
    for name, field in before.items():
        if name in after:
            yield from _types(field["type"], after[name]["type"], old_names, new_names, f"{at}.{name}")
        elif "default" not in field:
            yield f"{at}.{name} is gone, and had no default"
    for name, field in after.items():
        if name not in before and "default" not in field:
            yield f"{at}.{name} is new, and has no default"


def _types(old: Any, new: Any, old_names: Names, new_names: Names, at: str) -> Iterator[str]:
    old, new = _named(old, old_names), _named(new, new_names)
    if isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]:
        if old["type"] == "record":
            if old["fields"] != new["fields"]:
                yield from _records(old, new, old_names, new_names, at)
        else:
            inner = "items" if old["type"] == "array" else "values"
            yield from _types(old[inner], new[inner], old_names, new_names, at)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for before, after in zip(old, new, strict=True):
            yield from _types(before, after, old_names, new_names, at)
    elif old != new:
        yield f"{at} was {_said(old)} and became {_said(new)}"


def _named(schema: Any, names: Names) -> Any:
    return names.get(schema, schema) if isinstance(schema, str) else schema


def _said(schema: Any) -> str:
    return str(schema["name"]) if isinstance(schema, dict) and "name" in schema else json.dumps(schema)
