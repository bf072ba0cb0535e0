"""The figures for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COLUMNS = (
    ("tasks", "tasks"),
    ("cases", "cases"),
    ("writes", "writes"),
    ("changed", "changed the database"),
    ("equal", "equal after the undo"),
    ("asked", "left to a person"),
    ("equal_with_inverses_alone", "equal with the domain's inverse tools alone"),
)
_WHERE = {
    "behind": "behind its last write",
    "before": "inside its last write, before the effect",
    "after": "inside its last write, after the effect",
}


def table(result: Mapping[str, Any]) -> str:
    """Return a table and what stands beside it."""
    rows = [("", *(title for _, title in _COLUMNS))]
    rows += [(name, *(str(row[key]) for key, _ in _COLUMNS)) for name, row in result["domains"].items()]
    rows.append(("both", *(str(result[key]) for key, _ in _COLUMNS)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        " | ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in cells)
        for cells in (list(enumerate(zip(row, widths, strict=True))) for row in rows)
    ]
    lines.insert(1, "-|-".join("-" * width for width in widths))
    return "\n".join([*lines, "", *_beside(result)])


def _beside(result: Mapping[str, Any]) -> list[str]:
    lines = [
        f"Each agent was killed {_WHERE[result['killed']]}.",
        f"{result['writes_done']} writes done, {result['writes_refused']} refused by their domain; "
        f"{result['undos']} undos, {result['nothing_to_undo']} with nothing to undo, in {result['attempts']} attempts; "
        f"{result['incidents']} incidents.",
        f"{result['calls_s']} s for the calls, {result['undone_after_s']} s from the kill to the last undo "
        f"(two leases of {result['lease']} among them). {result['servers']}",
    ]
    if not result["shared_untouched"]:
        lines.append("A TOOL CHANGED A RECORD THAT ALL CASES SHARE: the comparison is void.")
    lines += [f"OVERWRITTEN, WHILE A PERSON IS ASKED: {name}" for name in result["overwritten"]]
    return lines + [f"DIFFERENT: {name}: {', '.join(records)}" for name, records in result["different"].items()]
