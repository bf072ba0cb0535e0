"""What is kept of a failed run."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.killing.theatre import Run, Theatre

from amends.local.parts import AMENDS


def write_evidence(played: Theatre, run: Run, folder: Path) -> None:
    """Put what is known of a failed run into `folder`: its time line, its facts, the world."""
    (folder / f"{run.order}.timeline").write_text("\n".join(run.lines) + "\n")
    world = [str(thing) for thing in played.outside.world() if thing.order == run.order]
    (folder / f"{run.order}.world").write_text("\n".join(world) + "\n")
    write_story(run.order, folder, played.parts.environment)


def write_story(workflow: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Put what the commands of `amends` say of a workflow into `folder`: what became of it, and its facts."""
    asked = {
        "show": ["workflows", "show", workflow],
        "facts": ["ledger", "dump", "--workflow", workflow],
        "json": ["ledger", "dump", "--json", "--payloads", "--workflow", workflow],
    }
    for name, command in asked.items():
        done = subprocess.run(
            [*AMENDS, *command], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        (folder / f"{workflow}.{name}").write_text(done.stdout + done.stderr)
