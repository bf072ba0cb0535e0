"""The world of `engine_worlds` on Apache Kafka: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from tests.contract.engine_worlds import PARTITIONS, Fault
from tests.contract.tally import Count, decode

from amends.kafka.owned import HEAD
from amends.kafka.publisher import Publisher
from amends.kafka.reader import PartitionReader
from amends.kafka.records import Record, TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.processors.faust_takeover import restored
from amends.schemas.keys import partition_for
from amends.schemas.topics import FAUST, TRANSACTIONS

ROOT = Path(__file__).parents[2]
SESSION_MS = 6_000
DEADLINE_S = 60.0


@dataclass
class _Process:
    popen: subprocess.Popen[bytes]
    out: Path
    err: Path

    def progress(self) -> dict[str, Any]:
        lines = self.out.read_text().splitlines()
        return json.loads(lines[-1]) if lines else {"partitions": [], "refused": 0}

    def is_stopped(self) -> bool:
        status = Path(f"/proc/{self.popen.pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] == "T"


@dataclass
class KafkaWorld:
    """Topics of a prefix of its own on a broker that is shared."""

    kafka: KafkaSettings
    folder: Path
    publisher: Publisher
    engine: str = TRANSACTIONS
    _processes: dict[str, _Process] = field(default_factory=dict)

    @classmethod
    def create(cls, bootstrap_servers: str, topic_prefix: str, folder: Path, engine: str = TRANSACTIONS) -> KafkaWorld:
        kafka = KafkaSettings(
            bootstrap_servers=bootstrap_servers, topic_prefix=topic_prefix, partitions=PARTITIONS, replication_factor=1
        )
        create_topics(kafka, engine)
        return cls(kafka, folder, Publisher(kafka), engine)

    def append(self, key: bytes, value: bytes) -> int:
        return self.publisher.publish_sync(self.kafka.topics.ledger, key=key, value=value).offset

    def start(self, name: str, *, fault: Fault | None = None, at: str = "", refold: bool = False) -> None:
        given = {
            "kafka": self.kafka.model_dump(mode="json"),
            "processor": {
                "application_id": self.kafka.topic_prefix,
                "session_timeout_ms": SESSION_MS,
                "engine": self.engine,
            },
            "fault": fault,
            "at": at,
            "refold": refold,
        }
        out, err = self.folder / f"{name}.out", self.folder / f"{name}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            popen = subprocess.Popen(
                [sys.executable, "-m", "tests.contract.engine_process", json.dumps(given)],
                cwd=ROOT,
                stdout=stdout,
                stderr=stderr,
                env={name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")},
            )
        self._processes[name] = _Process(popen, out, err)

    def kill(self, name: str) -> None:
        self._processes[name].popen.kill()
        self._processes[name].popen.wait()

    def stop(self, name: str) -> None:
        process = self._processes[name]
        process.popen.terminate()
        assert process.popen.wait(DEADLINE_S) == 0, process.err.read_text()

    def wake(self, name: str) -> None:
        self._processes[name].popen.send_signal(signal.SIGCONT)

    def await_fault(self, name: str) -> None:
        process = self._processes[name]
        until(lambda: process.popen.poll() is not None or process.is_stopped(), lambda: f"{name} goes on")
        assert process.popen.returncode in (None, -signal.SIGKILL), process.err.read_text()

    def await_session(self, name: str) -> None:
        others = [other for key, other in self._processes.items() if key != name and other.popen.poll() is None]
        self._await_owned(others)

    def await_owners(self, *names: str) -> None:
        owners = [self._processes[name] for name in names]
        until(lambda: all(owner.progress()["partitions"] for owner in owners), self._words)
        self._await_owned(owners)

    def _await_owned(self, owners: list[_Process]) -> None:
        def owned() -> list[int]:
            return sorted(partition for owner in owners for partition in owner.progress()["partitions"])

        until(lambda: owned() == list(range(PARTITIONS)), self._words)

    def await_folded(self, facts: int) -> None:
        until(lambda: sum(count.count for count in self.state().values()) >= facts, self._words)

    def await_state(self, state: dict[bytes, Count]) -> None:
        until(lambda: self.state() == state, lambda: f"{self.state()} is not {state}\n{self._words()}")

    def await_refused(self, name: str) -> None:
        until(lambda: self._processes[name].progress()["refused"] > 0, self._words)

    def state(self) -> dict[bytes, Count]:
        if self.engine == FAUST:
            return self._state_that_counts()
        last = {record.key or b"": record.value for record in self._read(self.kafka.topics.changelog())}
        return {key: decode(value) for key, value in last.items() if value is not None}

    def _state_that_counts(self) -> dict[bytes, Count]:
        with PartitionReader(self.kafka) as reader:
            found = restored(reader, reader.ends(self.kafka.topics.changelog(FAUST), range(PARTITIONS)))
        return {key: decode(value) for each in found.values() for key, value in each.state.items()}

    def emitted(self) -> list[tuple[bytes, Count]]:
        return [(record.key or b"", decode(record.value or b"")) for record in self._read(self.kafka.topics.workflows)]

    def forget_ledger(self, key: bytes, before_offset: int) -> None:
        place = ClientPartition(self.kafka.topics.ledger, partition_for(key, PARTITIONS), before_offset)
        client = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        for future in client.delete_records([place]).values():
            future.result(DEADLINE_S)

    def why_it_ended(self, name: str) -> str:
        process = self._processes[name]
        process.popen.wait(DEADLINE_S)
        return process.err.read_text()

    def exit_code(self, name: str) -> int | None:
        return self._processes[name].popen.returncode

    def close(self) -> None:
        for process in self._processes.values():
            process.popen.kill()
            process.popen.wait()
        self.publisher.close()

    def _read(self, topic: str) -> list[Record]:
        with PartitionReader(self.kafka) as reader:
            ends = reader.ends(topic, range(PARTITIONS))
            starts: dict[TopicPartition, int] = dict.fromkeys(ends, HEAD)
            return [record for records in reader.read(starts, ends) for record in records]

    def _words(self) -> str:
        return "\n".join(
            f"{name}: {p.progress()}, exit {p.popen.poll()}, {p.err.read_text()[-2_000:]}"
            for name, p in self._processes.items()
        )


def until(true: Callable[[], bool], words: Callable[[], str]) -> None:
    """Wait for a fact, with a deadline."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < give_up_at, words()
        time.sleep(0.05)
