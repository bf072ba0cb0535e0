"""`python -m bench takeover`: how long until partitions are folded again after a processor went.

python -m bench takeover [--times 5] [--ways "restart in place"] [--open 2000] [--partitions 8] [--json FILE]

Two processors with static membership, some workflows open. One of them goes, in three ways: it is told to end and is
started again under its name (a restart in place), it is killed and started again under its name, it is killed and
nobody comes in its place. Right after the signal a workflow begins on every partition. Taken over is the moment in
which the last of them is answered by the fold; times are from the signal to the broker's append time of that echo, the
start of a Python process included.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from amends.kafka.owned import HEAD
from amends.kafka.publisher import Ack, Publisher
from amends.kafka.reader import PartitionConsumer
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.local.parts import Part, Parts
from amends.schemas.codec import decode_as, encode
from amends.schemas.commands import WorkflowEcho
from amends.schemas.facts import WorkflowEvent, WorkflowStatus
from amends.schemas.keys import partition_for
from bench.drain import LEASE_MS, begun, write
from bench.place import measure, place
from bench.report import Figures, percentile

NAMES = ("amends-processor-0", "amends-processor-1")
WITHIN_S = 120.0
TARGETS = {"restart in place": 5.0, "kill -9, started again": 10.0, "kill -9, nobody comes": 10.0}
"""Seconds, of issue 4."""


@dataclass
class Stand:
    """Two processors and what asks them. Used by one thread."""

    settings: KafkaSettings
    parts: Parts
    publisher: Publisher
    echo: PartitionConsumer
    running: dict[str, Part] = field(default_factory=dict)
    _asked: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def start(self, name: str) -> None:
        self.running[name] = self.parts.amends(name, "processor", "--instance", name, "--health-port", "0")

    def answered_ms(self) -> int:
        """Begin a workflow on each partition; return when the last of them was answered, by the broker's clock."""
        waiting = dict(self._one_a_partition())
        for workflow_id in waiting.values():
            fact = WorkflowEvent(workflow_id, 0, WorkflowStatus.STARTED, agent_id="bench", lease_ms=LEASE_MS)
            ack = self.publisher.publish_sync(self.settings.topics.ledger, key=workflow_id.encode(), value=encode(fact))
            assert isinstance(ack, Ack)
        left, last_ms = set(waiting.values()), 0
        until = time.monotonic() + WITHIN_S
        while left:
            if time.monotonic() > until:
                raise SystemExit(f"{len(left)} partitions were not folded within {WITHIN_S:.0f} s")
            for record in self.echo.poll_batch(100).records:
                if record.value is not None and decode_as(WorkflowEcho, record.value).workflow_id in left:
                    left.discard(decode_as(WorkflowEcho, record.value).workflow_id)
                    last_ms = max(last_ms, record.appended_at_ms)
        return last_ms

    def _one_a_partition(self) -> Iterator[tuple[int, str]]:
        number, found = next(self._asked), set[int]()
        for count in itertools.count():
            workflow_id = f"asked-{number}-{count}"
            partition = partition_for(workflow_id.encode(), self.settings.partitions)
            if partition not in found:
                found.add(partition)
                yield partition, workflow_id
            if len(found) == self.settings.partitions:
                return


def restart(stand: Stand, name: str) -> float:
    """Tell one to end, start it again under its name as soon as it has; return the time of the signal."""
    at_s = time.time()
    process = stand.running[name].child.process
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    stand.start(name)
    return at_s


def kill_and_restart(stand: Stand, name: str) -> float:
    at_s = time.time()
    stand.running[name].kill()
    stand.start(name)
    return at_s


def kill(stand: Stand, name: str) -> float:
    at_s = time.time()
    stand.running[name].kill()
    return at_s


WAYS: dict[str, Callable[[Stand, str], float]] = {
    "restart in place": restart,
    "kill -9, started again": kill_and_restart,
    "kill -9, nobody comes": kill,
}


def measured(stand: Stand, way: str, times: int) -> Figures:
    """Return the seconds that it took each time."""
    took_s = list[float]()
    for count in range(times):
        name = NAMES[count % 2]
        at_s = WAYS[way](stand, name)
        took_s.append(stand.answered_ms() / 1_000 - at_s)
        print(f"  {way}: {took_s[-1]:.1f} s", flush=True)
        if not stand.running[name].child.alive:
            stand.start(name)
        settle(stand)
    return {"took_s": took_s, "p50_s": percentile(took_s, 0.5), "max_s": max(took_s), "target_s": TARGETS[way]}


def settle(stand: Stand) -> None:
    """Return once both have a share, and are asked about it without delay."""
    quick, until = 0, time.monotonic() + WITHIN_S
    while quick < 3 and time.monotonic() < until:
        began = time.monotonic()
        stand.answered_ms()
        quick = quick + 1 if time.monotonic() - began < 1 else 0
        shares = ["took over ledger partitions" in stand.running[name].last_words(1_000) for name in NAMES]
        quick = quick if all(shares) else 0
        time.sleep(1)


def run(options: argparse.Namespace) -> Figures:
    with (
        place("takeover", options.partitions) as here,
        Publisher(here.settings, deadline_ms=60_000) as publisher,
        PartitionConsumer(here.settings, fetch_wait_ms=20) as echo,
    ):
        topics = here.settings.topics
        echo.add({TopicPartition(topics.workflows, p): HEAD for p in range(here.settings.partitions)})
        stand = Stand(here.settings, here.parts, publisher, echo)
        for name in NAMES:
            stand.start(name)
        names = [f"open-{number}" for number in range(options.open)]
        write(publisher, topics.ledger, chain.from_iterable(begun(name) for name in names))
        settle(stand)
        return {way: measured(stand, way, options.times) for way in options.ways or WAYS}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench takeover", description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=sorted(WAYS), help="only these")
    parser.add_argument("--open", type=int, default=2_000, help="workflows that are open meanwhile")
    _, figures = measure(parser, arguments, run)
    for way, found in figures.items():
        met = "met" if found["max_s"] <= found["target_s"] else "MISSED"
        print(f"{way:24} p50 {found['p50_s']:5.1f} s, worst {found['max_s']:5.1f} s: {found['target_s']:g} s is {met}")
    return 0
