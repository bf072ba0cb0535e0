"""Grids of states and facts, filled by running the code: each cell is what the real functions make of one fact.

A row is a fact, a column a state. A cell names the state after it and the incidents that it opens (+) and closes (-);
an empty one means that the fact changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from amends.processors.state import Trouble

Grid = tuple[list[str], list[list[str]]]
"""Head and rows; the first cell of each is the name of the row."""


def grid(corner: str, columns: Iterable[str], rows: Iterable[str], cell: Callable[[str, str], str]) -> Grid:
    names = list(columns)
    return [corner, *names], [[row, *(cell(name, row) for name in names)] for row in rows]


def change(before: str, after: str, old: Iterable[Trouble], new: Iterable[Trouble]) -> str:
    opened, closed = kinds(new) - kinds(old), kinds(old) - kinds(new)
    marks = [*(f"+{kind}" for kind in sorted(opened)), *(f"-{kind}" for kind in sorted(closed))]
    return ", ".join([after] * (after != before) + marks)


def kinds(troubles: Iterable[Trouble]) -> set[str]:
    return {trouble.kind for trouble in troubles if trouble.closed_at_ms is None}
