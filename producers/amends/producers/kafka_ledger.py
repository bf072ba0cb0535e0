"""The ledger on Kafka: confirmed writes, the echo, and the history of one workflow."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import lru_cache

from amends.kafka.consumer import PartitionReader
from amends.kafka.errors import KafkaFault, NotWritten, RecordGone, WriteError
from amends.kafka.publisher import Publisher
from amends.kafka.records import Ack, Record, TopicPartition
from amends.kafka.schema_registry_opening import open_schema_registry
from amends.kafka.settings import KafkaSettings, load_settings
from amends.producers.echo import EchoReader
from amends.producers.effects import Acknowledged, Uncertain, Unwritten, Write
from amends.producers.ledger import History, Listener, OnWritten
from amends.producers.runtime import Runtime
from amends.producers.settings import ProducerSettings
from amends.schemas.codec import UnreadableRecord, decode, encode_value
from amends.schemas.envelope import Headers, headers_of
from amends.schemas.facts import Carry, Fact, Resolution, StepEvent, Timeout, UndoEvent, WorkflowEvent
from amends.schemas.keys import partition_for, record_key
from amends.tools.errors import LedgerUnavailable

HISTORY_FETCH_WAIT_MS = 10
CLOSE_WITHIN_MS = 3_000

_TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"})


class KafkaLedger:
    """See `ledger.Ledger`. Makes its clients when they are first needed, in the process that needs them."""

    def __init__(self, settings: KafkaSettings, *, write_within_ms: int = 10_000) -> None:
        self._settings = settings
        self._topic = settings.topics.ledger
        self._publisher = Publisher(settings, deadline_ms=write_within_ms)
        self._echo = EchoReader(settings, within_ms=write_within_ms)
        self._source = f"/amends/producers/{os.getpid()}"
        self._events = itertools.count(1)

    def write(self, fact: StepEvent | WorkflowEvent) -> Write:
        key, partition = self._place(fact)
        try:
            ack = self._publisher.publish_sync(
                self._topic, key=key, value=encode_value(fact), headers=self._headers(fact), partition=partition
            )
        except WriteError as error:
            return _answer(error)
        return Acknowledged(ack.offset, ack.appended_at_ms)

    async def write_async(self, fact: StepEvent | WorkflowEvent | Resolution | UndoEvent) -> Write:
        key, partition = self._place(fact)
        try:
            ack = await self._publisher.publish(
                self._topic, key=key, value=encode_value(fact), headers=self._headers(fact), partition=partition
            )
        except WriteError as error:
            return _answer(error)
        return Acknowledged(ack.offset, ack.appended_at_ms)

    def send(self, fact: StepEvent | WorkflowEvent, on_written: OnWritten) -> None:
        key, partition = self._place(fact)
        self._publisher.send(
            self._topic,
            key=key,
            value=encode_value(fact),
            headers=self._headers(fact),
            partition=partition,
            on_done=lambda done: on_written(_answer(done)),
        )

    def follow(self, workflow_id: str, listener: Listener) -> Callable[[], None]:
        return self._echo.follow(workflow_id, listener)

    async def follow_async(self, workflow_id: str, listener: Listener) -> Callable[[], None]:
        return await self._echo.follow_async(workflow_id, listener)

    def history(self, workflow_id: str, from_offset: int, to_offset: int) -> History:
        key = record_key(workflow_id)
        place = TopicPartition(self._topic, partition_for(key, self._settings.partitions))
        found: list[tuple[int, Fact]] = []
        try:
            with PartitionReader(self._settings, fetch_wait_ms=HISTORY_FETCH_WAIT_MS) as reader:
                for batch in reader.read({place: from_offset}, {place: to_offset + 1}, idle_max_ms=10_000):
                    found += [(r.offset, fact) for r in batch if r.key == key and (fact := _readable(r))]
        except RecordGone as gone:
            raise LedgerUnavailable(
                f"workflow {workflow_id!r} began before the oldest record that the ledger still holds: what it did "
                f"can't be read, so nobody can resume it. Have it undone (amends workflows undo {workflow_id}), and "
                f"choose a retention of {self._topic} that is twice the longest workflow"
            ) from gone
        except KafkaFault as error:
            raise LedgerUnavailable(f"workflow {workflow_id!r}: its history can't be read ({error}).") from error
        return tuple(found)

    def close(self) -> None:
        self._echo.close()
        self._publisher.close(CLOSE_WITHIN_MS)

    def _place(self, fact: Fact) -> tuple[bytes, int]:
        return _place_of(fact.workflow_id, self._settings.partitions)

    def _headers(self, fact: Fact) -> Headers:
        return headers_of(fact, source=self._source, event_id=str(next(self._events)), time_ms=fact.timestamp_ms)


def runtime_from_environment() -> Runtime:
    """Return a runtime with the settings of the environment. Kafka is not asked until the first scope; a schema
    registry is, for as long as AMENDS_SCHEMA_REGISTRY__START_WITHIN_MS at most.

    Raises:
        SettingsWrong: a setting is unknown or does not fit, or the schema registry answers that we are not to
            come in, or that it lacks our schemas.
    """
    settings = load_settings(ProducerSettings, "producer")
    kafka = load_settings(KafkaSettings, "kafka")
    if settings.mode != "off":
        open_schema_registry()
    return kafka_runtime(kafka, settings)


def kafka_runtime(kafka: KafkaSettings, settings: ProducerSettings | None = None) -> Runtime:
    """Return a runtime on the Kafka of `kafka`. Close it when done."""
    chosen = settings or ProducerSettings()
    return Runtime(chosen, lambda: KafkaLedger(kafka, write_within_ms=chosen.write_within_ms))


@lru_cache(maxsize=4_096)
def _place_of(workflow_id: str, partitions: int) -> tuple[bytes, int]:
    """Return the key and the partition of a workflow. Kept, for a workflow has many facts and murmur2 is slow here."""
    key = record_key(workflow_id)
    return key, partition_for(key, partitions)


def _answer(done: Ack | WriteError) -> Write:
    if isinstance(done, Ack):
        return Acknowledged(done.offset, done.appended_at_ms)
    if isinstance(done, NotWritten):
        return Unwritten(done.reason, too_large=done.code in _TOO_LARGE)
    return Uncertain(done.reason)


def _readable(stored: Record) -> Fact | None:
    try:
        record = decode(stored.value, stored)
    except UnreadableRecord:
        return None
    return record if isinstance(record, StepEvent | WorkflowEvent | UndoEvent | Resolution | Timeout | Carry) else None
