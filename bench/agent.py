"""The load: one process that runs job S, closed loop (so many in flight) or open loop (so many a second).

A workflow is in flight until the echo says that it is closed. Prints one JSON object: what it started, and how long
each step took, in microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import threading
import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer

from amends.kafka.options import EMBEDDED_FETCH_WAIT_MS
from amends.kafka.settings import KafkaSettings, load_settings
from amends.producers import workflow
from amends.schemas.codec import UnreadableRecord, decode_as
from amends.schemas.commands import Phase, WorkflowEcho
from bench.floors import tail
from bench.tools import FourthFailed, step

_CLOSED = (Phase.SUCCEEDED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS)


@dataclass
class Closings:
    """Tells when workflows are closed, from the echo."""

    settings: KafkaSettings
    loop: asyncio.AbstractEventLoop
    waiting: dict[bytes, asyncio.Future[None]] = field(default_factory=dict)
    ready: threading.Event = field(default_factory=threading.Event)
    stopping: bool = False

    def follow(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.settings.bootstrap_servers,
                "group.id": "bench-closings",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": EMBEDDED_FETCH_WAIT_MS if self.settings.embedded else 100,
            }
        )
        topic = self.settings.topics.workflows
        assigned = []
        for partition in range(self.settings.partitions):
            assigned.append(tail(consumer, topic, partition))
        consumer.assign(assigned)
        self.ready.set()
        while not self.stopping:
            messages = [m for m in (consumer.poll(0.1), *consumer.consume(500, 0)) if m is not None and not m.error()]
            closed = [key for m in messages if (key := m.key()) and _is_closed(m.value())]
            if closed:
                self.loop.call_soon_threadsafe(self._tell, closed)
        consumer.close()

    def _tell(self, keys: list[bytes]) -> None:
        for key in keys:
            waiting = self.waiting.pop(key, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    async def closed(self, workflow_id: str) -> None:
        future = self.loop.create_future()
        self.waiting[workflow_id.encode()] = future
        try:
            await asyncio.wait_for(future, 60)
        except TimeoutError:
            raise SystemExit(f"STUCK {workflow_id} was not closed within 60 s") from None


def _is_closed(value: bytes | None) -> bool:
    try:
        return decode_as(WorkflowEcho, value).phase in _CLOSED
    except UnreadableRecord:
        return False


@dataclass
class Load:
    """Runs workflows and notes how long their steps take."""

    name: str
    closings: Closings
    step_us: list[int] = field(default_factory=list)
    done: int = 0
    measuring: bool = False

    async def one(self, number: int) -> None:
        workflow_id = f"{self.name}-{number}"
        closing = asyncio.ensure_future(self.closings.closed(workflow_id))
        try:
            async with workflow(workflow_id, agent="bench"):
                for index in range(4):
                    began = time.perf_counter_ns()
                    try:
                        await step(index)
                    finally:
                        if self.measuring and index > 0:  # the first one waits for the echo of the start
                            self.step_us.append((time.perf_counter_ns() - began) // 1_000)
        except FourthFailed:
            pass
        await closing
        self.done += 1

    async def closed_loop(self, in_flight: int, until: float) -> None:
        numbers = iter(range(10**9))

        async def worker() -> None:
            while time.monotonic() < until:
                await self.one(next(numbers))

        await asyncio.gather(*(worker() for _ in range(in_flight)))

    async def open_loop(self, per_second: float, until: float, chance: random.Random) -> None:
        running: set[asyncio.Task[None]] = set()
        number, due = 0, time.monotonic()
        while due < until:
            due += chance.expovariate(per_second)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.ensure_future(self.one(number))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.gather(*running)


async def run(options: argparse.Namespace) -> None:
    settings = load_settings(KafkaSettings, "kafka")
    closings = Closings(settings, asyncio.get_running_loop())
    thread = threading.Thread(target=closings.follow, daemon=True)
    thread.start()
    closings.ready.wait(20)
    load = Load(options.name, closings)
    until = time.monotonic() + options.warm_s + options.seconds

    def measure() -> None:
        load.measuring, load.done = True, 0
        print("measuring", flush=True)

    asyncio.get_running_loop().call_later(options.warm_s, measure)
    if options.per_second:
        await load.open_loop(options.per_second, until, random.Random(options.seed))
    else:
        await load.closed_loop(options.in_flight, until)
    closings.stopping = True
    thread.join(5)
    print(json.dumps({"done": load.done, "step_us": load.step_us, "bare_us": await bare_us()}), flush=True)


async def bare_us() -> float:
    """Return what the bare body costs: its coroutine, without amends."""
    began = time.perf_counter_ns()
    for _ in range(1_000):
        await asyncio.sleep(0)
    return (time.perf_counter_ns() - began) / 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--per-second", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm-s", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    sys.setswitchinterval(0.0003)
    asyncio.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
