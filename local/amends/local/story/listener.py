"""Reads all topics of a run, in a thread, and hands what it reads to the narrator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Set
from typing import TypeVar

from amends.kafka.consumer import TAIL, PartitionConsumer
from amends.kafka.records import Record, TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.local.story.narrator import Line, Narrator
from amends.schemas.codec import UnreadableRecord, decode

POLL_MS = 50
START_S = 30.0
FIRST = 0  # the topics of a run are its own: nothing of them is older

Answer = TypeVar("Answer")


class Listener:
    """Owns the narrator: ask it questions through `ask`.

    `among`: the workflows it hears of, on topics that others use too; of those it reads what comes after its start.
    """

    def __init__(self, settings: KafkaSettings, on_line: Callable[[Line], None], among: Set[str] | None = None) -> None:
        self._among = among
        self._reading = threading.Event()
        self._settings = settings
        self._on_line = on_line
        self._narrator = Narrator()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self.failure: Exception | None = None

    def start(self) -> None:
        """Start to read; return when it is known where."""
        self._thread.start()
        self._reading.wait(START_S)

    def stop(self) -> None:
        """Stop reading. Can be called twice."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def ask(self, question: Callable[[Narrator], Answer]) -> Answer:
        """Return the answer of the narrator as of now."""
        with self._lock:
            return question(self._narrator)

    def _run(self) -> None:
        try:
            with PartitionConsumer(self._settings, fetch_wait_ms=20) as consumer:
                topics = self._settings.topics
                names = [topics.ledger, topics.workflows, topics.incidents, topics.ledger_dead_letters]
                names += [topics.undo_dead_letters(lane) for lane in topics.lanes]
                places = [
                    TopicPartition(name, number) for name in names for number in range(consumer.partitions_of(name))
                ]
                consumer.add(dict.fromkeys(places, FIRST if self._among is None else TAIL))
                self._reading.set()
                while not self._stopping.is_set():
                    for record in consumer.poll_batch(POLL_MS).records:
                        self._take(record)
        except Exception as error:
            self.failure = error
            self._reading.set()

    def _take(self, record: Record) -> None:
        if record.value is None:
            return
        try:
            decoded = decode(record.value, record)
        except UnreadableRecord:
            return
        if self._among is not None and getattr(decoded, "workflow_id", None) not in self._among:
            return
        with self._lock:
            line = self._narrator.see(decoded)
        if line is not None:
            self._on_line(line)
