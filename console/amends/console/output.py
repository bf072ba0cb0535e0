"""Rows shown: tables for people, JSON for machines. What comes from records is shown, never obeyed.

Ids, errors and payloads come from agents and remotes: control characters in them would move the reader's cursor.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_WITHOUT_TERMINAL = 180


def console() -> Console:
    """Return where tables go. Without a terminal they are wide, so that a pipe gets whole lines."""
    made = Console(highlight=False, emoji=False)
    return made if made.is_terminal else Console(highlight=False, emoji=False, width=_WIDTH_WITHOUT_TERMINAL)


def safe(text: object) -> str:
    """Return `text` with what a terminal would obey made visible; line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in str(text))


def moment(at_ms: int | None) -> str:
    """Return a point in time in UTC, to the millisecond."""
    if not at_ms or at_ms < 0:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):  # beyond the calendar: whatever a clock or a stranger wrote
        return f"{at_ms} ms"


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, none: str) -> None:
    """Print a table; `none` is said when there are no rows."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(cell)) for cell in row))
    if table.row_count:
        console().print(table)
    else:
        typer.echo(none)


def show_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values; what has no value is left out."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields:
        if value not in ("", None):
            table.add_row(name, Text(safe(value)))
    console().print(table)


def show_title(words: str) -> None:
    console().print(Text(f"\n{words}", style="bold"))


def show_text(words: str) -> None:
    """Print words line by line, as they are."""
    typer.echo(safe(words))


def show_json(value: Any, *, one_line: bool = False) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(as_json(value), ensure_ascii=False, indent=None if one_line else 2))


def as_json(value: Any) -> Any:
    """Return a record or row as JSON has it; bytes as the JSON they are, else as text, else in hexadecimal."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return bytes_as_json(value)
    if isinstance(value, dict):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [as_json(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def bytes_as_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def cut(text: str, length: int) -> str:
    """Return `text`, at most `length` characters of it, with a mark where it was cut."""
    return text if len(text) <= length else text[: length - 1] + "…"
