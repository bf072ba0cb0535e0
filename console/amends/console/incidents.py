"""`amends incidents list|show|resolve`: what a person must decide, and the decision."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from amends.console.exits import NEEDS_ATTENTION, USAGE, Stop, the_only
from amends.console.options import AsJson, Check, Kafka, Limit
from amends.console.output import moment, show_fields, show_json, show_table, show_text, show_title
from amends.console.read_model import IncidentFilter, Latest, by_prefix
from amends.console.reading import kafka_settings, read_topics
from amends.console.resolving import decide
from amends.console.rulings import Refused, Ruling
from amends.console.writing import (
    By,
    DryRun,
    Reason,
    Yes,
    confirmed,
    places,
    require_reason,
    say_written,
    user_of_machine,
)
from amends.schemas.commands import Incident
from amends.schemas.decisions import word_of
from amends.schemas.facts import Decision, Resolution


class Choice(StrEnum):
    """The decisions, as they are spelt here."""

    RETRY = word_of(Decision.RETRY)
    EDIT_ARGS = word_of(Decision.EDIT_ARGS)
    MARK_UNDONE = word_of(Decision.MARK_UNDONE)
    MARK_ABSENT = word_of(Decision.MARK_ABSENT)
    PRESENT = word_of(Decision.PRESENT)
    ACCEPT_LOSS = word_of(Decision.ACCEPT_LOSS)


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


def _find(kafka: str | None, incident: str) -> Incident:
    rows = {row.incident_id: row for row in by_prefix(_read(kafka), incident)}
    return the_only(rows, incident, "incidents", none=f"there is no incident {incident!r}")


@app.command("show")
def show_incident(
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", help="Its id, or how it begins.")],
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """Show an incident: what ran, what was undone, what is unknown, what to do."""
    row = _find(kafka, incident)
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


@app.command("resolve")
def resolve(
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", help="Its id, or how it begins.")],
    decision: Annotated[Choice, typer.Option("--decision", help="What is to be so from now on.")],
    reason: Reason,
    by: By = None,
    evidence: Annotated[str, typer.Option("--evidence", help="What was seen: a link, a number at the remote.")] = "",
    arguments: Annotated[
        str | None, typer.Option("--arguments", help="edit-args: what the undo is to run with, a JSON object.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """Decide an incident. retry: try its undo again. edit-args: try it with other arguments. mark-undone: it was undone
    by hand. present, mark-absent: the call happened, or did not. accept-loss: it stays as it is. It counts for the
    version that was shown, for no later one."""
    require_reason(reason)
    row, settings = _find(kafka, incident), kafka_settings(kafka)
    given = None if arguments is None else arguments.strip().encode()
    ruling = Ruling(Decision(decision.value.replace("-", "_")), by or user_of_machine(), reason, evidence, given)
    try:
        facts = decide(settings, row, ruling)
    except Refused as refused:
        raise Stop(str(refused), NEEDS_ATTENTION if refused.late else USAGE) from None
    if not as_json:
        _show_decision(row, ruling, facts)
    acks = confirmed(settings, facts, "Write this decision to the ledger?", dry_run=dry_run, yes=yes)
    if as_json:
        show_json({"incident_id": row.incident_id, "resolutions": facts, "written": places(acks)})
    else:
        say_written(settings, acks, dry_run, f"amends incidents show {row.incident_id[:8]}")


def _show_decision(row: Incident, ruling: Ruling, facts: list[Resolution]) -> None:
    unread = ", ".join(str(fact.unread_offset) for fact in facts if fact.unread_offset is not None)
    show_fields(
        [
            ("incident", f"{row.incident_id} (version {row.version})"),
            ("is about", row.summary),
            ("decision", word_of(ruling.decision)),
            ("records at", unread),
            ("attempts", ", ".join(facts[0].attempts)),
            ("arguments", "" if ruling.arguments is None else ruling.arguments.decode()),
            ("by", ruling.by),
            ("reason", ruling.reason),
            ("evidence", ruling.evidence),
        ]
    )
