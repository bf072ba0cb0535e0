"""The compensator on a real broker and a real registry. The world is a file, and the only judge of what was done."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import pytest_asyncio
from tests.integration.kafka_parts import DEADLINE_S, ROOT, eventually, settings_of
from tests.integration.undo_tools import coroutine, lines_of, plain

from amends.compensators.lane import group_of
from amends.compensators.redis_registry import RedisRegistry, connect
from amends.compensators.registry import ClaimRequest, Done
from amends.compensators.settings import CompensatorSettings
from amends.compensators.worker import Worker
from amends.kafka import GroupConsumer, KafkaSettings, PartitionReader, Publisher, Record, check_topics, create_topics
from amends.kafka.errors import SettingsWrong, TopicsWrong
from amends.kafka.letters import compressing
from amends.kafka.records import TopicPartition
from amends.local.kafka_server import KafkaServer
from amends.local.redis_server import RedisServer
from amends.schemas.codec import decode, encode
from amends.schemas.commands import Command, ProbeCommand, ResendCommand, UndoCommand, UndoEntry
from amends.schemas.contract import Idempotency
from amends.schemas.facts import Fact, Resolution, StepEvent, StepStatus, UndoEvent
from amends.schemas.keys import forward_key, partition_for, record_key, undo_key
from amends.schemas.payload import encode_payload

pytestmark = [pytest.mark.kafka, pytest.mark.redis, pytest.mark.asyncio(loop_scope="module")]

MODULE = "tests.integration.undo_tools"
LANE = "files"
TOOLS = {"files.plain": plain.tool, "files.coroutine": coroutine.tool}


@dataclass
class Bench:
    """Topics of one test, and the fold's part played by hand."""

    kafka: KafkaSettings
    publisher: Publisher
    redis_url: str
    world: str
    reader: PartitionReader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = PartitionReader(self.kafka)

    def settings(self, **more: object) -> CompensatorSettings:
        given = {"modules": (MODULE,), "redis_url": self.redis_url, "registry_prefix": self.kafka.topic_prefix}
        return CompensatorSettings.model_validate({**given, "health_port": 0, **more})

    @contextlib.asynccontextmanager
    async def worker(self, **more: object) -> AsyncIterator[Worker]:
        stop = asyncio.Event()
        worker = Worker(self.kafka, self.settings(**more))
        task = asyncio.create_task(worker.run(stop))
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait({task, ready}, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        assert worker.ready.is_set(), task.result() if task.done() else "the worker did not come up"
        try:
            yield worker
        finally:
            ready.cancel()
            stop.set()
            await task

    def process(self, log: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start `amends compensator` as a process of its own."""
        variables = {
            "AMENDS_KAFKA__BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "AMENDS_KAFKA__TOPIC_PREFIX": self.kafka.topic_prefix,
            "AMENDS_KAFKA__LANES": LANE,
            "AMENDS_KAFKA__PARTITIONS": str(self.kafka.partitions),
            "AMENDS_KAFKA__REPLICATION_FACTOR": "1",
            "AMENDS_COMPENSATOR__REDIS_URL": self.redis_url,
            "AMENDS_COMPENSATOR__REGISTRY_PREFIX": self.kafka.topic_prefix,
        }
        command = (sys.executable, "-c", "from amends.compensators.command import app; app()", MODULE)
        with log.open("ab") as output:
            return subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **variables, **environment}, stdout=output, stderr=output
            )

    # --- the fold's part --------------------------------------------------------------------------------------------

    def started(self, workflow: str, tool: str = "files.plain", *, seconds: float = 0, name: str = "") -> int:
        """Put a step's STARTED on the ledger; return its offset."""
        given = {"world": self.world, "name": name or workflow, "seconds": seconds}
        fact = StepEvent(
            workflow, f"step-{workflow}", "a1", 0, StepStatus.STARTED, tool,
            input_payload=encode_payload(given), contract=TOOLS[tool].contract_bytes, workflow_offset=0,
        )  # fmt: skip
        return self.write(fact)

    def write(self, fact: Fact) -> int:
        key = record_key(fact.workflow_id)
        return self.publisher.publish_sync(self.kafka.topics.ledger, key=key, value=encode(fact)).offset

    def undo(self, workflow: str, tool: str = "files.plain", *, seconds: float = 0, **more: object) -> UndoCommand:
        offset = self.started(workflow, tool, seconds=seconds)
        entry = self.entry(f"step-{workflow}", tool, offset, workflow, seconds=seconds)
        return UndoCommand(workflow, 0, 1, LANE, offset, (replace(entry, **more),))  # type: ignore[arg-type]

    def entry(self, step: str, tool: str, offset: int, name: str, *, seconds: float = 0) -> UndoEntry:
        arguments = encode_payload({"world": self.world, "name": name, "seconds": seconds})
        verify = "files.coroutine" if tool == "files.coroutine" else None
        return UndoEntry(
            step, tool, tool, 0, 0, undo_key(step, 0), arguments, 30_000, 100, Idempotency.NEITHER,
            verify=verify, started_offset=offset,
        )  # fmt: skip

    def command(self, command: Command) -> int:
        key = record_key(command.workflow_id)
        return self.publisher.publish_sync(self.kafka.topics.undo(LANE), key=key, value=encode(command)).offset

    # --- looking ----------------------------------------------------------------------------------------------------

    def records(self, topic: str) -> list[Record]:
        places = [TopicPartition(topic, partition) for partition in range(self.kafka.partitions)]
        ends = self.reader.ends(topic, range(self.kafka.partitions))
        return [r for batch in self.reader.read(dict.fromkeys(places, 0), ends) for r in batch]

    def facts(self, workflow: str) -> list[Fact]:
        found = [decode(r.value) for r in self.records(self.kafka.topics.ledger) if r.key == record_key(workflow)]
        return [fact for fact in found if isinstance(fact, StepEvent | UndoEvent | Resolution)]

    def undo_statuses(self, workflow: str) -> list[str]:
        return [fact.status.value for fact in self.facts(workflow) if isinstance(fact, UndoEvent)]

    def decisions(self, workflow: str) -> list[str]:
        return [fact.decision.value for fact in self.facts(workflow) if isinstance(fact, Resolution)]

    async def until(self, look: Callable[[], bool]) -> None:
        give_up_at = asyncio.get_running_loop().time() + DEADLINE_S
        while not look():
            assert asyncio.get_running_loop().time() < give_up_at, "it did not happen before the deadline"
            await asyncio.sleep(0.05)

    async def until_committed(self, count: int) -> None:
        """Wait until so many commands of the lane are committed, over all partitions."""
        with GroupConsumer(self.kafka, group=group_of(self.kafka, LANE), topics=("unused",)) as consumer:
            topic = self.kafka.topics.undo(LANE)
            places = [TopicPartition(topic, partition) for partition in range(self.kafka.partitions)]
            await self.until(lambda: sum(consumer.committed(places).values()) >= count)

    def done(self, name: str) -> int:
        return lines_of(self.world).count(f"undo {name}")


@contextlib.contextmanager
def bench_on(kafka: KafkaServer, topic_prefix: str, redis_url: str, folder: Path) -> Iterator[Bench]:
    settings = with_topics_of(kafka, topic_prefix)
    with Publisher(settings) as publisher:
        bench = Bench(settings, publisher, redis_url, str(folder / "world"))
        yield bench
        bench.reader.close()


@pytest.fixture
def bench(kafka: KafkaServer, topic_prefix: str, redis_url: str, tmp_path: Path) -> Iterator[Bench]:
    with bench_on(kafka, topic_prefix, redis_url, tmp_path) as bench:
        yield bench


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(
    kafka: KafkaServer, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Bench, Worker]]:
    """A bench that one worker serves for all tests that ask for it."""
    folder = tmp_path_factory.mktemp("served")
    with bench_on(kafka, f"t{uuid.uuid4().hex[:10]}", redis_url, folder) as bench:
        async with bench.worker() as worker:
            yield bench, worker


@pytest.fixture
def workflow() -> str:
    """A workflow id that no other test uses; it is also the name of what is done and undone in the world."""
    return f"w-{uuid.uuid4().hex[:8]}"


def with_topics_of(kafka: KafkaServer, topic_prefix: str) -> KafkaSettings:
    settings = settings_of(kafka, topic_prefix).model_copy(update={"lanes": (LANE,)})
    create_topics(settings)
    eventually(lambda: not check_topics(settings))
    return settings


# --- one worker -----------------------------------------------------------------------------------------------------


Served = tuple[Bench, Worker]


@pytest.mark.parametrize("tool", ["files.plain", "files.coroutine"])
async def test_a_command_is_carried_out_once_recorded_and_settled(served: Served, workflow: str, tool: str) -> None:
    bench, _ = served
    command = bench.undo(workflow, tool)
    bench.command(command)
    await bench.until(lambda: bench.undo_statuses(workflow) == ["STARTED", "UNDONE"])
    bench.command(command)
    await bench.until(lambda: bench.undo_statuses(workflow) == ["STARTED", "UNDONE", "STARTED"])
    facts = [fact for fact in bench.facts(workflow) if isinstance(fact, UndoEvent)]
    assert facts[2].owner != facts[0].owner, "the second delivery started, read back, and lost"
    assert bench.done(workflow) == 1
    assert facts[1].verified == (tool == "files.coroutine")
    client = connect(bench.redis_url)
    registry = RedisRegistry(client, prefix=bench.kafka.topic_prefix)
    (answer,) = await registry.claim((ClaimRequest(command.entries[0].key, 9, "x", 1, workflow),))
    await client.aclose()
    assert isinstance(answer, Done)


async def test_a_run_started_at_once_is_undone_in_plan_order(served: Served, workflow: str) -> None:
    bench, _ = served
    offset = bench.started(workflow)
    names = [f"{workflow}-{name}" for name in ("c", "b", "a")]
    entries = tuple(bench.entry(f"step-{name}", "files.coroutine", offset, name) for name in names)
    bench.command(UndoCommand(workflow, 0, 1, LANE, offset, entries, at_once=True))
    await bench.until(lambda: bench.undo_statuses(workflow) == ["STARTED"] * 3 + ["UNDONE"] * 3)
    undone = [line for line in lines_of(bench.world) if line.startswith(f"undo {workflow}")]
    assert undone == [f"undo {name}" for name in names]


async def test_a_step_that_started_after_the_plan_releases_the_undo(served: Served, workflow: str) -> None:
    bench, _ = served
    command = bench.undo(workflow)
    bench.write(StepEvent(workflow, "step-late", "a9", 0, StepStatus.STARTED, "t", workflow_offset=0))
    bench.command(command)
    await bench.until(lambda: bench.undo_statuses(workflow) == ["STARTED", "RELEASED"])
    assert bench.done(workflow) == 0


async def test_a_tool_that_is_not_deployed_fails_with_that_reason_and_may_be_tried_again(
    served: Served, workflow: str
) -> None:
    bench, _ = served
    bench.command(bench.undo(workflow, handler="files.renamed"))
    await bench.until(lambda: bench.undo_statuses(workflow) == ["STARTED", "FAILED"])
    failed = bench.facts(workflow)[-1]
    assert isinstance(failed, UndoEvent)
    assert failed.retryable
    assert failed.error is not None
    assert "files.renamed" in failed.error.message


async def test_a_probe_reads_the_step_from_the_ledger_and_a_resend_makes_the_call_again(
    served: Served, workflow: str
) -> None:
    bench, _ = served
    tool, step = "files.coroutine", f"step-{workflow}"
    offset = bench.started(workflow, tool)
    key = forward_key(step)
    probe = ProbeCommand(workflow, 0, 1, LANE, offset, step, tool, tool, 0, ("a1",), 10_000, key, offset)
    resend = ResendCommand(
        workflow, 0, 1, LANE, offset, step, tool, 0, ("a1",), key, 10_000, 1, Idempotency.KEY, offset
    )  # fmt: skip
    bench.command(probe)
    await bench.until(lambda: bench.decisions(workflow) == ["absent"])
    bench.command(replace(resend, as_of=max(r.offset for r in bench.records(bench.kafka.topics.ledger))))
    await bench.until(lambda: len(bench.facts(workflow)) == 4)
    bench.command(replace(probe, number=1))
    await bench.until(lambda: bench.decisions(workflow) == ["absent", "present"])
    last = bench.facts(workflow)[-1]
    assert isinstance(last, Resolution)
    assert last.undo_arguments is not None
    resent = [fact for fact in bench.facts(workflow) if isinstance(fact, StepEvent)][1:]
    assert [fact.status for fact in resent] == [StepStatus.STARTED, StepStatus.SUCCEEDED]
    assert [line for line in lines_of(bench.world) if workflow in line] == [f"do {workflow} {key}"]


async def test_health_says_whether_commands_end(served: Served, workflow: str) -> None:
    bench, worker = served
    bench.command(bench.undo(workflow))
    await bench.until(lambda: bench.undo_statuses(workflow) == ["STARTED", "UNDONE"])
    await bench.until(lambda: worker.health().detail["open"] == 0)
    body = json.loads(await asyncio.to_thread(_get, f"http://127.0.0.1:{worker.health_port}/healthz"))
    assert body["healthy"]
    assert body["brokers_silent_ms"] < DEADLINE_S * 1_000
    text = (await asyncio.to_thread(_get, f"http://127.0.0.1:{worker.health_port}/metrics")).decode()
    assert 'amends_undo_ends_total{end="UNDONE",tool="files.plain"}' in text


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return bytes(answer.read())


async def test_what_is_no_command_goes_to_the_dead_letters_byte_for_byte_and_the_lane_goes_on(bench: Bench) -> None:
    topic, dead = bench.kafka.topics.undo(LANE), bench.kafka.topics.undo_dead_letters(LANE)
    fact = encode(StepEvent("w1", "s", "a", 0, StepStatus.STARTED, "t"))
    command = bench.undo("w1")
    bad: list[tuple[bytes | None, bytes | None]] = [
        (b"w1", b"\x00\xffnot avro"),
        (b"w1", None),
        (b"w1", b""),
        (b"w1", fact),
        (b"w1", encode(replace(command, workflow_id="another"))),
        (b"w1", os.urandom(1_048_000)),  # as large as the lane takes: its dead letter is larger
        (b"w1", b"z" * 5_000_000),  # larger yet: it was compressed
        (None, encode(command)),
    ]
    partition = partition_for(b"w1", bench.kafka.partitions)
    with Publisher(compressing(bench.kafka)) as stranger:
        for key, value in bad:
            stranger.publish_sync(topic, key=key, value=value, partition=partition, headers=[("kept", b"\xfe")])
    async with bench.worker():
        bench.command(command)
        await bench.until_committed(len(bad) + 1)
    assert bench.done("w1") == 1
    letters = bench.records(dead)
    letters.sort(key=lambda letter: int(letter.header("__dlq.errors.offset") or b""))
    assert [(letter.key, letter.value) for letter in letters] == bad
    for offset, letter in enumerate(letters):
        assert letter.partition == partition
        assert letter.header("kept") == b"\xfe"
        assert letter.header("__dlq.errors.topic") == topic.encode()
        assert letter.header("__dlq.errors.partition") == str(partition).encode()
        assert letter.header("__dlq.errors.offset") == str(offset).encode()
        assert letter.header("__dlq.errors.group") == group_of(bench.kafka, LANE).encode()
        assert letter.header("__dlq.errors.delivery.count") == b"1"
        assert letter.header("__dlq.errors.message")
        assert letter.header("amends-lane") == LANE.encode()


# --- the registry ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["none at all", "out of reach", "flushed"])
async def test_without_its_registry_the_read_back_still_lets_one_delivery_through(
    bench: Bench, own_redis: RedisServer, trouble: str
) -> None:
    bench.redis_url = "" if trouble == "none at all" else own_redis.url
    command = bench.undo("w1")
    async with bench.worker():
        if trouble == "out of reach":
            own_redis.kill()
        for count in range(1, 4):
            bench.command(command)
            await bench.until_committed(count)
            if trouble == "flushed":
                client = connect(own_redis.url)
                await client.flushall()
                await client.aclose()
    assert bench.done("w1") == 1
    assert bench.undo_statuses("w1") == ["STARTED", "UNDONE", "STARTED", "STARTED"], "the others lost the read back"


# --- several workers ------------------------------------------------------------------------------------------------


async def test_partitions_that_move_while_undos_run_lose_none_and_repeat_none(bench: Bench) -> None:
    names = [f"w{number}" for number in range(40)]
    commands = [
        bench.undo(name, "files.coroutine" if number % 2 else "files.plain") for number, name in enumerate(names)
    ]
    async with bench.worker(), contextlib.AsyncExitStack() as others:
        for number, command in enumerate(commands):
            bench.command(command)
            if number == 10:
                await others.enter_async_context(bench.worker())
            if number == 25:
                await others.aclose()
        await bench.until_committed(len(commands))
    assert {name: bench.done(name) for name in names} == dict.fromkeys(names, 1)


async def test_a_worker_that_was_killed_in_an_undo_leaves_it_spent_and_nobody_runs_it_again(
    bench: Bench, tmp_path: Path
) -> None:
    command = bench.undo("w1", seconds=20)
    first = bench.process(tmp_path / "first.log")
    try:
        bench.command(command)
        await bench.until(lambda: "begin w1" in lines_of(bench.world))
        first.kill()
        await asyncio.to_thread(first.wait)
        client = connect(bench.redis_url)
        keys = [key async for key in client.scan_iter(f"{bench.kafka.topic_prefix}:*")]
        await client.delete(*keys)
        await client.aclose()
        async with bench.worker():
            await bench.until_committed(1)
        assert lines_of(bench.world) == ["begin w1"]
        assert bench.undo_statuses("w1") == ["STARTED", "STARTED"], "the second lost the read back and said no more"
    finally:
        first.kill()
        first.wait()


async def test_a_worker_told_to_stop_ends_what_it_began_and_commits_it(bench: Bench, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    process = bench.process(log, AMENDS_COMPENSATOR__CONCURRENCY_MAX="1")
    try:
        for name in ("w1", "w2"):
            bench.command(bench.undo(name, seconds=1.5))
        await bench.until(lambda: len(lines_of(bench.world)) > 0)
        process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, DEADLINE_S)
        assert code == 0, log.read_text()
        (begun,) = [line.removeprefix("begin ") for line in lines_of(bench.world) if line.startswith("begin")]
        assert bench.done(begun) == 1
        assert bench.undo_statuses(begun) == ["STARTED", "UNDONE"]
        await bench.until_committed(1)
        async with bench.worker():
            await bench.until_committed(2)
        assert {name: bench.done(name) for name in ("w1", "w2")} == {"w1": 1, "w2": 1}
    finally:
        process.kill()
        process.wait()


async def test_a_worker_frozen_for_longer_than_half_its_lease_does_not_use_what_it_claimed(
    bench: Bench, tmp_path: Path
) -> None:
    # One process for plain functions is held by w1, so w2 is STARTED, owned, and waits for it while all is frozen.
    environment = {"AMENDS_COMPENSATOR__PROCESSES": "1", "AMENDS_COMPENSATOR__SESSION_TIMEOUT_MS": "60000"}
    process = bench.process(tmp_path / "worker.log", **environment)
    try:
        bench.command(bench.undo("w1", seconds=1, lease_ms=20_000))
        await bench.until(lambda: "begin w1" in lines_of(bench.world))
        bench.command(bench.undo("w2", lease_ms=3_000))
        await bench.until(lambda: "STARTED" in bench.undo_statuses("w2"))
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2)
        process.send_signal(signal.SIGCONT)
        await bench.until(lambda: len(bench.undo_statuses("w2")) == 2)
        assert bench.undo_statuses("w2") == ["STARTED", "RELEASED"]
        assert bench.done("w2") == 0
    finally:
        process.kill()
        process.wait()


# --- the start, and health ------------------------------------------------------------------------------------------


async def test_bad_settings_are_an_error_at_start_that_says_what_to_change(bench: Bench) -> None:
    stop = asyncio.Event()
    with pytest.raises(SettingsWrong, match="AMENDS_KAFKA__LANES"):
        await Worker(bench.kafka, bench.settings(lanes=("nowhere",))).run(stop)
    with pytest.raises(SettingsWrong, match="AMENDS_COMPENSATOR__PROCESSES"):
        await Worker(bench.kafka, bench.settings(processes=0)).run(stop)
    with pytest.raises(SettingsWrong, match="modules"):
        await Worker(bench.kafka, bench.settings(modules=())).run(stop)
    two_lanes = bench.kafka.model_copy(update={"lanes": (LANE, "odd")})
    with pytest.raises(SettingsWrong, match="no loaded tool is undone on the lane 'odd'"):
        await Worker(two_lanes, bench.settings(lanes=("odd",))).run(stop)
    elsewhere = bench.kafka.model_copy(update={"topic_prefix": f"none{uuid.uuid4().hex[:6]}"})
    with pytest.raises(TopicsWrong, match="amends topics create"):
        await Worker(elsewhere, bench.settings()).run(stop)
