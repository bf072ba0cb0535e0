"""FULL_TRANSITIVE, offline: each schema reads, and is read by, every version ever released."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

SCHEMAS = Path(__file__).parents[2] / "schemas" / "amends" / "schemas" / "avro"
RELEASED = SCHEMAS / "released"


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


def incompatibilities(older: Mapping[str, Any], newer: Mapping[str, Any]) -> list[str]:
    """Return why readers of either cannot read what the other wrote, in words; empty if they can."""
    old, new = (avro.schema.parse(json.dumps(schema)) for schema in (older, newer))
    problems = []
    for reader, writer, direction in (
        (new, old, "the newer reading the older"),
        (old, new, "the older reading the newer"),
    ):
        checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
        verdict = checker.get_compatibility(reader, writer)
        if verdict.compatibility is not SchemaCompatibilityType.compatible:
            problems.append(f"{direction}: {'; '.join(sorted(verdict.messages))} at {sorted(verdict.locations)}")
    return problems


def against_releases(current: Path = SCHEMAS, released: Path = RELEASED) -> Iterator[str]:
    """Yield, in words, each way in which the current schemas break with a released one."""
    for release in sorted(released.iterdir()) if released.is_dir() else ():
        for old in sorted(release.glob("*.avsc")):
            new = current / old.name
            if not new.is_file():
                yield f"{old.name} of {release.name} is gone: nothing released is ever removed"
                continue
            for problem in incompatibilities(load(old), load(new)):
                yield f"{old.name} of {release.name}: {problem}"
