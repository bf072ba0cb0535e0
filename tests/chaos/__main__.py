"""Chaos on real parts: `python -m tests.chaos --minutes 5 --seed 4711 --brokers 3`, or `make chaos`.

Thirty agents, two processors, three compensators, Redis, and Apache Kafka as three brokers or one. The seed says what
befalls them when, and what the agents want and the remotes do; how the machine interleaves it is not decided by a seed.
At the end all faults stop, and the remotes' own record and the ledger say whether a promise was broken. Exits with 1 if
one was, with the evidence in a folder; leaves nothing running.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.chaos import Verdict, chaos
from tests.chaos.evidence import told
from tests.chaos.schedule import EVERY_S
from tests.told_to_end import interrupted_when_told_to_end

from amends.local.children import keep_folder, make_folder, remove_folder
from amends.local.errors import ServerUnavailable
from amends.schemas.topics import FAUST, TRANSACTIONS

STORIES_SHOWN = 3


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1, 1_000_000)
    again = f"python -m tests.chaos --minutes {options.minutes:g} --seed {seed} --brokers {options.brokers}"
    again += "" if options.every == EVERY_S else f" --every {options.every:g}"
    again += "" if options.engine == TRANSACTIONS else f" --engine {options.engine}"
    print(f"seed {seed}; again: {again}", flush=True)
    logging.getLogger("amends.kafka").setLevel(logging.CRITICAL)  # brokers that are down are no news here
    folder = make_folder("chaos")
    begun_s = time.monotonic()
    keep_folder(folder)  # until nothing is found
    with chaos(seed, options.brokers, folder, lambda line: print(line, flush=True), options.engine) as played:
        verdict = played.play(options.minutes * 60, options.every)
    print(f"\n{verdict}\nin {time.monotonic() - begun_s:.0f} s, seed {seed}")
    if not verdict.wrong and not options.keep:
        remove_folder(folder)
        print("no promise was broken")
        return 0
    if not verdict.wrong:
        print(f"no promise was broken; logs: {folder}")
        return 0
    _print_wrong(verdict, folder, again)
    return 1


def _print_wrong(verdict: Verdict, folder: Path, again: str) -> None:
    names = list(dict.fromkeys(line.partition(": ")[0] for line in verdict.wrong))
    print("\n".join(told(names[:STORIES_SHOWN], folder)))
    print(f"{len(verdict.wrong)} VIOLATIONS:")
    print("\n".join(f"  {line}" for line in verdict.wrong))
    print(f"again: {again}\nevidence: {folder}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=None, help="by default a new one, which is printed")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--every", type=float, default=EVERY_S, help="seconds from fault to fault, about")
    parser.add_argument("--engine", choices=(TRANSACTIONS, FAUST), default=TRANSACTIONS, help="the processors' engine")
    parser.add_argument("--keep", action="store_true", help="keep the logs of a run that found nothing, too")
    return parser


if __name__ == "__main__":
    try:
        with interrupted_when_told_to_end():
            sys.exit(main())
    except ServerUnavailable as missing:
        print(missing, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted: everything was stopped, nothing was judged", file=sys.stderr)
        sys.exit(130)
