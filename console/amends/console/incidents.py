"""`amends incidents list|show`: what a person must decide."""

from __future__ import annotations

from typing import Annotated

import typer

from amends.console.exits import NEEDS_ATTENTION, NOT_FOUND, USAGE, Stop
from amends.console.options import AsJson, Check, Kafka, Limit
from amends.console.output import moment, show_fields, show_json, show_table, show_text, show_title
from amends.console.read_model import IncidentFilter, Latest, by_prefix
from amends.console.reading import kafka_settings, read_topics
from amends.schemas.commands import Incident

app = typer.Typer(no_args_is_help=True, help="What a person must decide.")


def _read(kafka: str | None) -> list[Incident]:
    settings = kafka_settings(kafka)
    table = Latest(Incident)
    for record in read_topics(settings, [settings.topics.incidents]):
        table.fold(record)
    if table.unreadable:
        typer.echo(f"{len(table.unreadable)} record(s) can't be read by this version", err=True)
    return sorted(table.rows(), key=lambda row: row.opened_at_ms, reverse=True)


@app.command("list")
def list_incidents(
    closed_too: Annotated[bool, typer.Option("--all", help="Those that are closed, too.")] = False,
    kind: Annotated[str | None, typer.Option("--kind", help="Of this kind.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="Of this workflow.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", help="Of this tool.")] = None,
    lane: Annotated[str | None, typer.Option("--lane", help="Of this undo lane.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Of this agent.")] = None,
    limit: Limit = 100,
    check: Check = False,
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """List open incidents, newest first."""
    wanted = IncidentFilter(closed_too, kind, workflow, tool, lane, agent)
    found = [row for row in _read(kafka) if wanted.wants(row)]
    if as_json:
        show_json(found[:limit])
    else:
        show_table(
            ["incident", "kind", "state", "opened (UTC)", "workflow", "tool", "summary"],
            [
                (
                    row.incident_id[:8],
                    row.kind,
                    row.state.value,
                    moment(row.opened_at_ms),
                    row.workflow_id,
                    row.tool_name,
                    row.summary,
                )
                for row in found[:limit]
            ],
            none="no incident" if closed_too else "no open incident",
        )
        if len(found) > limit:
            typer.echo(f"{len(found) - limit} more: --limit", err=True)
    if check and found:
        raise typer.Exit(NEEDS_ATTENTION)


@app.command("show")
def show_incident(
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", help="Its id, or how it begins.")],
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """Show an incident: what ran, what was undone, what is unknown, what to do."""
    found = by_prefix(_read(kafka), incident)
    if not found:
        raise Stop(f"there is no incident {incident!r}", NOT_FOUND)
    if len(found) > 1:
        raise Stop(f"{incident!r} fits {len(found)} incidents: {', '.join(i.incident_id for i in found[:5])}", USAGE)
    (row,) = found
    if as_json:
        show_json(row)
        return
    show_fields(
        [
            ("incident", row.incident_id),
            ("kind", row.kind),
            ("state", row.state.value),
            ("version", row.version),
            ("workflow", row.workflow_id),
            ("step", row.step_id),
            ("tool", row.tool_name),
            ("lane", row.lane),
            ("agent", row.agent_id),
            ("opened (UTC)", moment(row.opened_at_ms)),
            ("closed (UTC)", moment(row.closed_at_ms)),
            ("closed by", row.closed_by),
        ]
    )
    show_title(row.summary)
    show_text(row.detail)
    if row.workflow_id:
        show_text(f"\nThe whole story: amends workflows show {row.workflow_id}")
