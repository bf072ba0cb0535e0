"""Forgetting on Apache Kafka: the real engine around the real fold, and what a refold refuses."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from tests.contract.engine_kafka import until
from tests.core.ledger import contract_of

from amends.kafka.owned import HEAD
from amends.kafka.publisher import Publisher
from amends.kafka.reader import PartitionReader
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.kafka_server import KafkaServer
from amends.processors import records
from amends.processors.partition import Partition
from amends.processors.settings import ProcessorSettings
from amends.processors.start import RefoldLosesError, check_start
from amends.processors.state import Header
from amends.processors.terms import Terms
from amends.processors.transactions import TransactionalEngine
from amends.producers.kafka_ledger import kafka_runtime
from amends.schemas.codec import decode, encode
from amends.schemas.commands import Phase, UndoCommand
from amends.schemas.facts import Fact, Party, StepEvent, StepStatus, WorkflowEvent, WorkflowStatus
from amends.tools.errors import LedgerUnavailable

pytestmark = pytest.mark.kafka
PAY = contract_of("pay")


@pytest.fixture
def settings(kafka: KafkaServer, topic_prefix: str) -> KafkaSettings:
    made = KafkaSettings(
        bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix, partitions=1, replication_factor=1
    )
    create_topics(made)
    return made


@pytest.fixture
def publisher(settings: KafkaSettings) -> Iterator[Publisher]:
    made = Publisher(settings)
    yield made
    made.close()


def values(settings: KafkaSettings, topic: str) -> list[tuple[bytes, bytes | None]]:
    with PartitionReader(settings) as reader:
        ends = reader.ends(topic, [0])
        return [(r.key or b"", r.value) for batch in reader.read(dict.fromkeys(ends, HEAD), ends) for r in batch]


def kept(settings: KafkaSettings) -> dict[bytes, bytes | None]:
    return dict(values(settings, settings.topics.changelog()))


def test_an_old_success_is_forgotten_and_undone_all_the_same_when_a_person_asks(
    settings: KafkaSettings, publisher: Publisher
) -> None:
    terms = Terms(settings.topics, frozenset(settings.lanes), grace_ms=0)
    processor = ProcessorSettings(application_id=settings.topic_prefix, checkpoint_ms=50)
    engine = TransactionalEngine(settings, processor, lambda partition: Partition(partition, terms))
    thread = threading.Thread(target=engine.run)
    thread.start()

    def write(fact: Fact) -> int:
        key = fact.workflow_id.encode()
        return publisher.publish_sync(settings.topics.ledger, key=key, value=encode(fact)).offset

    def commands() -> list[UndoCommand]:
        found = [decode(value) for _, value in values(settings, settings.topics.undo("default"))]
        return [command for command in found if isinstance(command, UndoCommand)]

    try:
        start = write(WorkflowEvent("w", 0, WorkflowStatus.STARTED, lease_ms=600_000))
        started = StepEvent(
            "w",
            "pay",
            "p1",
            0,
            StepStatus.STARTED,
            "pay",
            workflow_offset=start,
            side_effect_classification=PAY.effect,
            contract=encode(PAY),
            undo_arguments=b"{}",
        )
        write(started)
        write(dataclasses.replace(started, status=StepStatus.SUCCEEDED, contract=None))
        write(WorkflowEvent("w", 0, WorkflowStatus.SUCCEEDED, workflow_offset=start))
        header = records.header_key(b"w", start)
        until(lambda: kept(settings).get(header) is not None, lambda: "it was never kept")

        def forgotten() -> bool:
            write(WorkflowEvent("other", 0, WorkflowStatus.HEARTBEAT))  # the ledger's time passes
            return kept(settings)[header] is None

        until(forgotten, lambda: "it is not forgotten")
        assert values(settings, settings.topics.workflows)[-1] == (b"w", None)
        write(
            WorkflowEvent(
                "w", 0, WorkflowStatus.ROLLBACK_REQUESTED, workflow_offset=start, writer=Party.PERSON, by="ann"
            )
        )
        until(lambda: bool(commands()), lambda: "nothing is undone")
        assert [entry.step_id for entry in commands()[0].entries] == ["pay"]
        until(lambda: kept(settings)[header] is not None, lambda: "it is not kept")
    finally:
        engine.stop()
        thread.join()


@pytest.mark.parametrize("carried_to", [-1, 1])
def test_a_refold_that_would_lose_an_open_workflow_is_refused(
    settings: KafkaSettings, publisher: Publisher, carried_to: int
) -> None:
    for _ in range(3):
        publisher.publish_sync(settings.topics.ledger, key=b"w", value=b"-")
    header = Header("w", 0, phase=Phase.RUNNING, carried_to=carried_to)
    changelog = settings.topics.changelog()
    publisher.publish_sync(changelog, key=records.header_key(b"w", 0), value=records.encode_header(header))
    closed = records.encode_header(Header("closed", 0, phase=Phase.SUCCEEDED))
    publisher.publish_sync(changelog, key=records.header_key(b"closed", 0), value=closed)
    publisher.publish_sync(changelog, key=records.header_key(b"unreadable", 0), value=b"[nonsense")
    check_start(settings, refold=True)  # the ledger holds its beginning
    client = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    for future in client.delete_records([ClientPartition(settings.topics.ledger, 0, 2)]).values():
        future.result(30)
    if carried_to < 0:
        with pytest.raises(RefoldLosesError, match=r"1 open workflow\(s\) .*: w\. .*--accept-loss"):
            check_start(settings, refold=True)
    check_start(settings, refold=carried_to >= 0)
    check_start(settings, refold=True, accept_loss=True)


def test_nobody_resumes_a_workflow_whose_beginning_the_ledger_has_forgotten(
    settings: KafkaSettings, publisher: Publisher
) -> None:
    for _ in range(3):
        publisher.publish_sync(settings.topics.ledger, key=b"w", value=b"-")
    runtime = kafka_runtime(settings)
    assert runtime.ledger.history("w", 0, 2) == ()
    client = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    for future in client.delete_records([ClientPartition(settings.topics.ledger, 0, 2)]).values():
        future.result(30)
    with pytest.raises(LedgerUnavailable, match="amends workflows undo w"):
        runtime.ledger.history("w", 0, 2)
    runtime.close()
