"""Whatever stands on the ledger, of whatever size: it is dead-lettered byte for byte, and the partition goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.engine_kafka import until
from tests.integration.kafka_parts import settings_of

from amends.kafka import HEAD, KafkaSettings, PartitionReader, Publisher, Record, create_topics
from amends.local.kafka_server import KafkaServer
from amends.local.parts import environment
from amends.schemas.codec import decode, encode
from amends.schemas.commands import Phase, WorkflowEcho
from amends.schemas.facts import WorkflowEvent, WorkflowStatus

PARTITIONS = 2
RECORD_BYTES_MAX = 1_048_588  # what the ledger's topic takes, the batch around the record included

BAD: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]] = [
    (b"order-1", b"junk", [("ce_type", b"nothing")]),
    (b"order-1", b"", []),
    (b"order-1", None, []),
    (None, b"no key", []),
    (b"\xff\xfe", b"a key that is no text", []),
    (b"order-1", b"\xc3\x01" + bytes(40), []),
    (b"order-1", os.urandom(RECORD_BYTES_MAX - 100), []),
    (b"k" * 500_000, b"v" * 500_000, []),
    (b"order-1", b"long headers", [("h", b"x" * 900_000)]),
    (b"order-1", encode(WorkflowEvent("order-2", 0, WorkflowStatus.STARTED)), []),  # under another's key
]


@pytest.fixture(params=["embedded_kafka", pytest.param("kafka", marks=pytest.mark.kafka)])
def settings(request: pytest.FixtureRequest, topic_prefix: str) -> KafkaSettings:
    broker: KafkaServer = request.getfixturevalue(request.param)
    settings = settings_of(broker, topic_prefix, partitions=PARTITIONS)
    create_topics(settings)
    return settings


@pytest.fixture
def log(settings: KafkaSettings, tmp_path: Path) -> Iterator[Path]:
    """The log of a processor that runs."""
    log = tmp_path / "log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")}
    told = {**kept, **environment(settings, ""), "AMENDS_PROCESSOR__APPLICATION_ID": settings.topic_prefix}
    with log.open("wb") as out:
        command = [str(Path(sys.executable).with_name("amends")), "processor"]
        process = subprocess.Popen(command, env=told, stdout=out, stderr=out)
    yield log
    process.kill()
    process.wait()


def read(kafka: KafkaSettings, topic: str) -> list[Record]:
    with PartitionReader(kafka) as reader:
        ends = reader.ends(topic, range(kafka.partitions))
        return [record for batch in reader.read(dict.fromkeys(ends, HEAD), ends) for record in batch]


def running(kafka: KafkaSettings) -> set[str]:
    echoes = [decode(record.value) for record in read(kafka, kafka.topics.workflows)]
    return {e.workflow_id for e in echoes if isinstance(e, WorkflowEcho) and e.phase is Phase.RUNNING}


def test_a_record_nobody_can_read_is_dead_lettered_byte_for_byte_and_the_partition_goes_on(
    settings: KafkaSettings, log: Path
) -> None:
    ledger = settings.topics.ledger
    foreign = settings.model_copy(update={"options": {"message.max.bytes": "4000000"}})
    zipped = settings.model_copy(update={"options": {"message.max.bytes": "9000000", "compression.type": "gzip"}})
    bad = [*BAD, (b"order-1", b"z" * 5_000_000, [])]
    with Publisher(foreign) as publisher, Publisher(zipped) as other:
        for key, value, headers in BAD:
            publisher.publish_sync(ledger, key=key, value=value, headers=headers, partition=0)
        key, value, headers = bad[-1]
        other.publish_sync(ledger, key=key, value=value, headers=headers, partition=0)
        last = WorkflowEvent("order-3", 0, WorkflowStatus.STARTED)
        publisher.publish_sync(ledger, key=b"order-3", value=encode(last), partition=0)
    until(lambda: running(settings) == {"order-3"}, log.read_text)
    dead = settings.topics.ledger_dead_letters
    until(lambda: len(read(settings, dead)) == len(bad), log.read_text)
    letters = sorted(read(settings, dead), key=lambda letter: int(letter.header("__dlq.errors.offset") or b""))
    assert [(letter.key, letter.value) for letter in letters] == [(key, value) for key, value, _ in bad]
    for letter, (_, _, headers) in zip(letters, bad, strict=True):
        assert set(headers) <= set(letter.headers)
        assert letter.header("__dlq.errors.topic") == ledger.encode()
