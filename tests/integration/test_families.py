"""A family on Apache Kafka and Redis: parent and child on partitions of two processors, an agent that is killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.kafka_parts import ROOT, eventually, settings_of
from tests.integration.undo_tools import lines_of

from amends.kafka import KafkaSettings, PartitionReader, Publisher, create_topics
from amends.kafka.owned import HEAD
from amends.kafka.records import TopicPartition
from amends.local.kafka_server import KafkaServer
from amends.processors.emission import Emission
from amends.processors.partition import Partition
from amends.processors.refolding import Refolding
from amends.processors.settings import ProcessorSettings
from amends.processors.terms import Terms
from amends.processors.transactions import TransactionalEngine
from amends.producers import Runtime, workflow
from amends.producers.kafka_ledger import kafka_runtime
from amends.schemas.codec import decode
from amends.schemas.commands import Phase, WorkflowEcho
from amends.schemas.keys import partition_for

pytestmark = pytest.mark.kafka

MODULE = "tests.integration.undo_tools"
AGENT = """
import os, signal, sys
from amends.producers import workflow
from tests.integration.undo_tools import plain

world, parent, child, other = sys.argv[1:]
with workflow(parent, lease="4s"):
    plain(world, "book")
    with workflow(child):
        plain(world, "ship")
    with workflow(other, detached=True):
        plain(world, "elsewhere")
    plain(world, "pay")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def settings(kafka: KafkaServer, topic_prefix: str) -> KafkaSettings:
    made = settings_of(kafka, topic_prefix, partitions=2).model_copy(update={"lanes": ("files",)})
    create_topics(made)
    return made


def ids_on(partition: int, names: str) -> list[str]:
    """Return an id per name, each on this partition."""
    return [
        next(f"{name}-{n}" for n in range(100) if partition_for(f"{name}-{n}".encode(), 2) == partition)
        for name in names.split()
    ]


def phases(settings: KafkaSettings) -> dict[str, Phase]:
    """Return where every workflow stands, as its last echo says."""
    topic = settings.topics.workflows
    with PartitionReader(settings) as reader:
        ends = reader.ends(topic, range(settings.partitions))
        found = [decode(r.value) for batch in reader.read(dict.fromkeys(ends, HEAD), ends) for r in batch if r.value]
    return {echo.workflow_id: echo.phase for echo in found if isinstance(echo, WorkflowEcho)}


class Watched(Partition):
    """Counts how often it wanted the ledger read again."""

    def __init__(self, partition: int, terms: Terms) -> None:
        super().__init__(partition, terms)
        self.passes = 0
        self.ids: frozenset[str] = frozenset()

    def outputs(self, now_ms: int) -> list[Emission]:
        made = super().outputs(now_ms)
        self.ids = frozenset(self.workflow_ids())
        return made

    def refolding(self) -> Refolding | None:
        found = super().refolding()
        self.passes += found is not None
        return found


@contextlib.contextmanager
def two_processors(settings: KafkaSettings) -> Iterator[list[Watched]]:
    """They forget what has been closed for four seconds; it takes twice that until an agent is missed."""
    folds: list[Watched] = []

    def fold(partition: int) -> Watched:
        folds.append(Watched(partition, terms))
        return folds[-1]

    terms = Terms(settings.topics, frozenset(settings.lanes), grace_ms=4_000)
    processor = ProcessorSettings(application_id=settings.topic_prefix, checkpoint_ms=50)
    engines = [TransactionalEngine(settings, processor, fold) for _ in range(2)]
    threads = [threading.Thread(target=engine.run) for engine in engines]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: all(len(engine.progress.partitions) == 1 for engine in engines))
        yield folds
    finally:
        for engine in engines:
            engine.stop()
        for thread in threads:
            thread.join(30)


@contextlib.contextmanager
def compensator(settings: KafkaSettings, redis_url: str, log: Path) -> Iterator[None]:
    variables = {
        "AMENDS_COMPENSATOR__REDIS_URL": redis_url,
        "AMENDS_COMPENSATOR__REGISTRY_PREFIX": settings.topic_prefix,
    }
    command = (sys.executable, "-c", "from amends.compensators.command import app; app()", MODULE)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(settings) | variables, stdout=output, stderr=output
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def environment(settings: KafkaSettings) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")},
        "AMENDS_KAFKA__BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "AMENDS_KAFKA__TOPIC_PREFIX": settings.topic_prefix,
        "AMENDS_KAFKA__LANES": "files",
        "AMENDS_KAFKA__PARTITIONS": str(settings.partitions),
        "AMENDS_KAFKA__REPLICATION_FACTOR": "1",
    }


def tick_of(workflow_id: str, runtime: Runtime) -> bool:
    """Write facts of a workflow of its own: on a partition time passes by what is appended."""
    with workflow(workflow_id, runtime=runtime):
        return True


@pytest.mark.redis
def test_a_killed_parent_has_its_finished_and_forgotten_child_undone_in_order_across_processors(
    settings: KafkaSettings, redis_url: str, tmp_path: Path
) -> None:
    world, log = str(tmp_path / "world"), tmp_path / "log"
    (parent,), (child, other) = ids_on(0, "order"), ids_on(1, "shipping newsletter")
    with two_processors(settings) as folds, compensator(settings, redis_url, log):
        agent = subprocess.run(
            [sys.executable, "-c", AGENT, world, parent, child, other],
            cwd=ROOT,
            env=environment(settings),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert agent.returncode == -signal.SIGKILL, agent.stderr.decode()
        with contextlib.closing(kafka_runtime(settings)) as runtime:
            ticks = (f"tick-{n}" for n in itertools.count())
            passing = (tick for tick in ticks if partition_for(tick.encode(), 2) == 1)
            eventually(lambda: tick_of(next(passing), runtime) and not any(child in fold.ids for fold in folds))
        eventually(lambda: phases(settings).get(parent) is Phase.COMPENSATED)
    assert lines_of(world) == [
        *(f"do {name}" for name in ("book", "ship", "elsewhere", "pay")),
        *(f"{what} {name}" for name in ("pay", "ship", "book") for what in ("begin", "undo")),
    ], log.read_text()
    assert phases(settings)[child] is Phase.COMPENSATED
    assert sum(fold.passes for fold in folds) > 0, "the child was still held"


def test_the_ledger_is_found_by_append_time(settings: KafkaSettings) -> None:
    topic = settings.topics.ledger
    place = TopicPartition(topic, 1)
    with Publisher(settings) as publisher:
        acks = [publisher.publish_sync(topic, key=b"w", value=b"x", partition=1)]
        while acks[-1].appended_at_ms < acks[0].appended_at_ms + 3:
            acks.append(publisher.publish_sync(topic, key=b"w", value=b"x", partition=1))
    with PartitionReader(settings) as reader:
        for ack in acks:
            first = next(a.offset for a in acks if a.appended_at_ms >= ack.appended_at_ms)
            assert reader.offset_at(place, ack.appended_at_ms) == first
        assert reader.offset_at(place, 0) == 0
        assert reader.offset_at(place, acks[-1].appended_at_ms + 1_000) == len(acks)
