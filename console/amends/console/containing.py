"""`amends workflows undo` and `amends contain`: what was looked at, shown, asked about and written."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import typer

from amends.console.exits import NEEDS_ATTENTION, NOT_FOUND, USAGE, Stop
from amends.console.output import show_json, show_table
from amends.console.read_model import Latest
from amends.console.reading import kafka_settings, placed, read_partition
from amends.console.resolving import SOURCE
from amends.console.undoing import Request, Subject, fact_of, forgotten, in_vain, subject_of
from amends.kafka.publisher import Publisher
from amends.kafka.records import Ack
from amends.kafka.settings import KafkaSettings
from amends.schemas.codec import encode
from amends.schemas.commands import WorkflowEcho
from amends.schemas.envelope import headers_of
from amends.schemas.facts import WorkflowEvent
from amends.schemas.keys import record_key


def subject(settings: KafkaSettings, workflow_id: str) -> Subject:
    """Return the instance of a workflow that a request would be for. Raises Stop if there is none."""
    key, topics = record_key(workflow_id), settings.topics
    echoes = Latest(WorkflowEcho)
    for record in read_partition(settings, topics.workflows, key):
        echoes.fold(record)
    echo = echoes.get(workflow_id)
    if echo is not None:
        return subject_of(echo)
    found = forgotten(workflow_id, [placed(record) for record in read_partition(settings, topics.ledger, key)])
    if found is None:
        raise Stop(f"there is no workflow {workflow_id!r} on {topics.ledger}", NOT_FOUND)
    return found


def ask(
    subjects: Sequence[Subject],
    request: Request,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    kafka: str | None,
) -> None:
    """Show what is to be undone, ask, and write the requests. Raises Stop where none would do anything."""
    if not request.reason.strip():
        raise Stop("--reason is empty: whoever reads this later wants to know why", USAGE)
    wanted = [found for found in subjects if not in_vain(found)]
    if not as_json:
        show_table(
            ["workflow", "phase", "agent", "what comes of it"],
            [(s.workflow_id, s.phase or "forgotten", s.agent_id, in_vain(s) or "is undone") for s in subjects],
            none="no workflow fits",
        )
    if subjects and not wanted:
        raise Stop("nothing to ask for: see the last column", NEEDS_ATTENTION)
    if wanted and not dry_run and not yes:
        typer.confirm(f"Have {len(wanted)} workflow(s) undone?", abort=True, err=True)
    settings, now_ms = kafka_settings(kafka), int(time.time() * 1000)
    facts = [fact_of(found, request, now_ms) for found in wanted]
    acks = [] if dry_run else _written(settings, facts)
    if as_json:
        places = [{"partition": ack.partition, "offset": ack.offset} for ack in acks]
        show_json({"requests": facts, "written": places})
    elif dry_run:
        typer.echo("Nothing was written (--dry-run).")
    elif acks:
        typer.echo(f"{len(acks)} request(s) written to {settings.topics.ledger}.")
        typer.echo("What came of it: amends workflows list, amends workflows show WORKFLOW")


def _written(settings: KafkaSettings, facts: list[WorkflowEvent]) -> list[Ack]:
    with Publisher(settings) as publisher:
        return [
            publisher.publish_sync(
                settings.topics.ledger,
                key=record_key(fact.workflow_id),
                value=encode(fact),
                headers=headers_of(fact, source=SOURCE, event_id=uuid.uuid4().hex, time_ms=fact.timestamp_ms),
            )
            for fact in facts
        ]
