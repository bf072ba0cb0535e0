"""Commands nobody can read: kept byte for byte in the lane's dead-letter topic, under the names of KIP-1191."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from amends.compensators.lane import group_of
from amends.kafka.errors import WriteError
from amends.kafka.letters import compressing, is_large
from amends.kafka.publisher import Publisher
from amends.kafka.records import Headers, Record
from amends.kafka.settings import KafkaSettings

log = logging.getLogger(__name__)

WRITE_AGAIN_MS = 500
REASON_CHARACTERS_MAX = 1_000


def headers_for(record: Record, *, group: str, lane: str, reason: str, now_ms: int) -> Headers:
    """Return the record's own headers, then where it comes from and why it is here. Numbers are text."""
    reason = reason[:REASON_CHARACTERS_MAX]
    added = {
        "__dlq.errors.topic": record.topic,
        "__dlq.errors.partition": str(record.partition),
        "__dlq.errors.offset": str(record.offset),
        "__dlq.errors.group": group,
        "__dlq.errors.delivery.count": "1",
        "__dlq.errors.message": reason,
        "amends-reason": reason,
        "amends-lane": lane,
        "amends-kind": "unreadable-command",
        "amends-dead-lettered-at-ms": str(now_ms),
    }
    return [*record.headers, *((name, value.encode()) for name, value in added.items())]


async def dead_letter(kafka: KafkaSettings, publisher: Publisher, lane: str, record: Record, reason: str) -> None:
    """Write `record` to its dead-letter topic; return once it is acknowledged, however long that takes."""
    headers = headers_for(record, group=group_of(kafka, lane), lane=lane, reason=reason, now_ms=int(time.time() * 1000))
    topic = kafka.topics.undo_dead_letters(lane)
    place = f"{record.topic}[{record.partition}]@{record.offset}"
    log.error("%s is no command and goes to %s: %s", place, topic, reason)
    with contextlib.ExitStack() as stack:
        if is_large(record.key, record.value, headers):
            publisher = stack.enter_context(Publisher(compressing(kafka)))
        await _written(publisher, topic, record, headers, place)


async def _written(publisher: Publisher, topic: str, record: Record, headers: Headers, place: str) -> None:
    while True:
        try:
            await publisher.publish(
                topic, key=record.key, value=record.value, headers=headers, partition=record.partition
            )
        except WriteError as error:
            log.warning("the dead letter of %s is not written yet: %s", place, error)
            await asyncio.sleep(WRITE_AGAIN_MS / 1000)
        else:
            return
