"""`amends approvals list|show|approve|reject`: calls that agents may make only once a person has said so."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from amends.console.exits import NEEDS_ATTENTION, USAGE, Stop, the_only
from amends.console.granting import Request, newest_first, ruling, state_of, why_not
from amends.console.options import AsJson, Check, Kafka, Limit
from amends.console.output import as_json, bytes_as_json, moment, show_fields, show_json, show_table, show_text
from amends.console.read_model import Latest
from amends.console.reading import echo_of, kafka_settings, placed, read_one, read_topics
from amends.console.writing import By, DryRun, Reason, confirmed, places, require_reason, say_written, user_of_machine
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.schemas.commands import Incident
from amends.schemas.facts import Decision, StepEvent
from amends.tools.durations import duration_ms

app = typer.Typer(no_args_is_help=True, help="Calls that wait for a person, and his word.")

Yes = Annotated[bool, typer.Option("--yes", help="Don't ask before it is written. The id then has its number: ID.N.")]
Wanted = Annotated[str, typer.Argument(metavar="ID", help="Of the request, as `list` shows it, or how it begins.")]


def _read(settings: KafkaSettings) -> list[Request]:
    table = Latest(Incident)
    for record in read_topics(settings, [settings.topics.incidents]):
        table.fold(record)
    return newest_first(table.rows())


def _asked(settings: KafkaSettings, request: Request) -> StepEvent | None:
    """Return the fact that asks, None where the ledger no longer holds it."""
    place = TopicPartition(settings.topics.ledger, request.incident.partition)
    record = read_one(settings, place, request.approval.requested_offset)
    fact = None if record is None else placed(record).fact
    return fact if isinstance(fact, StepEvent) and fact.step_id == request.incident.step_id else None


def _find(settings: KafkaSettings, wanted: str) -> Request:
    found = {request.id: request for request in _read(settings) if request.fits(wanted)}
    return the_only(found, wanted, "requests", none=f"nobody asks for an approval {wanted!r}")


@app.command("list")
def list_approvals(
    decided_too: Annotated[bool, typer.Option("--all", help="Those that are decided or over, too.")] = False,
    workflow: Annotated[str | None, typer.Option("--workflow", help="Of this workflow.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", help="Of this tool.")] = None,
    limit: Limit = 100,
    check: Check = False,
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """List calls that wait for a person, newest first."""
    now_ms = int(time.time() * 1000)
    found = [
        request
        for request in _read(kafka_settings(kafka))
        if (decided_too or request.is_open)
        and workflow in (None, request.incident.workflow_id)
        and tool in (None, request.incident.tool_name)
    ]
    if as_json:
        show_json([_fields(request, now_ms) for request in found[:limit]])
    else:
        show_table(
            ["request", "state", "asked (UTC)", "stands until (UTC)", "workflow", "tool", "asked by"],
            [
                (
                    request.short_id,
                    state_of(request, now_ms),
                    moment(request.incident.opened_at_ms),
                    moment(request.approval.until_ms),
                    request.incident.workflow_id,
                    request.incident.tool_name,
                    request.approval.requested_by or request.incident.agent_id,
                )
                for request in found[:limit]
            ],
            none="nobody ever asked for an approval" if decided_too else "nobody waits for an approval",
        )
        if len(found) > limit:
            typer.echo(f"{len(found) - limit} more: --limit", err=True)
    if check and found:
        raise typer.Exit(NEEDS_ATTENTION)


@app.command("show")
def show_approval(request: Wanted, as_json: AsJson = False, kafka: Kafka = None) -> None:
    """Show what is asked for: the call with its arguments, who asks, and what was decided."""
    settings = kafka_settings(kafka)
    found = _find(settings, request)
    _show(settings, found, as_json=as_json)


@app.command("approve")
def approve(
    request: Wanted,
    reason: Reason,
    stands: Annotated[str, typer.Option("--for", metavar="TIME", help="The call may be begun for so long.")] = "1h",
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """Let the agent make this call, once, with these arguments. Who asks for it can't approve it."""
    try:
        stands_ms = duration_ms(stands)
    except ValueError as wrong:
        raise Stop(f"--for: {wrong}", USAGE) from None
    _decide(kafka_settings(kafka), request, Decision.APPROVE, reason, by, stands_ms, (dry_run, yes, as_json))


@app.command("reject")
def reject(
    request: Wanted,
    reason: Reason,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """Say no. The same call with the same arguments stays rejected in its workflow. A grant is taken back that way,
    too, until it is used."""
    _decide(kafka_settings(kafka), request, Decision.REJECT, reason, by, None, (dry_run, yes, as_json))


def _decide(
    settings: KafkaSettings,
    wanted: str,
    decision: Decision,
    reason: str,
    by: str | None,
    stands_ms: int | None,
    how: tuple[bool, bool, bool],
) -> None:
    dry_run, yes, json_wanted = how
    require_reason(reason)
    request = _find(settings, wanted)
    if yes and not request.is_numbered(wanted):
        raise Stop(f"with --yes, say which request you have looked at: {request.short_id}", USAGE)
    now_ms = int(time.time() * 1000)
    fact = ruling(request, decision, by or user_of_machine(), reason, now_ms, stands_ms)
    refused = why_not(request, fact, echo_of(settings, request.incident.workflow_id), now_ms, wanted)
    if refused:
        raise Stop(refused, NEEDS_ATTENTION)
    if not json_wanted:
        _show(settings, request, as_json=False)
        until = f" until {moment(fact.expires_at_ms)} UTC" if fact.expires_at_ms else ""
        show_text(f"\n{fact.by} {'approves' if decision is Decision.APPROVE else 'rejects'} it{until}: {reason}")
    acks = confirmed(settings, [fact], "Write this decision to the ledger?", dry_run=dry_run, yes=yes)
    if json_wanted:
        show_json({"request": request.id, "resolution": fact, "written": places(acks)})
    else:
        say_written(settings, acks, dry_run, f"amends approvals show {request.short_id}")


def _fields(request: Request, now_ms: int) -> dict[str, object]:
    return {
        "request": request.id,
        "state": state_of(request, now_ms),
        "workflow_id": request.incident.workflow_id,
        "step_id": request.incident.step_id,
        "tool": request.incident.tool_name,
        "approval": as_json(request.approval._asdict()),
    }


def _show(settings: KafkaSettings, request: Request, *, as_json: bool) -> None:
    now_ms = int(time.time() * 1000)
    fact = _asked(settings, request)
    arguments = None if fact is None or fact.input_payload is None else bytes_as_json(fact.input_payload)
    echo = echo_of(settings, request.incident.workflow_id)
    told = next((t for t in echo.approvals if t.step_id == request.incident.step_id), None) if echo else None
    if as_json:
        show_json({**_fields(request, now_ms), "arguments": arguments, "told": told})
        return
    show_fields(
        [
            ("request", request.short_id),
            ("state", state_of(request, now_ms)),
            ("tool", request.incident.tool_name),
            ("arguments", "the ledger no longer holds them" if fact is None else arguments),
            ("workflow", request.incident.workflow_id),
            ("step", request.incident.step_id),
            ("asked by", request.approval.requested_by or request.incident.agent_id),
            ("agent", request.incident.agent_id),
            ("asked (UTC)", moment(request.incident.opened_at_ms)),
            ("stands until (UTC)", moment(request.approval.until_ms)),
            ("decided (UTC)", moment(request.incident.closed_at_ms)),
            ("the agent is told", "" if told is None else " ".join((told.state, told.by, told.reason)).strip()),
        ]
    )
