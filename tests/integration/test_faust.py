"""The Faust engine as people run it, on Apache Kafka: both ways to start it, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.contract.engine_kafka import KafkaWorld, until
from tests.contract.test_engine import Ledger

from amends.kafka.owned import HEAD
from amends.kafka.publisher import Publisher
from amends.kafka.reader import PartitionReader
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.kafka_server import KafkaServer
from amends.processors.engine import OtherEngineError
from amends.processors.faust_changelog import LEFT_KEY, SEAL_KEY, Mark, Rank, mark_of
from amends.processors.faust_worker import EXIT_LATE, STOP_S
from amends.processors.start import TopicsRefusedError, check_start
from amends.schemas.codec import decode, encode
from amends.schemas.commands import Phase, WorkflowEcho
from amends.schemas.facts import WorkflowEvent, WorkflowStatus
from amends.schemas.topics import FAUST, TRANSACTIONS

pytestmark = pytest.mark.kafka

BIN = Path(sys.executable).parent
AMENDS = [str(BIN / "amends"), "processor"]
WORKER = [str(BIN / "faust"), "-A", "amends.processors.faust_app", "worker", "-l", "info", "--without-web"]


@pytest.fixture
def settings(kafka: KafkaServer, topic_prefix: str) -> KafkaSettings:
    found = KafkaSettings(
        bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix, partitions=2, replication_factor=1
    )
    create_topics(found, FAUST)
    return found


@pytest.fixture
def world(kafka: KafkaServer, topic_prefix: str, tmp_path: Path) -> Iterator[KafkaWorld]:
    made = KafkaWorld.create(kafka.bootstrap_servers, topic_prefix, tmp_path, FAUST)
    yield made
    made.close()


def environment(kafka: KafkaSettings, engine: str = FAUST) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")},
        "AMENDS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "AMENDS_KAFKA__TOPIC_PREFIX": kafka.topic_prefix,
        "AMENDS_KAFKA__PARTITIONS": str(kafka.partitions),
        "AMENDS_KAFKA__REPLICATION_FACTOR": "1",
        "AMENDS_PROCESSOR__APPLICATION_ID": kafka.topic_prefix,
        "AMENDS_PROCESSOR__ENGINE": engine,
    }


def refused(kafka: KafkaSettings, command: list[str], engine: str = FAUST) -> tuple[int, str]:
    """Run a processor that is to refuse; return its exit code and words."""
    done = subprocess.run(
        command, env=environment(kafka, engine), capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


def echoes(kafka: KafkaSettings) -> list[Phase]:
    with PartitionReader(kafka) as reader:
        ends = reader.ends(kafka.topics.workflows, range(kafka.partitions))
        found = [decode(r.value) for records in reader.read(dict.fromkeys(ends, HEAD), ends) for r in records]
    return [echo.phase for echo in found if isinstance(echo, WorkflowEcho)]


def changelog(kafka: KafkaSettings) -> list[tuple[int, bytes, Rank]]:
    with PartitionReader(kafka) as reader:
        ends = reader.ends(kafka.topics.changelog(FAUST), range(kafka.partitions))
        return [
            (record.partition, record.key or b"", mark_of(record.headers).rank)
            for records in reader.read(dict.fromkeys(ends, HEAD), ends)
            for record in records
        ]


@pytest.mark.parametrize("command", [AMENDS, WORKER], ids=["amends processor", "faust worker"])
def test_a_worker_folds_tells_its_health_and_stops_on_sigterm_after_a_last_checkpoint(
    command: list[str], settings: KafkaSettings, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment(settings), stdout=out, stderr=out, cwd=tmp_path)
    try:
        with Publisher(settings) as publisher:
            event = WorkflowEvent(workflow_id="order-1", status=WorkflowStatus.STARTED, epoch=0)
            publisher.publish_sync(settings.topics.ledger, key=b"order-1", value=encode(event))
        until(lambda: echoes(settings) == [Phase.RUNNING], log.read_text)
        found = re.search(r"/metrics on http://([\d.]+):(\d+)", log.read_text())
        assert found is not None
        connection = HTTPConnection(found[1], int(found[2]), timeout=5)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        assert SEAL_KEY in [key for _, key, _ in changelog(settings)]
        assert [path.name for path in tmp_path.iterdir()] == ["log"], "nothing is kept on disk"
    finally:
        process.kill()
        process.wait()


def test_a_worker_whose_broker_is_gone_ends_on_sigterm_within_seconds_and_says_so(
    own_kafka: KafkaServer, topic_prefix: str, tmp_path: Path
) -> None:
    """Faust itself waits for a minute; orchestrators kill before that, and nobody knows why."""
    settings = KafkaSettings(
        bootstrap_servers=own_kafka.bootstrap_servers, topic_prefix=topic_prefix, partitions=1, replication_factor=1
    )
    create_topics(settings, FAUST)
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(AMENDS, env=environment(settings), stdout=out, stderr=out)
    try:
        with Publisher(settings) as publisher:
            event = WorkflowEvent(workflow_id="order-1", status=WorkflowStatus.STARTED, epoch=0)
            publisher.publish_sync(settings.topics.ledger, key=b"order-1", value=encode(event))
        until(lambda: echoes(settings) == [Phase.RUNNING], log.read_text)
        own_kafka.kill()
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S + 10) in (0, EXIT_LATE)
        assert process.returncode == 0 or "did not end in order" in log.read_text()
    finally:
        process.kill()
        process.wait()


def test_its_changelog_must_be_there_and_the_words_say_how_to_make_it(kafka: KafkaServer, topic_prefix: str) -> None:
    settings = KafkaSettings(
        bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix, partitions=2, replication_factor=1
    )
    create_topics(settings)
    with pytest.raises(TopicsRefusedError, match="amends topics create --engine faust"):
        check_start(settings, refold=False, engine=FAUST)


@pytest.mark.parametrize("command", [AMENDS, WORKER], ids=["amends processor", "faust worker"])
def test_an_option_that_it_cannot_express_is_refused(command: list[str], settings: KafkaSettings) -> None:
    given = {**environment(settings), "AMENDS_KAFKA__SOCKET_TIMEOUT_MS": "9000"}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78, done.stderr
    assert "socket.timeout.ms" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_engines_on_one_application_id_are_refused_in_words(world: KafkaWorld) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(20))
    code, words = refused(world.kafka, AMENDS, TRANSACTIONS)
    assert code == 78, words
    assert f"group {world.kafka.topic_prefix} has 1 member(s) of another engine" in words
    assert "AMENDS_PROCESSOR__ENGINE" in words
    world.await_folded(ledger.write(20))
    assert world.state() == ledger.expected


def test_a_member_of_another_engine_that_came_in_the_same_moment_is_refused_by_the_broker(world: KafkaWorld) -> None:
    """Both looked before either was there; the contract's process doesn't look at all."""
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(20))
    world.engine = TRANSACTIONS
    world.start("b")
    words = world.why_it_ended("b")
    assert "members of another engine" in words, words
    assert "AMENDS_PROCESSOR__ENGINE" in words


def test_the_engine_is_changed_by_a_refold_there_and_back(world: KafkaWorld) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(40))
    world.stop("a")
    kafka, group = world.kafka, world.kafka.topic_prefix
    with pytest.raises(OtherEngineError, match=r"kept by the engine faust .*--refold"):
        check_start(kafka, refold=False, engine=TRANSACTIONS, application_id=group)
    check_start(kafka, refold=True, engine=TRANSACTIONS, application_id=group)
    world.engine = TRANSACTIONS
    world.start("b", refold=True)
    world.await_folded(ledger.write(8))
    assert world.state() == ledger.expected
    world.stop("b")
    with pytest.raises(OtherEngineError, match="was left behind"):
        check_start(kafka, refold=False, engine=FAUST, application_id=group)
    check_start(kafka, refold=True, engine=FAUST, application_id=group)
    world.engine = FAUST
    world.start("c", refold=True)
    world.await_folded(ledger.write(8))
    assert world.state() == ledger.expected
    world.stop("c")
    check_start(kafka, refold=False, engine=FAUST, application_id=group)


def test_a_refold_begins_far_behind_where_the_group_stands_and_drops_what_the_ledger_does_not_know(
    world: KafkaWorld,
) -> None:
    """No fact comes to say that the group stands too far on; and more than one batch is to be read again."""
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(2_400))
    world.stop("a")
    known = world.state()
    topic, mark = world.kafka.topics.changelog(FAUST), Mark(Rank(0, 10_000), 1)
    for key, value in ((b"never-started", b'{"count": 7}'), (SEAL_KEY, b"")):
        world.publisher.publish_sync(topic, key=key, value=value, partition=0, headers=mark.headers())
    assert b"never-started" in world.state()
    world.start("b", refold=True)
    until(lambda: world.state() == known, lambda: str(world.state()))
    world.await_folded(ledger.write(8))
    assert world.state() == ledger.expected


def test_a_change_of_engine_that_died_in_its_first_checkpoint_leaves_the_state_left_until_that_is_sealed(
    settings: KafkaSettings,
) -> None:
    old, new = Mark(Rank(0, 9), 1), Mark(Rank(1, 700), 2)
    topic, dropped = settings.topics.changelog(FAUST), [b"w-%d" % number for number in range(700)]
    with Publisher(settings) as publisher:

        def write(key: bytes, value: bytes | None, mark: Mark) -> None:
            publisher.publish_sync(topic, key=key, value=value, partition=1, headers=mark.headers())

        write(SEAL_KEY, b"", old)
        check_start(settings, refold=False, engine=FAUST)
        publisher.publish_sync(topic, key=LEFT_KEY, value=TRANSACTIONS.encode(), partition=1)
        for key in (LEFT_KEY, *dropped):
            write(key, None, new)
        with pytest.raises(OtherEngineError, match="was left behind"):
            check_start(settings, refold=False, engine=FAUST)
        write(SEAL_KEY, b"", new)
        check_start(settings, refold=False, engine=FAUST)


def test_what_a_replaced_process_wrote_late_does_not_count_and_is_written_over(world: KafkaWorld) -> None:
    ledger = Ledger(world)
    world.start("a")
    world.await_folded(ledger.write(40))
    world.stop("a")
    topic, late = world.kafka.topics.changelog(FAUST), Mark(Rank(0, 1), 7)
    beaten = {(partition, key) for partition, key, _ in changelog(world.kafka)}
    for partition, key in beaten:
        world.publisher.publish_sync(topic, key=key, value=b"{}", partition=partition, headers=late.headers())
    assert world.state() == ledger.expected
    world.start("b")

    def last() -> set[Rank]:
        return set({(partition, key): rank for partition, key, rank in changelog(world.kafka)}.values())

    until(lambda: late.rank not in last(), lambda: str(last()))
    world.await_folded(ledger.write(8))
    assert world.state() == ledger.expected


def test_a_changelog_that_another_program_wrote_to_is_refused_with_what_to_do(settings: KafkaSettings) -> None:
    with Publisher(settings) as publisher:
        publisher.publish_sync(settings.topics.changelog(FAUST), key=b"w", value=b"state", partition=1)
    code, words = refused(settings, AMENDS)
    assert code == 65, words
    assert "partition 1 can't be read" in words
    assert "--refold" in words
