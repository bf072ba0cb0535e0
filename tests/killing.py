"""A hundred runs of the killing scenes on Apache Kafka and Redis, several at once: `python -m tests.killing`.

Each run is a scene made from a seed (`amends.local.story.scenes.killing_scene`): who is killed inside which call,
before or after its effect. The outside world is the judge. Every seed is printed; `--seed N --runs 1 --told` plays one
again and prints its time line. Exits 1 if anything was left or was done twice.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from amends.local.errors import ServerUnavailable
from amends.local.kafka_server import start_kafka
from amends.local.redis_server import start_redis
from amends.local.servers import Servers
from amends.local.story.director import play
from amends.local.story.scenes import killing_scene
from amends.local.story.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Run:
    """How one run went. `told` is its time line."""

    seed: int
    title: str
    problems: list[str]
    told: str
    seconds: float


def run_one(seed: int, servers: Servers) -> Run:
    scene = killing_scene(seed)
    told = io.StringIO()
    begun = time.monotonic()
    try:
        problems = play(scene, servers, Timeline(told, several=True)).problems
    except Exception as error:
        problems = [f"could not be played: {error!r}"]
    return Run(seed, scene.title, problems, told.getvalue(), time.monotonic() - begun)


def run_all(seeds: list[int], servers: Servers, at_once: int) -> Iterator[Run]:
    """Yield runs as they end."""
    with ThreadPoolExecutor(at_once) as pool:
        for done in as_completed([pool.submit(run_one, seed, servers) for seed in seeds]):
            yield done.result()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.killing")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None, help="the first seed; by default a new one")
    parser.add_argument("--kafka", default=None, help="HOST:PORT of a Kafka to use")
    parser.add_argument("--redis", default=None, help="URL of a Redis to use")
    parser.add_argument("--told", action="store_true", help="print the time line of every run")
    arguments = parser.parse_args()
    first = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1_000_000)
    seeds = list(range(first, first + arguments.runs))
    print(f"seeds {first} to {seeds[-1]}, {arguments.at_once} at once", flush=True)
    redis = start_redis(arguments.redis, preference="server")
    kafka = start_kafka(arguments.kafka, preference="apache", quick_start=False)
    wrong: list[Run] = []
    begun = time.monotonic()
    try:
        servers = Servers(kafka, redis)
        print(servers, flush=True)
        for number, run in enumerate(run_all(seeds, servers, arguments.at_once), 1):
            verdict = "well" if not run.problems else "WRONG"
            print(
                f"{number:4}/{len(seeds)}  seed {run.seed:<8} {run.seconds:5.1f} s  {verdict}  {run.title}", flush=True
            )
            if run.problems or arguments.told:
                print(run.told)
            if run.problems:
                print("\n".join(f"  WRONG  {problem}" for problem in run.problems), flush=True)
                wrong.append(run)
    finally:
        kafka.stop()
        redis.stop()
    well, took_s = len(seeds) - len(wrong), time.monotonic() - begun
    print(f"{well} of {len(seeds)} runs well in {took_s:.0f} s; wrong: {[run.seed for run in wrong] or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerUnavailable as missing:
        print(missing, file=sys.stderr)
        sys.exit(2)
