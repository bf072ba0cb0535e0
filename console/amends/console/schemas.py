"""`amends schemas check`: what this version writes and reads."""

from __future__ import annotations

import typer

from amends.console.exits import NEEDS_ATTENTION
from amends.console.options import AsJson
from amends.console.output import show_json, show_table
from amends.schemas.codec import RECORDS, schema_of
from amends.schemas.releases import incompatibilities, released, released_versions

app = typer.Typer(no_args_is_help=True, help="The records: their schemas, and whether every release can be read.")


@app.callback()
def schemas() -> None:
    """The records: their schemas, and whether every release can be read."""


@app.command("check")
def check(as_json: AsJson = False) -> None:
    """Check that this version reads what every release wrote; ends with 4 if it does not."""
    versions = released_versions()
    current = {record.__name__: schema_of(record) for record in RECORDS}
    problems = [
        {"version": version, "problem": problem}
        for version in versions
        for name, older in released(version).items()
        for problem in (incompatibilities(older, current[name]) if name in current else [f"{name} is gone"])
    ]
    if as_json:
        show_json({"records": list(current), "released": versions, "problems": problems})
    elif problems:
        show_table(["version", "problem"], [tuple(p.values()) for p in problems], none="")
    else:
        typer.echo(f"{len(RECORDS)} records; released: {', '.join(versions) or 'none yet'}; all can be read")
    if problems:
        raise typer.Exit(NEEDS_ATTENTION)
