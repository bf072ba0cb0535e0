"""What is kept of a chaos that found something."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.chaos.outside import Outside
from tests.killing.evidence import write_story

STORIES_MAX = 20


def write_evidence(wrong: Iterable[str], outside: Outside, folder: Path, environment: Mapping[str, str]) -> None:
    """Put the violations into `folder`, and of the workflows they name the ledger's story and the remotes' record."""
    found = list(wrong)
    (folder / "violations").write_text("\n".join(found) + "\n")
    names = dict.fromkeys(line.partition(": ")[0] for line in found)
    for name in [name for name in names if name in outside.record or name.startswith("s")][:STORIES_MAX]:
        record = [str(entry) for entry in outside.record.get(name, [])]
        (folder / f"{name}.world").write_text("\n".join(record) + "\n")
        write_story(name, folder, environment)


def told(names: Iterable[str], folder: Path) -> Iterable[str]:
    """Return in words what was kept of these workflows."""
    for name in names:
        for kind in ("facts", "world"):
            path = folder / f"{name}.{kind}"
            if path.exists():
                yield f"--- {name}: {'the ledger' if kind == 'facts' else 'the record of the remotes'}"
                yield path.read_text().rstrip()
