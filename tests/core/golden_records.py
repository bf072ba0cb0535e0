"""Golden records: bytes that every later version must read.

`golden/<version>/<Record>.{full,least}.bin` were written by that release, each with what it says as JSON beside it.
`golden/next/` is the schema as it stands now, until it is released: whoever adds a field writes it anew with
`python -m tests.core.golden_records`. A released folder is never touched.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from tests.core.record_samples import full, least

from amends.schemas.codec import RECORDS, Record, encode

GOLDEN = Path(__file__).parent / "golden"
NEXT = GOLDEN / "next"


def samples() -> Iterator[tuple[str, Record]]:
    """Yield the records of `golden/next` by file stem."""
    for kind in RECORDS:
        yield f"{kind.__name__}.full", full(kind)
        yield f"{kind.__name__}.least", least(kind)


def as_json(value: Any) -> Any:
    """Return a record as JSON a person can read; bytes in hexadecimal."""
    if dataclasses.is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return f"hex:{value.hex()}"
    return [as_json(item) for item in value] if isinstance(value, tuple) else value


def write(folder: Path = NEXT) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stem, record in samples():
        (folder / f"{stem}.bin").write_bytes(encode(record))
        text = json.dumps(as_json(record), indent=1, ensure_ascii=False)
        (folder / f"{stem}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    write()
