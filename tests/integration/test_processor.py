"""`amends processor` as people run it, on Apache Kafka: what it refuses at the start, and how it stops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.contract import tally
from tests.contract.engine_kafka import KafkaWorld, until
from tests.contract.test_engine import KEYS, Ledger

from amends.kafka.owned import HEAD
from amends.kafka.publisher import Publisher
from amends.kafka.reader import PartitionReader
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.kafka_server import KafkaServer
from amends.processors.engine import OtherEngineError
from amends.processors.start import TopicsRefusedError, check_start
from amends.schemas.codec import Record, decode, encode
from amends.schemas.commands import Phase, UndoCommand, WorkflowEcho
from amends.schemas.contract import CallTerms, Contract, Effect, Idempotency, UndoTerms
from amends.schemas.facts import StepEvent, StepStatus, WorkflowEvent, WorkflowStatus

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka: KafkaServer, topic_prefix: str) -> KafkaSettings:
    return KafkaSettings(
        bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix, partitions=2, replication_factor=1
    )


@pytest.fixture
def world(kafka: KafkaServer, topic_prefix: str, tmp_path: Path) -> Iterator[KafkaWorld]:
    made = KafkaWorld.create(kafka.bootstrap_servers, topic_prefix, tmp_path)
    yield made
    made.close()


def environment(kafka: KafkaSettings) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")},
        "AMENDS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "AMENDS_KAFKA__TOPIC_PREFIX": kafka.topic_prefix,
        "AMENDS_KAFKA__PARTITIONS": str(kafka.partitions),
        "AMENDS_KAFKA__REPLICATION_FACTOR": "1",
        "AMENDS_PROCESSOR__APPLICATION_ID": kafka.topic_prefix,
        "AMENDS_PROCESSOR__CHECKPOINT_MS": "5000",
    }


def read(kafka: KafkaSettings, topic: str) -> list[Record]:
    with PartitionReader(kafka) as reader:
        ends = reader.ends(topic, range(kafka.partitions))
        return [decode(r.value) for records in reader.read(dict.fromkeys(ends, HEAD), ends) for r in records]


def echoes(kafka: KafkaSettings) -> list[WorkflowEcho]:
    return [echo for echo in read(kafka, kafka.topics.workflows) if isinstance(echo, WorkflowEcho)]


def kept(kafka: KafkaSettings) -> int:
    with PartitionReader(kafka) as reader:
        return sum(reader.ends(kafka.topics.changelog(), range(kafka.partitions)).values())


def test_sigterm_stops_the_command_after_a_last_checkpoint(settings: KafkaSettings, tmp_path: Path) -> None:
    create_topics(settings)
    log = tmp_path / "log"
    with log.open("wb") as out:
        command = [str(Path(sys.executable).with_name("amends")), "processor"]
        process = subprocess.Popen(command, env=environment(settings), stdout=out, stderr=out)
    try:
        with Publisher(settings) as publisher:
            event = WorkflowEvent(workflow_id="order-1", status=WorkflowStatus.STARTED, epoch=0)
            publisher.publish_sync(settings.topics.ledger, key=b"order-1", value=encode(event))
        until(lambda: [e.phase for e in echoes(settings)] == [Phase.RUNNING], log.read_text)
        assert kept(settings) == 0, "no checkpoint was due yet"
        assert healthy(log) == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
        assert kept(settings) > 0
    finally:
        process.kill()
        process.wait()


def test_a_silent_agent_is_found_and_its_step_is_commanded_to_be_undone(
    settings: KafkaSettings, tmp_path: Path
) -> None:
    create_topics(settings)
    log = tmp_path / "log"
    contract = Contract(
        "payments.charge",
        Effect.COMPENSABLE,
        call=CallTerms(Idempotency.KEY, lease_ms=500, settle_ms=100),
        undo=UndoTerms("payments.charge", "default", idempotency=Idempotency.KEY),
    )
    with log.open("wb") as out:
        command = [str(Path(sys.executable).with_name("amends")), "processor"]
        process = subprocess.Popen(command, env=environment(settings), stdout=out, stderr=out)
    try:
        with Publisher(settings) as publisher:
            ledger, key = settings.topics.ledger, b"order-1"
            started = WorkflowEvent("order-1", 0, WorkflowStatus.STARTED, lease_ms=500)
            start = publisher.publish_sync(ledger, key=key, value=encode(started)).offset
            step = StepEvent(
                "order-1",
                "1" * 32,
                attempt="agent-1",
                epoch=0,
                status=StepStatus.STARTED,
                tool_name="payments.charge",
                workflow_offset=start,
                side_effect_classification=Effect.COMPENSABLE,
                contract=encode(contract),
            )
            done = replace(step, status=StepStatus.SUCCEEDED, contract=None, undo_arguments=b"{}")
            publisher.publish_sync(ledger, key=key, value=encode(step))
            publisher.publish_sync(ledger, key=key, value=encode(done))
        until(lambda: Phase.TURNED in [e.phase for e in echoes(settings)], log.read_text)
        until(lambda: len(read(settings, settings.topics.undo("default"))) > 0, log.read_text)
        found = read(settings, settings.topics.undo("default"))[0]
        assert isinstance(found, UndoCommand)
        assert [entry.step_id for entry in found.entries] == ["1" * 32]
    finally:
        process.kill()
        process.wait()


def healthy(log: Path) -> int:
    found = re.search(r"http://([\d.]+):(\d+)", log.read_text())
    assert found is not None
    connection = HTTPConnection(found[1], int(found[2]), timeout=5)
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert json.loads(body)["partitions"] == [0, 1]
    assert "brokers_silent_ms" in json.loads(body)
    return answer.status


def test_missing_topics_are_refused_and_the_words_say_how_to_make_them(settings: KafkaSettings) -> None:
    with pytest.raises(TopicsRefusedError, match="amends topics create"):
        check_start(settings, refold=False)


def test_a_wrong_partition_count_is_refused(settings: KafkaSettings) -> None:
    create_topics(settings)
    with pytest.raises(TopicsRefusedError, match="partitions"):
        check_start(settings.model_copy(update={"partitions": 4}), refold=False)


def test_the_state_of_another_engine_is_refused_unless_it_is_to_be_refolded(settings: KafkaSettings) -> None:
    create_topics(settings)
    check_start(settings, refold=False)
    write_state_of_faust(settings)
    with pytest.raises(OtherEngineError, match="--refold"):
        check_start(settings, refold=False)
    check_start(settings, refold=True)


@pytest.mark.parametrize(("key", "value"), [(b"w", b"no state"), (b"w\x00\x00x", b"[]"), (b"\x00partition", b"7")])
def test_a_state_that_cannot_be_read_is_refused_with_what_to_do(
    settings: KafkaSettings, key: bytes, value: bytes
) -> None:
    create_topics(settings)
    with Publisher(settings) as publisher:
        publisher.publish_sync(settings.topics.changelog(), key=key, value=value, partition=1)
    command = [str(Path(sys.executable).with_name("amends")), "processor"]
    done = subprocess.run(command, env=environment(settings), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 65, done.stderr
    assert "partition 1 can't be read" in done.stderr
    assert "--refold" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_state_of_which_nobody_knows_which_facts_are_in_it_is_refused_with_what_to_do(
    world: KafkaWorld,
) -> None:
    """Kafka has forgotten the group's offsets: folded from its beginning, the ledger would count twice."""
    Ledger(world).write(8)
    topic = world.kafka.topics.changelog()
    world.publisher.publish_sync(topic, key=KEYS[3], value=tally.encode(tally.Count(count=5)), partition=1)
    world.start("a")
    words = world.why_it_ended("a")
    assert "ledger partition 1" in words, words
    assert "has no committed offset there" in words
    assert "--refold" in words
    assert world.exit_code("a") == 78


def write_state_of_faust(kafka: KafkaSettings) -> None:
    topic = kafka.topics.changelog("faust")
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in client.create_topics([NewTopic(topic, kafka.partitions, 1)]).values():
        future.result(30)
    with Publisher(kafka) as publisher:
        publisher.publish_sync(topic, key=b"order-1", value=b"state")


def test_a_refold_builds_the_same_state_and_drops_what_the_ledger_does_not_know(world: KafkaWorld) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(40))
    world.stop("a")
    known = world.state()
    topic = world.kafka.topics.changelog()
    world.publisher.publish_sync(topic, key=b"never-started", value=b'{"count": 7}', partition=0)
    assert b"never-started" in world.state()
    world.start("b", refold=True)
    until(lambda: world.state() == known, lambda: str(world.state()))
    world.await_folded(ledger.write(8))
    assert world.state() == ledger.expected


def test_an_unreachable_broker_is_waited_for_and_nothing_is_lost(own_kafka: KafkaServer, tmp_path: Path) -> None:
    world = KafkaWorld.create(own_kafka.bootstrap_servers, "restarted", tmp_path)
    try:
        ledger = Ledger(world)
        world.start("a")
        world.await_folded(ledger.write(40))
        own_kafka.restart()
        world.await_folded(ledger.write(40))
        assert world.state() == ledger.expected
    finally:
        world.close()


def test_facts_of_all_partitions_are_spread(world: KafkaWorld) -> None:
    """The keys of these tests lie on both partitions, or the tests above would test half of it."""
    assert {world.publisher.publish_sync(world.kafka.topics.ledger, key=k, value=b"x").partition for k in KEYS} == {
        0,
        1,
    }
