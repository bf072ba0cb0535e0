"""Writes `docs/states.md` from the code: `python -m tests.architecture.state_tables`. A test compares."""

from __future__ import annotations

from textwrap import fill

from tests.architecture import grids_of_owners, grids_of_steps, grids_of_workflows
from tests.architecture.grids import Grid
from tests.architecture.parts import ROOT

PAGE = ROOT / "docs" / "states.md"

HEAD = """# State tables

Written by `python -m tests.architecture.state_tables`, which runs the code: each cell is what the real functions make
of one fact (a row) in one state (a column). Don't edit it; a test writes it again and compares. **Empty**: the fact
changes nothing. `+kind` opens an incident, `-kind` closes one. Words are in the [glossary](glossary.md).
"""

PARTS = (
    (
        "An attempt of a step",
        grids_of_steps.attempt_grid,
        "`processors/attempts`. One send of a call. An end is never taken back: of two different ends SUCCEEDED counts,"
        " and a person is told. Evidence speaks for the step, and only about the attempts that it names.",
    ),
    (
        "A step, of its attempts",
        grids_of_steps.standing_grid,
        "`processors/state`. What is known of a step of two attempts; more are joined the same way. Evidence that a"
        " call happened makes it present whatever its attempts say.",
    ),
    (
        "What ends a workflow's going forward",
        grids_of_workflows.signal_grid,
        "`processors/diagnosis`. A signal names the epoch that it means; in another it is none.",
    ),
    (
        "A workflow",
        grids_of_workflows.workflow_grid,
        "`processors/saga`, `turning`, `closing`. The workflow here did call *a*, took the savepoint, did call *b*;"
        " while FINISHING a third call is open. The policy is the default one.",
    ),
    (
        "The undo of a step",
        grids_of_steps.undo_grid,
        "`processors/undos`. DUE *n*: attempt *n* is granted; OPEN *n*: it is STARTED; DEAD: a person decides. The"
        " remote takes a key, three attempts are allowed; of *OPEN, the last* only one is. All facts name attempt 0 of"
        " generation 0.",
    ),
    (
        "An undo that may have taken",
        grids_of_steps.doubt_grid,
        "`processors/undos`. By what the remote can do: a second try is granted only where it can do no harm.",
    ),
    (
        "The ladder of an unknown call",
        grids_of_steps.ladder_grid,
        "`processors/ladder`. The rungs in their order, each taken once the one before brought no answer. *Condemned*:"
        " the step is to be undone. *Claimed*: its workflow claims success and waits to know.",
    ),
    (
        "A child, in its parent",
        grids_of_workflows.child_grid,
        "`processors/children`. A child is kept as a step whose undo is a request; what it answers ends that. DUE: the"
        " request is repeated until the answer is there.",
    ),
    (
        "The breaker of a tool",
        grids_of_workflows.breaker_grid,
        "`processors/breakers`. Here it opens when undos of two workflows failed, and pauses for a second at first."
        " OPEN: no undo of the tool is commanded. PROBES: one at a time.",
    ),
    (
        "Who owns an attempt of an undo",
        grids_of_owners.ownership_grid,
        "`compensators/ownership`. The command is about attempt 2 of generation 1.",
    ),
    (
        "The registry",
        grids_of_owners.registry_grid,
        "`compensators/registry`. It saves work; who owns an attempt is decided by the ledger (`ownership`).",
    ),
)


def table(made: Grid) -> str:
    head, rows = made
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.strip() for cell in line) + " |" for line in lines)


def page() -> str:
    sections = (f"## {title}\n\n{fill(words, 120)}\n\n{table(made())}\n" for title, made, words in PARTS)
    return "\n".join((HEAD, *sections))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE}")
