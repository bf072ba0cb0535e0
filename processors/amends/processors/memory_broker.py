"""A Kafka in memory: topics, append time by a given clock, transactions that refuse an owner that was replaced."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from amends.processors.emission import Emission
from amends.processors.engine import CheckpointRefusedError
from amends.schemas.keys import partition_for


class StoredRecord(NamedTuple):
    """A record of a topic in memory."""

    topic: str
    partition: int
    offset: int
    appended_at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass(slots=True)
class _Log:
    records: list[StoredRecord] = field(default_factory=list[StoredRecord])
    start: int = 0
    end: int = 0


class MemoryBroker:
    """Topics of `partitions` partitions each, made when first used; the broker's clock gives the append time.

    Records are read as soon as they are appended, transactions are atomic, and a transactional id has one owner: the
    last one that called `initialise`.
    """

    def __init__(self, partitions: int, now_ms: Callable[[], int]) -> None:
        self.partitions = partitions
        self._now_ms = now_ms
        self._logs: dict[tuple[str, int], _Log] = {}
        self._committed: dict[tuple[str, str, int], int] = {}
        self._epochs: dict[str, int] = {}

    def append(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> StoredRecord:
        """Append a record, to the key's own partition unless one is given, and return it as stored."""
        chosen = partition_for(key or b"", self.partitions) if partition is None else partition
        if not 0 <= chosen < self.partitions:
            raise ValueError(f"{topic} has partitions 0 to {self.partitions - 1}, not {chosen}")
        log = self._log(topic, chosen)
        stored = StoredRecord(topic, chosen, log.end, self._now_ms(), key, value, tuple(headers))
        log.records.append(stored)
        log.end += 1
        return stored

    def read(
        self, topic: str, partition: int, from_offset: int = 0, records_max: int | None = None
    ) -> list[StoredRecord]:
        """Return the records from `from_offset` on, in order, less those forgotten or compacted."""
        log = self._log(topic, partition)
        records = log.records
        if len(records) == log.end - log.start:  # none is missing: the offset says where a record stands
            first = max(0, from_offset - log.start)
        else:
            first = bisect_left(records, from_offset, key=lambda record: record.offset)
        return records[first:] if records_max is None else records[first : first + records_max]

    def start(self, topic: str, partition: int) -> int:
        """Return the lowest offset that is still held."""
        return self._log(topic, partition).start

    def end(self, topic: str, partition: int) -> int:
        """Return the offset the next record will have."""
        return self._log(topic, partition).end

    def offset_at(self, topic: str, partition: int, at_ms: int) -> int:
        """Return where the first record stands that was appended at `at_ms` or later; the end if there is none."""
        later = (r.offset for r in self._log(topic, partition).records if r.appended_at_ms >= at_ms)
        return next(later, self._log(topic, partition).end)

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self._logs})

    def forget(self, topic: str, partition: int, before_offset: int) -> None:
        """Let retention pass: drop the records below `before_offset`."""
        log = self._log(topic, partition)
        log.start = min(max(log.start, before_offset), log.end)
        log.records = [record for record in log.records if record.offset >= log.start]

    def compact(self, topic: str) -> None:
        """Keep the last record of each key. Tombstones stay: a broker keeps them for a day."""
        for (name, _), log in self._logs.items():
            if name == topic:
                last = {record.key: record.offset for record in log.records}
                log.records = [record for record in log.records if last[record.key] == record.offset]

    # --- transactions -----------------------------------------------------------------------------------------------

    def initialise(self, transactional_id: str) -> int:
        """Make the caller the owner of `transactional_id`; return the epoch its commits must carry."""
        self._epochs[transactional_id] = self._epochs.get(transactional_id, -1) + 1
        return self._epochs[transactional_id]

    def commit(
        self,
        transactional_id: str,
        epoch: int,
        records: Iterable[Emission],
        group: str,
        offsets: Mapping[tuple[str, int], int],
    ) -> None:
        """Append `records` and set `offsets` of `group`, all or nothing.

        Raises:
            CheckpointRefusedError: `transactional_id` has a later owner.
        """
        if self._epochs.get(transactional_id) != epoch:
            raise CheckpointRefusedError(f"{transactional_id} has a later owner")
        for record in records:
            self.append(record.topic, key=record.key, value=record.value, partition=record.partition)
        for (topic, partition), offset in offsets.items():
            self._committed[group, topic, partition] = offset

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        return self._committed.get((group, topic, partition))

    def _log(self, topic: str, partition: int) -> _Log:
        log = self._logs.get((topic, partition))
        if log is None:
            log = self._logs[topic, partition] = _Log()
        return log
