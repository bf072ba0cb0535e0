"""Reads the ledger, the echo and the incidents as they grow, by a door that no fault touches."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from tests.chaos.hand_over import parent_of
from tests.chaos.judge import is_asked_by_parent

from amends.compensators.lane import group_of
from amends.kafka.consumer import PartitionConsumer
from amends.kafka.errors import KafkaFault
from amends.kafka.records import Record, TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.commands import Incident, IncidentState, Phase, WorkflowEcho

CLOSED = frozenset({Phase.SUCCEEDED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS})
GOING_ON = frozenset({Phase.RUNNING, Phase.FINISHING, Phase.SUCCEEDED})
FIRST = 0  # the topics of a run are its own: nothing of them is older

Fact = TypeVar("Fact")


@dataclass
class Watch:
    """What the topics say. `settings` are of the inner door. Facts are kept as bytes: few are ever looked at."""

    settings: KafkaSettings
    facts: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    echoes: dict[str, WorkflowEcho] = field(default_factory=dict)
    incidents: dict[str, Incident] = field(default_factory=dict)
    dead_letters: int = 0
    last_heard_s: float = field(default_factory=time.monotonic)
    failures: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(10)

    def counts(self) -> tuple[int, int, int]:
        """Return how many workflows began, are closed, and are open with an open incident."""
        with self._lock:
            closed = sum(self._is_closed(name) for name in self.echoes)
            waiting = {incident.workflow_id for incident in self._open()}
            waiting = {name for name in waiting if name in self.echoes and not self._is_closed(name)}
            return len(self.facts), closed, len(waiting)

    def hanging(self) -> list[str]:
        """Return the workflows that are neither closed nor wait for a person, and those that machines are at."""
        with self._lock:
            waiting = {incident.workflow_id for incident in self._open()}
            open_ones = [name for name in self.facts if not self._is_closed(name) and self._was_begun(name)]
            return [name for name in open_ones if name not in waiting or self._is_unwinding(name)]

    def quiet_s(self) -> float:
        """Return for how long nothing was written."""
        return time.monotonic() - self.last_heard_s

    def open_incidents(self) -> list[Incident]:
        with self._lock:
            return self._open()

    def lag(self) -> int | None:
        """Return how many records are not committed: of the ledger by processors, of commands by compensators.

        None where the brokers do not say.
        """
        topics = self.settings.topics
        groups = {"amends-processor": topics.ledger}
        groups |= {group_of(self.settings, lane): topics.undo(lane) for lane in self.settings.lanes}
        try:
            return sum(self._lag(group, topic) for group, topic in groups.items())
        except KafkaException:
            return None

    def _lag(self, group: str, topic: str) -> int:
        places = [ClientPartition(topic, number) for number in range(self.settings.partitions)]
        client = Consumer({"bootstrap.servers": self.settings.bootstrap_servers, "group.id": group, "log_level": 0})
        try:
            ends = [client.get_watermark_offsets(place, timeout=5)[1] for place in places]
            taken = [max(place.offset, 0) for place in client.committed(places, timeout=5)]
            return max(0, sum(ends) - sum(taken))
        finally:
            client.close()

    def _open(self) -> list[Incident]:
        return [incident for incident in self.incidents.values() if incident.state is IncidentState.OPEN]

    def _is_closed(self, name: str) -> bool:
        return name in self.echoes and self.echoes[name].phase in CLOSED and not self._is_unwinding(name)

    def _was_begun(self, name: str) -> bool:
        """Whether there is more of it than what its parent asks of a child that was never begun."""
        if name in self.echoes or parent_of(name) is None:
            return True
        return any(not is_asked_by_parent(decode(record.value or b"")) for record in self.facts[name])

    def _is_unwinding(self, name: str) -> bool:
        """Whether a workflow undoes something and was not turned: of those that were, the echo tells no progress."""
        echo = self.echoes.get(name)
        return echo is not None and echo.phase in GOING_ON and echo.open_undos > 0

    def _run(self) -> None:
        topics = self.settings.topics
        names = [topics.ledger, topics.workflows, topics.incidents, topics.ledger_dead_letters]
        names += [topics.undo_dead_letters(lane) for lane in topics.lanes]
        places: dict[TopicPartition, int] = {}
        while not self._stopping.is_set():
            try:
                with PartitionConsumer(self.settings, fetch_wait_ms=100) as consumer:
                    if not places:
                        counts = {name: consumer.partitions_of(name) for name in names}
                        places = {TopicPartition(n, number): FIRST for n in names for number in range(counts[n])}
                    consumer.add(places)
                    while not self._stopping.is_set():
                        for record in consumer.poll_batch(200).records:
                            places[TopicPartition(record.topic, record.partition)] = record.offset + 1
                            self._take(record)
            except KafkaFault as fault:  # of the watch's own connection: it begins again where it was
                self.failures.append(str(fault))
                time.sleep(1)

    def _take(self, record: Record) -> None:
        topics = self.settings.topics
        self.last_heard_s = time.monotonic()
        with self._lock:
            if record.topic == topics.ledger:
                self.facts[(record.key or b"").decode(errors="replace")].append(record)
            elif record.topic == topics.ledger_dead_letters:
                self.failures.append(f"an unreadable record: {record.headers}")
            elif record.topic not in (topics.workflows, topics.incidents):
                self.dead_letters += 1
            elif record.value is not None:
                self._take_state(record.value)

    def _take_state(self, value: bytes) -> None:
        try:
            found = decode(value)
        except UnreadableRecord as error:
            self.failures.append(str(error))
            return
        if isinstance(found, Incident):
            self.incidents[found.incident_id] = found
        elif isinstance(found, WorkflowEcho):
            known = self.echoes.get(found.workflow_id)
            if known is None or found.folded_to >= known.folded_to:
                self.echoes[found.workflow_id] = found
