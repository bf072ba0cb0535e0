"""Topics read once, from where they begin to where they end now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from amends.console.read_model import Latest
from amends.console.steps import Placed
from amends.kafka.consumer import HEAD, PartitionReader
from amends.kafka.entrance import require_entrance_once
from amends.kafka.options import logger as client_logger
from amends.kafka.records import Record, TopicPartition
from amends.kafka.schema_registry_opening import open_schema_registry
from amends.kafka.servers import kafka_of_settings
from amends.kafka.settings import KafkaSettings
from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.commands import WorkflowEcho
from amends.schemas.facts import Fact
from amends.schemas.keys import partition_for, record_key


def kafka_settings(bootstrap_servers: str | None = None) -> KafkaSettings:
    """Return the settings of the environment and file, with other servers if given. Raises SettingsWrong."""
    # The client says the same thing many times a second when a broker is down; the error at the end says it once.
    client_logger.setLevel(logging.CRITICAL)
    open_schema_registry(learns=False)  # asked only for what is written, and for ids that are not known
    return kafka_of_settings(bootstrap_servers)


def read_topics(settings: KafkaSettings, topics: Iterable[str]) -> Iterator[Record]:
    """Yield all that stands on `topics` now; records of one partition in order.

    Raises:
        KafkaFault: a topic is missing, or Kafka does not answer.
    """
    with _reader(settings) as reader:
        for topic in topics:
            places = [TopicPartition(topic, number) for number in range(reader.partitions_of(topic))]
            yield from _read(reader, dict.fromkeys(places, HEAD))


def read_partition(
    settings: KafkaSettings, topic: str, key: bytes, *, from_offset: int | None = None
) -> Iterator[Record]:
    """Yield the records under `key`, from `from_offset` or the oldest there is. Raises KafkaFault."""
    with _reader(settings) as reader:
        place = TopicPartition(topic, partition_for(key, reader.partitions_of(topic)))
        oldest, _ = reader.watermarks(place)
        start = oldest if from_offset is None else max(oldest, from_offset)
        for record in _read(reader, {place: start}):
            if record.key == key:
                yield record


def _reader(settings: KafkaSettings) -> PartitionReader:
    """Return a reader. Raises AccessRefused where the brokers do not let us in, ReadTimedOut."""
    require_entrance_once(settings)
    return PartitionReader(settings)


def echo_of(settings: KafkaSettings, workflow_id: str) -> WorkflowEcho | None:
    """Return what the fold last said of a workflow; None if nothing is held. Raises KafkaFault."""
    echoes = Latest(WorkflowEcho)
    for record in read_partition(settings, settings.topics.workflows, record_key(workflow_id)):
        echoes.fold(record)
    return echoes.get(workflow_id)


def read_one(settings: KafkaSettings, place: TopicPartition, offset: int) -> Record | None:
    """Return the record at `offset`, or None if none is there. Raises KafkaFault."""
    with _reader(settings) as reader:
        if not 0 <= place.partition < reader.partitions_of(place.topic):
            return None
        oldest, end = reader.watermarks(place)
        if not oldest <= offset < end:
            return None
        for batch in reader.read({place: offset}, {place: offset + 1}):
            return batch[0]
    return None


def placed(record: Record) -> Placed:
    """Return what a record of the ledger says, where it stands."""
    try:
        fact = decode(record.value, record)
    except UnreadableRecord:
        return Placed(record.offset, record.appended_at_ms, None)
    return Placed(record.offset, record.appended_at_ms, fact if isinstance(fact, Fact) else None)


def _read(reader: PartitionReader, starts: Mapping[TopicPartition, int]) -> Iterator[Record]:
    topics = {place.topic for place in starts}
    ends: dict[TopicPartition, int] = {}
    for topic in topics:
        ends |= reader.ends(topic, [place.partition for place in starts if place.topic == topic])
    for batch in reader.read(starts, ends):
        yield from batch
