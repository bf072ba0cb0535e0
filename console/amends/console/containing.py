"""`amends workflows undo` and `amends contain`: what was looked at, shown, asked about and written."""

from __future__ import annotations

import time
from collections.abc import Sequence

from amends.console.exits import NEEDS_ATTENTION, NOT_FOUND, Stop
from amends.console.output import show_json, show_table
from amends.console.reading import echo_of, kafka_settings, placed, read_partition
from amends.console.undoing import Request, Subject, fact_of, forgotten, in_vain, subject_of
from amends.console.writing import confirmed, places, require_reason, say_written
from amends.kafka.settings import KafkaSettings
from amends.schemas.keys import record_key


def subject(settings: KafkaSettings, workflow_id: str) -> Subject:
    """Return the instance of a workflow that a request would be for. Raises Stop if there is none."""
    key, topics = record_key(workflow_id), settings.topics
    echo = echo_of(settings, workflow_id)
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
    require_reason(request.reason)
    wanted = [found for found in subjects if not in_vain(found)]
    if not as_json:
        show_table(
            ["workflow", "phase", "agent", "what comes of it"],
            [(s.workflow_id, s.phase or "forgotten", s.agent_id, in_vain(s) or "is undone") for s in subjects],
            none="no workflow fits",
        )
    if subjects and not wanted:
        raise Stop("nothing to ask for: see the last column", NEEDS_ATTENTION)
    settings, now_ms = kafka_settings(kafka), int(time.time() * 1000)
    facts = [fact_of(found, request, now_ms) for found in wanted]
    acks = confirmed(settings, facts, f"Have {len(wanted)} workflow(s) undone?", dry_run=dry_run, yes=yes)
    if as_json:
        show_json({"requests": facts, "written": places(acks)})
    else:
        say_written(settings, acks, dry_run, "amends workflows list, amends workflows show WORKFLOW")
