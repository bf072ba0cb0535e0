"""Deciding an incident: what is read for it, and the confirmed write of the decision."""

from __future__ import annotations

import time
import uuid

from amends.console.read_model import ERRORS_PREFIX, Latest
from amends.console.reading import placed, read_partition, read_topics
from amends.console.rulings import Ruling, resolutions
from amends.kafka.publisher import Publisher
from amends.kafka.records import Ack, Record
from amends.kafka.settings import KafkaSettings
from amends.schemas.codec import encode
from amends.schemas.commands import Incident, WorkflowEcho
from amends.schemas.decisions import TOOL_MENDED
from amends.schemas.envelope import headers_of
from amends.schemas.facts import Resolution
from amends.schemas.keys import mended_key, record_key

SOURCE = "/amends/console"


def decide(settings: KafkaSettings, incident: Incident, ruling: Ruling) -> list[Resolution]:
    """Return the facts of a ruling, from what stands on the topics now.

    Raises:
        Refused: it would change nothing.
        KafkaFault: a topic is missing, or Kafka does not answer.
    """
    key, topics = record_key(incident.workflow_id), settings.topics
    echoes = Latest(WorkflowEcho)
    facts, unread = [], set[int]()
    if incident.workflow_id:
        for record in read_partition(settings, topics.workflows, key):
            echoes.fold(record)
        facts = [placed(record) for record in read_partition(settings, topics.ledger, key)]
    if incident.kind == "unreadable":
        unread = {_stood_at(r) for r in read_topics(settings, [topics.ledger_dead_letters]) if r.key == key} - {-1}
    echo = echoes.get(incident.workflow_id)
    return resolutions(
        incident,
        ruling,
        phase=echo.phase if echo is not None else None,
        placed=facts,
        unread=unread,
        now_ms=int(time.time() * 1000),
    )


def write(settings: KafkaSettings, facts: list[Resolution]) -> list[Ack]:
    """Write decisions to the ledger, those about a tool to each partition; return where they stand.

    Raises:
        NotWritten, MaybeWritten: one was not, or perhaps not; those before it were.
    """
    with Publisher(settings) as publisher:
        return [
            publisher.publish_sync(
                settings.topics.ledger,
                key=key,
                value=encode(fact),
                headers=headers_of(fact, source=SOURCE, event_id=uuid.uuid4().hex, time_ms=fact.timestamp_ms),
                partition=partition,
            )
            for fact in facts
            for key, partition in _places_of(settings, fact)
        ]


def _places_of(settings: KafkaSettings, fact: Resolution) -> list[tuple[bytes, int | None]]:
    """Return the key and the partitions a decision is written to; None: the key's own."""
    tool = fact.attributes.get(TOOL_MENDED)
    if tool is None or fact.workflow_id:
        return [(record_key(fact.workflow_id), None)]
    return [(mended_key(tool), partition) for partition in range(settings.partitions)]


def _stood_at(record: Record) -> int:
    """Where a dead letter of the ledger stood, -1 if it does not say."""
    text = dict(record.headers).get(f"{ERRORS_PREFIX}offset", b"")
    return int(text) if text.isdigit() else -1
