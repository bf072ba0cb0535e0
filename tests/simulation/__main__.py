"""`python -m tests.simulation SEED` tells the story of one run, made short if it fails; `--runs N` plays N seeds from
SEED on, on all cores, and tells the first that fail. With `--log FILE` a run that was ended goes on where it was."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.simulation import log
from tests.simulation.log import Played
from tests.simulation.run import play
from tests.simulation.shrink import shrunk

SHRUNK_MAX = 3
"""Failing seeds of many that are told at once."""
PLAYED_BEFORE = 3
RUNS_OF_A_CHILD = 400
"""Seeds that a child of the runner plays, about, before it ends with all it has left behind (some 230 kB a run)."""
BESIDE_THE_POINT = ("sends to", "HEARTBEAT")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--runs", type=int, default=1, help="how many seeds to play, from SEED on")
    parser.add_argument("--log", type=Path, help="keep what was played in this file, and go on behind it")
    parser.add_argument("--without-a1", action="store_true", help="let processes sleep where A1 says they don't")
    chosen = parser.parse_args()
    if chosen.runs == 1:
        return _tell(chosen.seed, keeps_a1=not chosen.without_a1)
    return _many(chosen.seed, chosen.runs, chosen.log, keeps_a1=not chosen.without_a1)


def _tell(seed: int, *, keeps_a1: bool) -> int:
    short = shrunk(seed, keeps_a1=keeps_a1)
    if short is None:
        verdict = play(seed, tell=True, keeps_a1=keeps_a1)
        print("\n".join(verdict.story))
        print(f"seed {seed}: all promises kept ({verdict.events} events)")
        return 0
    print(f"seed {seed}, without what does not matter:")
    print("\n".join(line for line in short.story if not any(word in line for word in BESIDE_THE_POINT)))
    for broken in short.broken:
        print(f"BROKEN {broken}")
    return 1


def _one(seed: int, keeps_a1: bool) -> tuple[int, list[str], float]:
    before_s = time.process_time()
    words = [str(broken) for broken in play(seed, keeps_a1=keeps_a1).broken]
    return seed, words, time.process_time() - before_s


def _prepare() -> None:
    """What is imported, and compiled for the first run, lives for ever. Of what a run leaves behind nothing is
    collected: its children end before that is much."""
    for seed in range(PLAYED_BEFORE):
        play(seed)
    gc.collect()
    gc.freeze()
    gc.disable()


def _played(first: int, runs: int, *, keeps_a1: bool) -> Iterator[tuple[int, list[str], float]]:
    """Play the seeds on all cores, in order, by children that are forked anew now and then."""
    cores, one = os.cpu_count() or 1, partial(_one, keeps_a1=keeps_a1)
    at_once = RUNS_OF_A_CHILD * cores
    for begins in range(first, first + runs, at_once):
        ends = min(begins + at_once, first + runs)
        with ProcessPoolExecutor(cores, multiprocessing.get_context("fork")) as pool:
            yield from pool.map(one, range(begins, ends), chunksize=8)


def _play_on(first: int, runs: int, *, keeps_a1: bool) -> Played:
    """Play seeds, and tell each that breaks a promise."""
    began_s, spent_s, broken = time.monotonic(), 0.0, list[int]()
    for seed, words, run_s in _played(first, runs, keeps_a1=keeps_a1):
        spent_s += run_s
        if words:
            broken.append(seed)
            print(f"seed {seed}: {'; '.join(words)}", flush=True)
    return Played(first, runs, broken, time.monotonic() - began_s, spent_s, log.commit())


def _many(first: int, runs: int, file: Path | None, *, keeps_a1: bool) -> int:
    before = log.read(file) if file is not None else []
    _prepare()  # once: the others are forked from here
    new: list[Played] = []
    for stretch in log.left(first, runs, before):
        new.append(_play_on(*stretch, keeps_a1=keeps_a1))
        if file is not None:
            log.write(file, new[-1])
            print(new[-1].in_words(), flush=True)
    gc.enable()  # shortening plays many more, here
    print(log.summed(first, runs, [*before, *new]))
    bad = [seed for played in new for seed in played.broken]
    for seed in bad[:SHRUNK_MAX]:
        _tell(seed, keeps_a1=keeps_a1)
    return 1 if bad or any(played.broken for played in before) else 0


if __name__ == "__main__":
    sys.exit(main())
