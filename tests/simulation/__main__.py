"""`python -m tests.simulation SEED` tells the story of one run, made short if it fails; `--runs N` plays N seeds from
SEED on, on all cores, and tells the first that fail."""

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

from tests.simulation.run import play
from tests.simulation.shrink import shrunk

SHRUNK_MAX = 3
"""Failing seeds of many that are told at once."""
PLAYED_BEFORE = 3
TOLD_EACH = 10_000
RUNS_OF_A_CHILD = 400
"""Seeds that a child of the runner plays, about, before it ends with all it has left behind (some 230 kB a run)."""
BESIDE_THE_POINT = ("sends to", "HEARTBEAT")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--runs", type=int, default=1, help="how many seeds to play, from SEED on")
    parser.add_argument("--without-a1", action="store_true", help="let processes sleep where A1 says they don't")
    chosen = parser.parse_args()
    if chosen.runs == 1:
        return _tell(chosen.seed, keeps_a1=not chosen.without_a1)
    return _many(chosen.seed, chosen.runs, keeps_a1=not chosen.without_a1)


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
            yield from pool.map(one, range(begins, ends), chunksize=20)


def _many(first: int, runs: int, *, keeps_a1: bool) -> int:
    began_s, spent_s = time.monotonic(), 0.0
    bad: list[int] = []
    _prepare()  # once: the others are forked from here
    for number, (seed, words, run_s) in enumerate(_played(first, runs, keeps_a1=keeps_a1), start=1):
        spent_s += run_s
        if words:
            bad.append(seed)
            print(f"seed {seed}: {'; '.join(words)}", flush=True)
        if number % TOLD_EACH == 0:
            print(f"{number} runs, {number / (time.monotonic() - began_s):.0f} runs/s", flush=True)
    gc.enable()  # shortening plays many more, here
    took_s = time.monotonic() - began_s
    print(
        f"{runs} runs from seed {first} in {took_s:.1f} s on {os.cpu_count()} cores: {runs / took_s:.0f} runs/s, "
        f"{spent_s / runs * 1000:.1f} ms of CPU each ({runs / spent_s:.0f} runs/s/core); {len(bad)} broken"
    )
    for seed in bad[:SHRUNK_MAX]:
        _tell(seed, keeps_a1=keeps_a1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
