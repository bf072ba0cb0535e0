"""`amends contain`: have undone what a bad agent did."""

from __future__ import annotations

from typing import Annotated

import typer

from amends.console.containing import ask
from amends.console.exits import USAGE, Stop
from amends.console.options import AsJson, Kafka, Since, since_ms
from amends.console.read_model import Latest, WorkflowFilter
from amends.console.reading import kafka_settings, read_topics
from amends.console.undoing import UNDOABLE, Request, subject_of
from amends.console.writing import By, DryRun, Reason, Yes, user_of_machine
from amends.schemas.commands import WorkflowEcho

app = typer.Typer()


@app.command("contain")
def contain(
    reason: Reason,
    agent: Annotated[str | None, typer.Option("--agent", help="What this agent did.")] = None,
    since: Since = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only what has not succeeded yet.")] = False,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """Have undone what an agent did, finished workflows included. It is for what the fold still holds (its grace);
    an older workflow is undone by its id: amends workflows undo."""
    if agent is None and since is None:
        raise Stop("say what is to be undone: --agent, --since, or both", USAGE)
    settings = kafka_settings(kafka)
    table = Latest(WorkflowEcho)
    for record in read_topics(settings, [settings.topics.workflows]):
        table.fold(record)
    wanted = WorkflowFilter(UNDOABLE, agent, open_only, False, since_ms(since))
    rows = sorted(filter(wanted.wants, table.rows()), key=lambda row: row.started_at_ms, reverse=True)
    request = Request(by or user_of_machine(), reason)
    ask([subject_of(row) for row in rows], request, dry_run=dry_run, yes=yes, as_json=as_json, kafka=kafka)
