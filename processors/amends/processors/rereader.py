"""Reads stretches of the ledger that folds want again, in a thread and with a consumer of its own, while facts are
folded."""

from __future__ import annotations

import logging
import threading
from collections import deque
from queue import SimpleQueue

from amends.kafka.errors import KafkaFault, ReadTimedOut, RecordGone
from amends.kafka.reader import PartitionReader
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.processors.engine import Stretch
from amends.processors.tenure import Tenure

logger = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Between two tries, while the broker is away."""
CLOSE_S = 5.0


class Rereader:
    """Used by the loop's thread alone. Its own thread begins with the first stretch; it reads one after the other, each
    partition has one at most."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._wanted: SimpleQueue[tuple[Tenure, Stretch] | None] = SimpleQueue()
        self._ended: deque[tuple[Tenure, Stretch, Exception | None]] = deque()
        self._out: set[Tenure] = set()  # of which a stretch is read, or waits for that
        self._unwanted: set[Tenure] = set()  # of these, whose partitions were given up
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def want(self, tenure: Tenure, stretch: Stretch) -> None:
        """Have a stretch read. Never blocks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="amends-reread", daemon=True)
            self._thread.start()
        self._out.add(tenure)
        self._wanted.put((tenure, stretch))

    def drop(self, tenure: Tenure) -> None:
        """A partition is given up: nobody waits for its stretch."""
        if tenure in self._out:
            self._unwanted.add(tenure)

    def take(self) -> list[tuple[Tenure, Stretch]]:
        """Return the stretches that were read to their ends since the last call.

        Raises:
            KafkaFault: one can't be read to its end. Its partition must be taken anew.
        """
        taken: list[tuple[Tenure, Stretch]] = []
        while self._ended:
            tenure, stretch, fault = self._ended.popleft()
            self._out.discard(tenure)
            if tenure in self._unwanted:
                self._unwanted.discard(tenure)
            elif fault is not None:
                raise fault
            else:
                taken.append((tenure, stretch))
        return taken

    def close(self) -> None:
        """End the thread; what it reads is dropped."""
        self._closing.set()
        self._wanted.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with PartitionReader(self._kafka) as reader:
            while (wanted := self._wanted.get()) is not None and not self._closing.is_set():
                tenure, stretch = wanted
                fault: Exception | None = None
                try:
                    self._read(reader, tenure, stretch)
                except Exception as error:  # told to the loop, which joins again or ends the process
                    fault = error
                self._ended.append((tenure, stretch, fault))

    def _read(self, reader: PartitionReader, tenure: Tenure, stretch: Stretch) -> None:
        place = TopicPartition(self._kafka.topics.ledger, tenure.partition)
        read_to = -1
        while not self._is_over(tenure):
            try:
                if read_to < 0:
                    if stretch.from_ms is not None:
                        stretch.located(reader.offset_at(place, stretch.from_ms))
                    stretch.begins_at(reader.watermarks(place)[0])
                start = max(stretch.from_offset, read_to + 1)
                if start > stretch.to_offset:
                    return
                for batch in reader.read({place: start}, {place: stretch.to_offset + 1}):
                    for record in batch:
                        stretch.take(record)
                        read_to = record.offset
                    if self._is_over(tenure):
                        return
                return
            except RecordGone:
                if read_to >= 0:
                    raise
            except ReadTimedOut as late:
                logger.warning("reading ledger partition %d again waits: %s", tenure.partition, late)
            except KafkaFault as fault:
                logger.warning("reading ledger partition %d again: %s", tenure.partition, fault)
                raise
            self._closing.wait(AGAIN_S)

    def _is_over(self, tenure: Tenure) -> bool:
        return self._closing.is_set() or tenure in self._unwanted
