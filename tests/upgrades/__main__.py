"""A release rolled out over another and back, under load, on Apache Kafka and Redis: `python -m tests.upgrades`.

Two processors and two compensators of the previous version serve agents of both, which are killed and refused by
seed. Processors first or compensators first, today's version takes their place, one process at a time, and then the
previous one again. The outside world is the judge of every order. Exits with 1 if anything was left, done twice, or
not closed; leaves nothing running.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.killing.evidence import write_evidence
from tests.killing.theatre import Run
from tests.upgrades.previous import NoSuchVersion, take_out
from tests.upgrades.rolling import COMPENSATORS, NEW, OLD, PROCESSORS, Load, RollingTheatre, rolling

from amends.local.children import keep_folder, make_folder, remove_folder
from amends.local.errors import ServerUnavailable
from amends.local.servers import servers
from amends.schemas.topics import FAUST, TRANSACTIONS

ORDERS = {"processors": (PROCESSORS, COMPENSATORS), "compensators": (COMPENSATORS, PROCESSORS)}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    folder = make_folder("upgrades")
    failed = True
    try:
        wrong = 0
        for previous in options.previous:
            place = take_out(previous, folder)
            for first in options.first:
                with servers(embedded=False, quick_start=False) as found:
                    print(f"{previous}, {first} first, seed {seed}; {found}", flush=True)
                    new = {"AMENDS_KAFKA__RECORDS_OF": options.records_of} if options.records_of else {}
                    old = ("--refold",) if options.refold else ()
                    with rolling(
                        found, place, folder, new_settings=new, old_arguments=old, engine=options.engine
                    ) as played:
                        runs = play(played, ORDERS[first], seed, options.at_once, options.between)
                        wrong += not report(played, runs, folder)
        failed = wrong > 0
    finally:
        (keep_folder if failed else remove_folder)(folder)
    return 1 if failed else 0


def play(played: RollingTheatre, order: Sequence[str], seed: int, at_once: int, between_s: float) -> list[Run]:
    """Roll out and back under load; return every run, judged."""
    load = Load(played, seed, at_once)
    load.start()
    try:
        for version in (NEW, OLD):
            for kind in order:
                time.sleep(between_s)
                played.stage.roll(kind, version)
                print(f"  {kind} are {version}, {len(load.runs)} runs so far", flush=True)
        time.sleep(between_s)
    finally:
        runs = load.end()
    played.stage.await_awake()
    world = played.outside.world()
    for run in runs:
        played.judge(run, world)
    return runs


def report(played: RollingTheatre, runs: list[Run], folder: Path) -> bool:
    """Print what is wrong; return whether nothing is."""
    failed = [run for run in runs if run.problems]
    (folder / "timeline").write_text("\n".join(played.lines) + "\n")
    for run in failed:
        print(f"  {run.order}: {run.plan}; agent {run.said}: {'; '.join(run.problems)}", flush=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            write_evidence(played, run, folder)
    for stray in played.strays():
        print(f"  nobody's: {stray}")
    for crash in played.stage.crashed:
        print(f"  {crash}")
    print(f"  {len(runs) - len(failed)} passed, {len(failed)} failed; logs: {folder}", flush=True)
    return not failed and not played.stage.crashed and not played.strays()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.upgrades")
    parser.add_argument("--previous", nargs="+", default=["0.1.0"], help="releases, or commits")
    parser.add_argument(
        "--engine", choices=(TRANSACTIONS, FAUST), default=TRANSACTIONS, help="of all processors; 0.1.0 has no other"
    )
    parser.add_argument("--first", nargs="+", choices=sorted(ORDERS), default=sorted(ORDERS))
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--between", type=float, default=8.0, help="seconds of load between two steps")
    parser.add_argument("--records-of", default="", help="the version whose records today's code writes")
    parser.add_argument("--refold", action="store_true", help="roll processors back with --refold")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ServerUnavailable, NoSuchVersion) as missing:
        print(missing, file=sys.stderr)
        sys.exit(2)
