"""Where a measurement of whole parts takes place: servers, topics, and the parts as processes, all gone afterwards."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from amends.kafka.errors import KafkaFault
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.children import make_folder, remove_folder
from amends.local.parts import Parts, environment
from amends.local.servers import servers
from bench import recovery
from bench.report import Figures
from bench.tools import LANE

CALM_WITHIN_S = 120


@dataclass(frozen=True, slots=True)
class Place:
    """Topics of one run on Apache Kafka, and what starts parts there."""

    settings: KafkaSettings
    parts: Parts


@contextlib.contextmanager
def place(purpose: str, partitions: int) -> Iterator[Place]:
    """Have a place for the length of a block. A SystemExit from it is told with the last words of every part."""
    with servers(embedded=False, quick_start=False) as found:
        print(found, flush=True)
        settings = KafkaSettings(
            bootstrap_servers=found.kafka.bootstrap_servers,
            topic_prefix=f"{purpose}{int(time.time())}",
            lanes=(LANE,),
            partitions=partitions,
            replication_factor=1,
        )
        create_topics(settings)
        await_calm(settings)
        folder = make_folder(purpose)
        parts = Parts(environment(settings, found.redis.url), folder)
        try:
            yield Place(settings, parts)
        except SystemExit:
            for part in parts.running:
                print(f"--- {part.name}\n{part.last_words(12)}", file=sys.stderr)
            raise
        finally:
            parts.stop()
            remove_folder(folder)


def await_calm(settings: KafkaSettings) -> None:
    """Return once the broker answers at its pace: right after its start it may not."""
    until, quick = time.monotonic() + CALM_WITHIN_S, 0
    while quick < 3 and time.monotonic() < until:
        began = time.monotonic()
        try:
            recovery.ends_of(settings)
        except KafkaFault:
            quick = 0
        else:
            quick = quick + 1 if time.monotonic() - began < 1 else 0
        time.sleep(0.5)


def measure(
    parser: argparse.ArgumentParser, arguments: list[str], run: Callable[[argparse.Namespace], Figures]
) -> tuple[argparse.Namespace, Figures]:
    """Run a measurement with these arguments and keep its figures as a file: `--json`, named like the command."""
    name = parser.prog.rpartition(" ")[2]
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--json", type=Path, default=Path(f"bench/results/{name}.json"))
    options = parser.parse_args(arguments)
    figures = run(options)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    print(f"written to {options.json}")
    return options, figures
