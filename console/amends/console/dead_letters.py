"""`amends dead-letters list|show`: undos given up on, and records nobody could read. They are for reading.

Redrive is a decision on the incident, never a copied record: a copy would go around attempts and versions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from amends.console.exits import NEEDS_ATTENTION, NOT_FOUND, USAGE, Stop
from amends.console.options import AsJson, Check, Kafka, Limit
from amends.console.output import cut, moment, show_fields, show_json, show_table, show_text, show_title
from amends.console.read_model import DeadLetterRow, Latest, dead_letter_row
from amends.console.reading import kafka_settings, read_one, read_topics
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.schemas.commands import Incident, IncidentState

app = typer.Typer(no_args_is_help=True, help="Undos given up on, and records nobody could read.")

LEDGER = "ledger"
"""The name, among lanes, of the ledger's own dead letters."""


def _topics(settings: KafkaSettings) -> dict[str, str]:
    topics = settings.topics
    return {LEDGER: topics.ledger_dead_letters, **{lane: topics.undo_dead_letters(lane) for lane in settings.lanes}}


def _with_incidents(settings: KafkaSettings, rows: list[DeadLetterRow]) -> list[DeadLetterRow]:
    incidents = Latest(Incident)
    for record in read_topics(settings, [settings.topics.incidents]):
        incidents.fold(record)
    states = {row.incident_id: row.state for row in incidents.rows()}

    def is_open(row: DeadLetterRow) -> bool | None:
        state = states.get(row.letter.incident_id) if row.letter else None
        return None if state is None else state is IncidentState.OPEN

    return [replace(row, incident_open=is_open(row)) for row in rows]


@app.command("list")
def list_dead_letters(
    lane: Annotated[str | None, typer.Option("--lane", help=f"Of this undo lane, or `{LEDGER}`.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", help="Of this tool.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="Of this workflow.")] = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only those whose incident is open.")] = False,
    limit: Limit = 100,
    check: Check = False,
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """List dead letters, newest first."""
    settings = kafka_settings(kafka)
    topics = _topics(settings)
    if lane is not None and lane not in topics:
        raise Stop(f"there is no lane {lane!r}; there are {', '.join(topics)} (setting AMENDS_KAFKA__LANES)", USAGE)
    wanted = {topics[name]: name for name in topics if lane in (None, name)}
    rows = [dead_letter_row(record, wanted[record.topic]) for record in read_topics(settings, wanted)]
    found = [
        row
        for row in _with_incidents(settings, rows)
        if tool in (None, row.tool) and workflow in (None, row.key) and not (open_only and row.incident_open is False)
    ]
    found.sort(key=lambda row: row.dead_at_ms, reverse=True)
    if as_json:
        show_json(found[:limit])
    else:
        _show_rows(found[:limit])
        if len(found) > limit:
            typer.echo(f"{len(found) - limit} more: --limit", err=True)
    if check and found:
        raise typer.Exit(NEEDS_ATTENTION)


def _show_rows(rows: list[DeadLetterRow]) -> None:
    states = {True: "open", False: "closed", None: ""}
    show_table(
        ["dead letter", "since (UTC)", "workflow or key", "tool", "attempts", "incident", "reason"],
        [
            (
                row.id,
                moment(row.dead_at_ms),
                row.key,
                row.tool or "(unreadable)",
                row.letter.attempts_spent if row.letter else "",
                f"{row.letter.incident_id[:8]} {states[row.incident_open]}" if row.letter else "",
                cut(row.reason, 100),
            )
            for row in rows
        ],
        none="no dead letter",
    )


@app.command("show")
def show_dead_letter(
    dead_letter: Annotated[str, typer.Argument(metavar="LANE:PARTITION:OFFSET", help="As the list has it.")],
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """Show a dead letter whole: why, what was tried, what a person can do, and the original bytes."""
    settings = kafka_settings(kafka)
    lane, place, offset = _parsed(dead_letter, _topics(settings))
    record = read_one(settings, place, offset)
    if record is None:
        raise Stop(f"there is no dead letter {dead_letter!r}", NOT_FOUND)
    (row,) = _with_incidents(settings, [dead_letter_row(record, lane)])
    if as_json:
        show_json(row)
        return
    fields: list[tuple[str, object]] = [("dead letter", row.id), ("since (UTC)", moment(row.dead_at_ms))]
    if row.letter is not None:
        letter = row.letter
        fields += [("workflow", letter.workflow_id), ("step", letter.step_id), ("tool", letter.tool_name)]
        fields += [("lane", letter.lane), ("incident", letter.incident_id), ("attempts", letter.attempts_spent)]
        fields += [("key", letter.key), ("arguments", letter.arguments.decode(errors="replace"))]
        fields += [("last error", letter.last_error)]
    show_fields([*fields, ("reason", row.reason), *((f"error {name}", text) for name, text in row.errors)])
    if row.letter is not None:
        show_title("What to do")
        show_text(row.letter.text)
    show_title(f"Original, {len(row.original)} bytes")
    show_text(cut(row.original.hex(" ", 4), 1_200))


def _parsed(text: str, topics: dict[str, str]) -> tuple[str, TopicPartition, int]:
    lane, _, rest = text.rpartition(":")[0].rpartition(":")[0], *text.rpartition(":")[1:]
    partition = text.removeprefix(f"{lane}:").rpartition(":")[0]
    if lane not in topics or not partition.isdecimal() or not rest.isdecimal():
        raise Stop(f"{text!r} is not LANE:PARTITION:OFFSET with one of the lanes {', '.join(topics)}", USAGE)
    return lane, TopicPartition(topics[lane], int(partition)), int(rest)
