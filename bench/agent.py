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
import time
from dataclasses import dataclass, field

import uvloop

from amends.producers import workflow
from amends.producers.ledger import Ledger
from amends.producers.runtime import default_runtime
from amends.schemas.commands import Phase, WorkflowEcho
from bench.tools import FourthFailed, step

CLOSED_WITHIN_S = 60
_CLOSED = (Phase.SUCCEEDED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS)


@dataclass
class Load:
    """Runs workflows and notes how long their steps take."""

    name: str
    ledger: Ledger
    step_us: list[int] = field(default_factory=list)
    done: int = 0
    measuring: bool = False

    async def one(self, number: int) -> None:
        workflow_id = f"{self.name}-{number}"
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()

        def heard(echo: WorkflowEcho) -> None:  # in the echo reader's thread
            if echo.phase in _CLOSED:
                loop.call_soon_threadsafe(_settle, closed)

        # The echo that this process reads for its scopes: a consumer of our own would be charged to amends.
        unfollow = await self.ledger.follow_async(workflow_id, heard)
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
        try:
            async with asyncio.timeout(CLOSED_WITHIN_S):
                await closed
        except TimeoutError:
            raise SystemExit(f"STUCK {workflow_id} was not closed within {CLOSED_WITHIN_S} s") from None
        unfollow()
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
    load = Load(options.name, default_runtime().ledger)
    until = time.monotonic() + options.warm_s + options.seconds

    def measure() -> None:
        load.measuring, load.done = True, 0
        print("measuring", flush=True)

    asyncio.get_running_loop().call_later(options.warm_s, measure)
    if options.per_second:
        await load.open_loop(options.per_second, until, random.Random(options.seed))
    else:
        await load.closed_loop(options.in_flight, until)
    print(json.dumps({"done": load.done, "step_us": load.step_us, "bare_us": await bare_us()}), flush=True)


def _settle(closed: asyncio.Future[None]) -> None:
    if not closed.done():
        closed.set_result(None)


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
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as agents under uvicorn have it
        runner.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
