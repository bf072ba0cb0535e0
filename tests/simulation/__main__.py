"""`python -m tests.simulation SEED` tells the story of one run, made short if it fails; `--runs N` plays N seeds from
SEED on, on all cores, and tells the first that fail."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.run import play
from tests.simulation.shrink import shrunk

SHRUNK_MAX = 3
"""Failing seeds of many that are told at once."""
PLAYED_BEFORE = 3
TOLD_EACH = 10_000
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
    """What is imported, and compiled for the first run, lives for ever: let no collection look at it."""
    for seed in range(PLAYED_BEFORE):
        play(seed)
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000)


def _many(first: int, runs: int, *, keeps_a1: bool) -> int:
    began_s, spent_s = time.monotonic(), 0.0
    bad: list[int] = []
    one = partial(_one, keeps_a1=keeps_a1)
    _prepare()  # once: the others are forked from here
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        for number, (seed, words, took_s) in enumerate(
            pool.map(one, range(first, first + runs), chunksize=20), start=1
        ):
            spent_s += took_s
            if words:
                bad.append(seed)
                print(f"seed {seed}: {'; '.join(words)}", flush=True)
            if number % TOLD_EACH == 0:
                print(f"{number} runs, {number / (time.monotonic() - began_s):.0f} runs/s", flush=True)
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
