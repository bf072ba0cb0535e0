"""`python -m bench read-back`: what the read back costs with many lanes on one ledger, following it or seeking in it.

Each lane is a process of its own, as compensators of different teams are: it writes a STARTED, then reads its partition
from `BEHIND` records before it to its own, `--rate` times a second. Other facts come in meanwhile, `--facts` a second.
Following is what `LedgerFollower` does: the whole ledger is read once per process. Seeking reads the range alone, with
a consumer that is placed there each time. "none" writes STARTED and reads nothing: the floor.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil

from amends.kafka.consumer import PartitionReader
from amends.kafka.follower import LedgerFollower
from amends.kafka.publisher import Publisher
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.servers import start_kafka
from bench.report import percentile

MODES = ("none", "follow", "seek")
BEHIND = 40
VALUE = b"x" * 1_200
WARM_S = 3.0

ReadBack = Callable[[int, int], object]  # partition, own offset


def lane(settings: KafkaSettings, mode: str, rate: float, seconds: float) -> dict[str, object]:
    """Be one lane, and return how long its read backs took in microseconds, and its CPU."""
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(Publisher(settings))
        read = stack.enter_context(_reading(settings, mode))
        begin_at = time.monotonic() + WARM_S
        end_at, cpu_s = begin_at + seconds, 0.0
        took_us: list[int] = []
        measuring, number = False, 0
        while (now := time.monotonic()) < end_at:
            if not measuring and now >= begin_at:
                measuring, cpu_s, took_us = True, time.process_time(), []
            partition = number % settings.partitions
            ack = publisher.publish_sync(settings.topics.ledger, key=b"own", value=VALUE, partition=partition)
            began = time.perf_counter_ns()
            read(partition, ack.offset)
            took_us.append((time.perf_counter_ns() - began) // 1_000)
            number += 1
            time.sleep(max(0.0, now + 1 / rate - time.monotonic()))
        return {"took_us": took_us, "cpu_s": time.process_time() - cpu_s}


@contextlib.contextmanager
def _reading(settings: KafkaSettings, mode: str) -> Iterator[ReadBack]:
    topic = settings.topics.ledger
    if mode == "none":
        yield lambda partition, offset: None
    elif mode == "follow":
        with LedgerFollower(settings, topic) as follower:
            for partition in range(settings.partitions):
                follower.follow(partition)
            yield lambda partition, offset: follower.read_sync(partition, b"own", max(0, offset - BEHIND), offset)
    else:
        with PartitionReader(settings, fetch_wait_ms=10) as reader:

            def seek(partition: int, offset: int) -> object:
                place = TopicPartition(topic, partition)
                batches = reader.read({place: max(0, offset - BEHIND)}, {place: offset + 1})
                return [record for batch in batches for record in batch if record.key == b"own"]

            yield seek


@contextlib.contextmanager
def _other_facts(settings: KafkaSettings, rate: int) -> Iterator[None]:
    """Facts of other workflows, from a thread of this process."""
    stop = threading.Event()

    def write() -> None:
        with Publisher(settings) as publisher:
            number, began = 0, time.monotonic()
            while not stop.is_set():
                while number < (time.monotonic() - began) * rate:
                    publisher.send(
                        settings.topics.ledger,
                        key=b"other",
                        value=VALUE,
                        partition=number % settings.partitions,
                        on_done=lambda done: None,
                    )
                    number += 1
                time.sleep(0.01)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _measured(settings: KafkaSettings, broker: psutil.Process, options: argparse.Namespace, mode: str) -> str:
    command = [sys.executable, "-m", "bench", "read-back", "--lane", mode, settings.model_dump_json()]
    command += ["--rate", str(options.rate), "--seconds", str(options.seconds)]
    lanes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(options.lanes)]
    before, began = sum(broker.cpu_times()[:2]), time.monotonic()
    told = [json.loads(lane.communicate(timeout=options.seconds + 120)[0]) for lane in lanes]
    broker_share = (sum(broker.cpu_times()[:2]) - before) / (time.monotonic() - began)
    took = sorted(us / 1_000 for said in told for us in said["took_us"])
    share = sum(said["cpu_s"] for said in told) / options.seconds
    times = " / ".join(f"{percentile(took, part):>7.2f}" for part in (0.5, 0.9, 0.99))
    return f"{mode:>7} | {len(took) / options.seconds:>8.0f} | {times} | {share:>10.2f} | {broker_share:>10.2f}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench read-back", description=__doc__)
    parser.add_argument("--lanes", type=int, default=10)
    parser.add_argument("--rate", type=float, default=10.0, help="read backs a second, of each lane")
    parser.add_argument("--facts", type=int, default=500, help="other facts a second")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--kafka", help="bootstrap servers of a Kafka; default: one is started")
    parser.add_argument("--lane", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.lane:
        settings = KafkaSettings.model_validate_json(options.lane[1])
        print(json.dumps(lane(settings, options.lane[0], options.rate, options.seconds)))
        return 0
    server = start_kafka(options.kafka, preference="any", quick_start=False)
    try:
        settings = KafkaSettings(bootstrap_servers=server.bootstrap_servers, replication_factor=1)
        create_topics(settings)
        print(f"{server.kind}; {options.lanes} lanes, {options.facts} other facts a second")
        print("   mode | reads /s |      p50 /     p90 /     p99 ms | lanes' CPU | broker's CPU (cores)")
        with _other_facts(settings, options.facts):
            for mode in options.modes:
                print(_measured(settings, psutil.Process(server.pid), options, mode), flush=True)
    finally:
        server.stop()
    return 0
