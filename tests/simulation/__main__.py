"""`python -m tests.simulation SEED` tells the story of one run; `--runs N` plays N seeds from SEED on, on all cores."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.run import play


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
    verdict = play(seed, tell=True, keeps_a1=keeps_a1)
    print("\n".join(verdict.story))
    for broken in verdict.broken:
        print(f"BROKEN {broken}")
    print(f"seed {seed}: {'broken' if verdict.broken else 'all promises kept'} ({verdict.events} events)")
    return 1 if verdict.broken else 0


def _one(seed: int, keeps_a1: bool) -> tuple[int, list[str]]:
    return seed, [str(broken) for broken in play(seed, keeps_a1=keeps_a1).broken]


def _many(first: int, runs: int, *, keeps_a1: bool) -> int:
    began = time.monotonic()
    bad = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for seed, words in pool.map(partial(_one, keeps_a1=keeps_a1), range(first, first + runs), chunksize=20):
            if words:
                bad += 1
                print(f"seed {seed}: {'; '.join(words)}", flush=True)
    took_s = time.monotonic() - began
    print(f"{runs} runs from seed {first} in {took_s:.1f} s, {runs / took_s:.0f} runs/s: {bad} broken")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
