"""Deciding an incident: what is read for it."""

from __future__ import annotations

import time

from amends.console.read_model import ERRORS_PREFIX
from amends.console.reading import echo_of, placed, read_partition, read_topics
from amends.console.rulings import Ruling, resolutions
from amends.kafka.records import Record
from amends.kafka.settings import KafkaSettings
from amends.schemas.commands import Incident
from amends.schemas.facts import Resolution
from amends.schemas.keys import record_key


def decide(settings: KafkaSettings, incident: Incident, ruling: Ruling) -> list[Resolution]:
    """Return the facts of a ruling, from what stands on the topics now.

    Raises:
        Refused: it would change nothing.
        KafkaFault: a topic is missing, or Kafka does not answer.
    """
    key, topics = record_key(incident.workflow_id), settings.topics
    echo, facts, unread = None, [], set[int]()
    if incident.workflow_id:
        echo = echo_of(settings, incident.workflow_id)
        facts = [placed(record) for record in read_partition(settings, topics.ledger, key)]
    if incident.kind == "unreadable":
        unread = {_stood_at(r) for r in read_topics(settings, [topics.ledger_dead_letters]) if r.key == key} - {-1}
    return resolutions(
        incident,
        ruling,
        phase=echo.phase if echo is not None else None,
        placed=facts,
        unread=unread,
        now_ms=int(time.time() * 1000),
    )


def _stood_at(record: Record) -> int:
    """Where a dead letter of the ledger stood, -1 if it does not say."""
    text = dict(record.headers).get(f"{ERRORS_PREFIX}offset", b"")
    return int(text) if text.isdigit() else -1
