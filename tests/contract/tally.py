"""A fold for the engines' contract: per key, how many facts there were and a digest of their order.

It shows every fault an engine could make: a lost fact or one folded twice changes the count, two in the wrong order
the digest. A fact `arm <ms>` arms a timer of its key; when it is due the fold writes `rang` to the ledger. A fact
`forget` drops its key; a fact `again <offset>` has it counted anew from there, and other facts of the key wait. A fact
`carry <count>` tells who begins behind the ledger's beginning what had been counted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

from amends.processors.emission import Emission, LedgerRecord
from amends.schemas.topics import Topics

CARRY = b"carry "


@dataclass(frozen=True, slots=True)
class Count:
    count: int = 0
    order: str = ""
    folded_to: int = -1
    due_at_ms: int | None = None
    parked_from: int | None = None
    gone: bool = False

    def with_fact(self, offset: int, appended_at_ms: int, value: bytes | None) -> Count:
        if offset <= self.folded_to:
            return self
        order = sha256(self.order.encode() + (value or b"-")).hexdigest()[:16]
        due_at_ms = self.due_at_ms
        if value is not None and value.startswith(b"arm "):
            due_at_ms = appended_at_ms + int(value.removeprefix(b"arm "))
        elif value == b"rang":
            due_at_ms = None
        return Count(self.count + 1, order, offset, due_at_ms)


def encode(count: Count) -> bytes:
    return json.dumps(asdict(count)).encode()


def decode(value: bytes) -> Count:
    return Count(**json.loads(value))


@dataclass
class Again:
    """A stretch that is read for one key."""

    key: bytes
    from_offset: int
    to_offset: int
    count: Count = Count()

    from_ms = None

    def located(self, offset: int) -> None:
        raise AssertionError(f"nobody asked where {offset} is")

    def begins_at(self, offset: int) -> None:
        if offset > self.from_offset:
            self.count = replace(self.count, gone=True)
            self.from_offset = offset

    def take(self, record: LedgerRecord) -> None:
        assert self.from_offset <= record.offset <= self.to_offset
        if record.key == self.key and not self.count.gone:
            self.count = self.count.with_fact(record.offset, record.appended_at_ms, record.value)


class Tally:
    """A `PartitionFold`."""

    def __init__(self, partition: int, topics: Topics) -> None:
        self.partition = partition
        self.topics = topics
        self.folded_to = -1
        self.counts: dict[bytes, Count] = {}
        self._to_emit: dict[bytes, None] = {}
        self._changed: dict[bytes, None] = {}
        self._rang_for: dict[bytes, int] = {}
        self._wanted: list[Again] = []
        self._out: Again | None = None
        self._waiting: dict[bytes, list[LedgerRecord]] = {}
        self._recalled: dict[bytes, Count] = {}

    def restore(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.counts.pop(key, None)
        else:
            self.counts[key] = decode(value)

    def recall(self, record: LedgerRecord) -> None:
        if record.key is not None and (record.value or b"").startswith(CARRY):
            self._recalled[record.key] = decode((record.value or b"").removeprefix(CARRY))

    def restored(self, folded_to: int) -> None:
        self.counts.update(self._recalled)
        self._changed.update(dict.fromkeys(self._recalled))
        self.folded_to = folded_to
        self._to_emit.update((key, None) for key in self.counts)
        for key, count in self.counts.items():
            if count.parked_from is not None:
                self._park(key, count.parked_from, folded_to)
                self._changed[key] = None

    def fold(self, record: LedgerRecord) -> None:
        self.folded_to = record.offset
        if record.key is None:
            return
        if record.key in self._waiting:
            self._waiting[record.key].append(record)
            return
        self._count(record, record.key)

    def _count(self, record: LedgerRecord, key: bytes) -> None:
        value = record.value or b""
        self._to_emit[key] = self._changed[key] = None
        if value == b"forget":
            self.counts.pop(key, None)
            self._to_emit.pop(key)
            return
        if value.startswith(b"again "):
            self.counts[key] = Count(parked_from=int(value.removeprefix(b"again ")))
            self._park(key, int(value.removeprefix(b"again ")), record.offset)
            return
        self.counts[key] = self.counts.get(key, Count()).with_fact(record.offset, record.appended_at_ms, record.value)

    def _park(self, key: bytes, from_offset: int, to_offset: int) -> None:
        self._waiting[key] = []
        self._wanted.append(Again(key, from_offset, to_offset))

    def refolding(self) -> Again | None:
        if self._out is not None or not self._wanted:
            return None
        self._out = self._wanted.pop(0)
        return self._out

    def refolded(self, stretch: Again) -> None:
        assert stretch is self._out
        self._out = None
        self.counts[stretch.key] = stretch.count
        self._to_emit[stretch.key] = self._changed[stretch.key] = None
        for record in self._waiting.pop(stretch.key):
            self._count(record, stretch.key)

    def outputs(self, now_ms: int) -> Sequence[Emission]:
        found = [
            Emission(
                self.topics.workflows, key, encode(replace(self.counts[key], folded_to=self.folded_to)), self.partition
            )
            for key in self._to_emit
            if key in self.counts
        ]
        self._to_emit.clear()
        return found

    def timeouts(self, folded_time_ms: int) -> Sequence[Emission]:
        found: list[Emission] = []
        for key, count in self.counts.items():
            due_at_ms = count.due_at_ms
            if due_at_ms is None or due_at_ms > folded_time_ms or self._rang_for.get(key) == due_at_ms:
                continue
            self._rang_for[key] = due_at_ms
            found.append(Emission(self.topics.ledger, key, b"rang", self.partition))
        return found

    def next_due_ms(self) -> int | None:
        if self._wanted and self._out is None:
            return 0
        due = (c.due_at_ms for key, c in self.counts.items() if c.due_at_ms != self._rang_for.get(key))
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    def changes(self) -> Sequence[tuple[bytes, bytes | None]]:
        found: list[tuple[bytes, bytes | None]] = [
            (key, encode(self.counts[key]) if key in self.counts else None) for key in self._changed
        ]
        self._changed.clear()
        return found
