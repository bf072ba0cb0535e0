"""Carries out one delivery: a command by its decision, anything else by a dead letter."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

from amends.compensators.dead_letter import dead_letter
from amends.compensators.decide import decide
from amends.compensators.driver import Driver
from amends.compensators.handlers import Handlers
from amends.compensators.lane import Delivery, UnreadableCommand
from amends.compensators.metrics import Metrics
from amends.compensators.read_back import WorkflowReader
from amends.compensators.registry import Registry
from amends.kafka.follower import LedgerFollower
from amends.kafka.publisher import Publisher
from amends.kafka.settings import KafkaSettings
from amends.schemas.keys import record_key

log = logging.getLogger(__name__)

CLOSED = frozenset({"UNDONE", "NOTHING_TO_UNDO"})


@dataclass(frozen=True, slots=True)
class Parts:
    """What carrying out a command needs."""

    kafka: KafkaSettings
    publisher: Publisher
    follower: LedgerFollower
    registry: Registry
    handlers: Handlers
    metrics: Metrics
    instance: str


async def carry_out(parts: Parts, delivery: Delivery) -> None:
    """Carry out one delivery: on return it may be committed."""
    record, command = delivery.record, delivery.command
    if isinstance(command, UnreadableCommand):
        parts.metrics.unreadable.labels(delivery.lane).inc()
        await dead_letter(parts.kafka, parts.publisher, delivery.lane, record, command.reason)
        return
    key = record_key(command.workflow_id)
    driver = Driver(
        publisher=parts.publisher,
        registry=parts.registry,
        handlers=parts.handlers,
        reader=WorkflowReader(parts.follower, record.partition, key),
        ledger=parts.kafka.topics.ledger,
        partition=record.partition,
        key=key,
        source=f"/amends/compensators/{parts.instance}",
    )
    report = await driver.play(decide(command, uuid.uuid4().hex, parts.instance))
    for tool_name, end in report.ends:
        parts.metrics.ends.labels(tool_name, end).inc()
        # What closed is on the ledger and counted; the log says what did not.
        log.log(logging.DEBUG if end in CLOSED else logging.INFO, "%s: %s: %s", command.workflow_id, tool_name, end)
