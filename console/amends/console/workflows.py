"""`amends workflows list|show|undo`: where each workflow stands, what happened to one, and a request to undo it."""

from __future__ import annotations

from typing import Annotated

import typer

from amends.console.containing import ask, subject
from amends.console.exits import NEEDS_ATTENTION, NOT_FOUND, Stop
from amends.console.options import AsJson, Check, Kafka, Limit, Since, since_ms
from amends.console.output import moment, show_fields, show_json, show_table, show_text, show_title
from amends.console.phrases import CLOSED_AS
from amends.console.read_model import Latest, WorkflowFilter, with_open_incidents
from amends.console.reading import echo_of, kafka_settings, placed, read_partition, read_topics
from amends.console.story import Story, tell
from amends.console.undoing import Request
from amends.console.writing import By, DryRun, Reason, Yes, user_of_machine
from amends.kafka.settings import KafkaSettings
from amends.schemas.commands import Incident, Phase, WorkflowEcho
from amends.schemas.keys import record_key

app = typer.Typer(no_args_is_help=True, help="Where workflows stand, what happened to one, and a request to undo it.")


@app.command("list")
def list_workflows(
    phase: Annotated[
        list[Phase] | None,
        typer.Option("--phase", case_sensitive=False, metavar="PHASE", help=f"{', '.join(Phase)}. May be repeated."),
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Of this agent.")] = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only those that are not closed.")] = False,
    with_incidents: Annotated[bool, typer.Option("--with-incidents", help="Only those a person must look at.")] = False,
    since: Since = None,
    limit: Limit = 100,
    check: Check = False,
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """List workflows, newest first, as the fold last said."""
    wanted = WorkflowFilter(frozenset(phase or ()), agent, open_only, with_incidents, since_ms(since))
    settings = kafka_settings(kafka)
    table, incidents = Latest(WorkflowEcho), Latest(Incident)
    for record in read_topics(settings, [settings.topics.workflows]):
        table.fold(record)
    for record in read_topics(settings, [settings.topics.incidents]):
        incidents.fold(record)
    rows = with_open_incidents(table.rows(), incidents.rows())
    found = sorted(filter(wanted.wants, rows), key=lambda row: row.started_at_ms, reverse=True)
    if as_json:
        show_json(found[:limit])
    else:
        _show_rows(found[:limit])
        _say_more(len(found) - limit, len(table.unreadable))
    if check and found:
        raise typer.Exit(NEEDS_ATTENTION)


def _show_rows(rows: list[WorkflowEcho]) -> None:
    show_table(
        ["workflow", "phase", "epoch", "agent", "started (UTC)", "incidents", "story"],
        [
            (
                row.workflow_id,
                row.phase.value,
                row.epoch,
                row.agent_id,
                moment(row.started_at_ms),
                row.incidents_open or "",
                row.story.split("\n")[0],
            )
            for row in rows
        ],
        none="no workflow fits",
    )


def _say_more(left_out: int, unreadable: int) -> None:
    if left_out > 0:
        typer.echo(f"{left_out} more: --limit", err=True)
    if unreadable:
        typer.echo(f"{unreadable} record(s) can't be read by this version", err=True)


@app.command("show")
def show_workflow(
    workflow_id: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow's id.")],
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """Show a workflow's time line, its steps and undos, what is open, and what to do."""
    settings = kafka_settings(kafka)
    story = _story(settings, workflow_id)
    if not story.moments and story.echo is None:
        raise Stop(f"there is no workflow {workflow_id!r} on {settings.topics.ledger}", NOT_FOUND)
    if as_json:
        show_json({**_as_dict(story), "steps": [{**_as_dict(s), "status": s.status} for s in story.steps]})
    else:
        _show_story(story)


@app.command("undo")
def undo_workflows(
    workflow_ids: Annotated[list[str], typer.Argument(metavar="WORKFLOW...", help="Ids of workflows.")],
    reason: Reason,
    savepoint: Annotated[str | None, typer.Option("--to", help="Only what it did after this savepoint.")] = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """Ask that workflows be undone: running ones, finished ones, and forgotten ones that the ledger still holds."""
    settings = kafka_settings(kafka)
    request = Request(by or user_of_machine(), reason, savepoint)
    subjects = [subject(settings, workflow_id) for workflow_id in dict.fromkeys(workflow_ids)]
    ask(subjects, request, dry_run=dry_run, yes=yes, as_json=as_json, kafka=kafka)


def _story(settings: KafkaSettings, workflow_id: str) -> Story:
    key, topics = record_key(workflow_id), settings.topics
    echo = echo_of(settings, workflow_id)
    start = echo.workflow_offset if echo is not None and echo.workflow_offset >= 0 else None
    facts = [placed(record) for record in read_partition(settings, topics.ledger, key, from_offset=start)]
    incidents = Latest(Incident)
    for record in read_topics(settings, [topics.incidents]):
        incidents.fold(record)
    return tell(workflow_id, echo, facts, incidents.rows())


def _as_dict(value: Story | object) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__class__.__slots__}  # type: ignore[attr-defined]


def _show_story(story: Story) -> None:
    echo = story.echo
    fields: list[tuple[str, object]] = [("workflow", story.workflow_id), ("starts at offset", story.workflow_offset)]
    if echo is not None:
        fields += [("phase", echo.phase.value), ("epoch", echo.epoch), ("agent", echo.agent_id)]
        fields += [
            ("started (UTC)", moment(echo.started_at_ms)),
            ("folded to", echo.folded_to),
            ("story", echo.story.split("\n")[0]),
        ]
    if story.parent:
        fields.append(("child of", story.parent))
    show_fields(fields)
    show_title("Time line" + (f", heartbeats left out: {story.heartbeats}" if story.heartbeats else ""))
    rows = [
        (m.offset, moment(m.at_ms), m.who, m.what + (f" ({m.times} times)" if m.times > 1 else ""))
        for m in story.moments
    ]
    show_table(["offset", "appended (UTC)", "who", "what"], rows, none="nothing on the ledger any more")
    show_title("Steps")
    show_table(
        ["step", "tool", "effect", "epoch", "attempts", "is", "undo", "outside"],
        [
            (
                step.step_id[:8],
                step.tool,
                step.effect.value,
                step.epoch,
                len(step.attempts),
                step.status,
                step.undo,
                ", ".join(f"{name}={value}" for name, value in step.external_resource_ids),
            )
            for step in story.steps
        ],
        none="no step",
    )
    if story.children:
        show_title("Children")
        show_table(
            ["workflow", "begun at offset", "asked to be undone, it said"],
            [(c.workflow_id, c.started_offset, CLOSED_AS.get(c.closed_as, c.closed_as)) for c in story.children],
            none="",
        )
    for title, lines in (("Open", story.open), ("To do", story.to_do)):
        if lines:
            show_title(title)
            show_text("\n".join(f"- {line}" for line in lines))
