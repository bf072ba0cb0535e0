"""Processor, compensator and an agent in this process, each with settings of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from tests.integration.kafka_parts import eventually
from tests.security.tools import WORLD, book

from amends.compensators.settings import CompensatorSettings
from amends.compensators.worker import Worker
from amends.kafka.settings import KafkaSettings
from amends.local.children import free_port
from amends.local.parts import Part, Parts
from amends.processors.running import fold_of
from amends.processors.settings import ProcessorSettings
from amends.processors.start import check_start
from amends.processors.transactions import TransactionalEngine
from amends.producers import workflow
from amends.producers.kafka_ledger import kafka_runtime
from amends.schemas.topics import FAUST

MODULE = "tests.security.tools"
SettingsOf = Callable[[str], KafkaSettings]


class ShopClosedError(Exception):
    """What the agent fails with."""


@dataclass(frozen=True, slots=True)
class Running:
    """A processor in a thread."""

    engine: TransactionalEngine
    thread: threading.Thread

    @property
    def ended(self) -> bool:
        return not self.thread.is_alive()

    @property
    def partitions(self) -> int:
        return len(self.engine.progress.partitions)


@contextlib.contextmanager
def processor(kafka: KafkaSettings, *, refold: bool = False) -> Iterator[Running]:
    """A processor whose application id is the topics' prefix. What ends it is raised at the end of the block."""
    settings = ProcessorSettings(application_id=kafka.topic_prefix)
    check_start(kafka, refold=refold, application_id=settings.application_id)
    engine = TransactionalEngine(kafka, settings, fold_of(kafka, settings), refold=refold)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            engine.run()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="processor")
    thread.start()
    try:
        yield Running(engine, thread)
    finally:
        engine.stop()
        thread.join(60)
    if raised:
        raise raised[0]


@contextlib.contextmanager
def faust_process(kafka: KafkaSettings, folder: Path, *arguments: str) -> Iterator[tuple[Part, Callable[[], bool]]]:
    """A processor with the engine faust, as a process of its own, and whether it has both of its partitions."""
    port = free_port()
    variables = {
        **variables_of(kafka),
        "AMENDS_PROCESSOR__ENGINE": FAUST,
        "AMENDS_PROCESSOR__APPLICATION_ID": kafka.topic_prefix,
        "AMENDS_PROCESSOR__HEALTH_PORT": str(port),
    }
    parts = Parts(variables, folder)
    part = parts.amends("processor", "processor", *arguments)

    def serves() -> bool:
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
            return len(json.load(answer)["partitions"]) == kafka.partitions
        return False

    try:
        yield part, serves
    finally:
        parts.stop()


@contextlib.contextmanager
def faust_worker(kafka: KafkaSettings, folder: Path, *arguments: str) -> Iterator[Part]:
    """As `faust_process`, once both partitions are its own."""
    with faust_process(kafka, folder, *arguments) as (part, serves):
        eventually(lambda: serves() or not part.child.alive, 90)
        assert part.child.alive, part.last_words(30)
        yield part


def variables_of(kafka: KafkaSettings) -> dict[str, str]:
    """Return settings as the variables that every part reads."""
    named = ("bootstrap_servers", "topic_prefix", "partitions", "replication_factor")
    found = {f"AMENDS_KAFKA__{name.upper()}": str(getattr(kafka, name)) for name in named}
    found["AMENDS_KAFKA__LANES"] = ",".join(kafka.lanes)
    return found | {f"AMENDS_KAFKA__{name.upper().replace('.', '_')}": value for name, value in kafka.options.items()}


@contextlib.contextmanager
def compensator(kafka: KafkaSettings, redis_url: str = "") -> Iterator[Worker]:
    settings = CompensatorSettings.model_validate({"modules": (MODULE,), "redis_url": redis_url, "drain_ms": 5_000})
    stop: list[Callable[[], object]] = []
    raised: list[BaseException] = []
    workers: list[Worker] = []

    async def serve() -> None:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(stopping.set))
        workers.append(Worker(kafka, settings))
        await workers[0].run(stopping)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="compensator")
    thread.start()
    try:
        eventually(lambda: raised or (workers and workers[0].ready.is_set()))
        if not raised:
            yield workers[0]
    finally:
        if thread.is_alive() and stop:
            stop[0]()
        thread.join(60)
    if raised:
        raise raised[0]


def fail_a_workflow(kafka: KafkaSettings, workflow_id: str, *, fails: bool = True) -> None:
    """Be an agent that books two things and fails, or succeeds."""
    runtime = kafka_runtime(kafka)

    async def agent() -> None:
        with contextlib.suppress(ShopClosedError):
            async with workflow(workflow_id, agent="shopper", runtime=runtime):
                await book(f"{workflow_id} flight")
                await book(f"{workflow_id} hotel")
                if fails:
                    raise ShopClosedError

    try:
        asyncio.run(agent())
    finally:
        runtime.close()


def await_undone(workflow_id: str) -> None:
    """Wait until what `fail_a_workflow` did is undone, in order, once."""
    wanted = [f"{what} {workflow_id} {item}" for what, item in (
        ("book", "flight"), ("book", "hotel"), ("cancel", "hotel"), ("cancel", "flight"),
    )]  # fmt: skip
    eventually(lambda: [line for line in list(WORLD) if f" {workflow_id} " in line] == wanted)
