"""A hundred runs of the killing scenes on one Apache Kafka and Redis, several at once: `python -m tests.killing`.

Each run is an order whose seed says where its agent is killed or frozen, and in which undos a compensator is, and
whether a processor dies or Redis forgets everything meanwhile. All runs share the parts, so what befalls one befalls
its neighbours too. The outside world is the judge: at the end of each run, and once more when all are over and
everybody frozen has been woken. Exits with 1 if anything was left, done twice, or not closed; leaves nothing running.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.killing.evidence import write_evidence
from tests.killing.strikes import plan_of
from tests.killing.theatre import Run, Theatre, theatre

from amends.local.children import keep_folder, make_folder, remove_folder
from amends.local.errors import ServerUnavailable
from amends.local.kafka_server import start_kafka
from amends.local.redis_server import start_redis
from amends.local.servers import Servers
from amends.schemas.topics import FAUST, TRANSACTIONS

QUIET_S = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    seeds = range(first, first + options.runs)
    print(f"seeds {first} to {seeds[-1]}, {options.at_once} at once, engine {options.engine}", flush=True)
    folder = make_folder("killing")
    begun_s = time.monotonic()
    registry = start_redis(options.redis)
    try:
        broker = start_kafka(options.kafka, preference="apache", quick_start=False)
        try:
            servers = Servers(broker, registry)
            print(servers, flush=True)
            with theatre(servers, folder, options.engine) as played:
                failed = _play_all(played, seeds, options.at_once, folder, told=options.told)
        finally:
            broker.stop()
    finally:
        registry.stop()
    print(f"{len(seeds) - len(failed)} passed, {len(failed)} failed, in {time.monotonic() - begun_s:.0f} s")
    for run in failed:
        print(f"  again: python -m tests.killing --runs 1 --seed {run.plan.seed} --engine {options.engine} --told")
    if failed or played.stage.crashed:
        keep_folder(folder)
        print(f"  logs: {folder}")
        return 1
    remove_folder(folder)
    return 0


def _play_all(played: Theatre, seeds: range, at_once: int, folder: Path, *, told: bool) -> list[Run]:
    """Play all, print each; return those that failed."""
    runs: list[Run] = []
    with ThreadPoolExecutor(at_once) as pool:
        for done in as_completed([pool.submit(played.play, plan_of(seed)) for seed in seeds]):
            runs.append(done.result())
            _print(runs[-1], len(runs), len(seeds))
            if told:
                print("\n".join(runs[-1].lines))
    played.stage.await_awake()
    time.sleep(QUIET_S)
    world = played.outside.world()
    for run in runs:
        known = len(run.problems)
        played.judge(run, world)
        for problem in run.problems[known:]:
            print(f"  seed {run.plan.seed}, when all was over: {problem}")
    for stray in played.strays():
        print(f"  nobody's: {stray}")
    for crash in played.stage.crashed:
        print(crash)
    (folder / "timeline").write_text("\n".join(played.lines) + "\n")
    fallen, planned = played.fallen()
    print(f"{fallen} of {planned} strikes fell; the others were planned for calls that were not made")
    failed = [run for run in runs if run.problems]
    for run in failed:
        write_evidence(played, run, folder)
    return failed


def _print(run: Run, number: int, of: int) -> None:
    verdict = "passed" if not run.problems else "FAILED"
    said = "" if run.said is None else f"agent {run.said.value}"
    about = f"{number:4}/{of}  seed {run.plan.seed:<8} {verdict} {run.took_s:5.1f} s  {run.phase:11} {said}"
    print(f"{about}: {run.plan}", flush=True)
    for problem in run.problems:
        print(f"           {problem}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.killing")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--seed", type=int, default=None, help="the first seed; by default a new one")
    parser.add_argument("--kafka", default=None, help="HOST:PORT of a Kafka to use")
    parser.add_argument("--redis", default=None, help="URL of a Redis to use; it is flushed")
    parser.add_argument("--engine", choices=(TRANSACTIONS, FAUST), default=TRANSACTIONS, help="the processors' engine")
    parser.add_argument("--told", action="store_true", help="print the time line of every run")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerUnavailable as missing:
        print(missing, file=sys.stderr)
        sys.exit(2)
