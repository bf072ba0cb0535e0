"""A fold for the engines' contract: per key, how many facts there were and a digest of their order.

It shows every fault an engine could make: a lost fact or one folded twice changes the count, two in the wrong order
the digest. A fact `arm <ms>` arms a timer of its key; when it is due the fold writes `rang` to the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

from amends.processors.emission import Emission, LedgerRecord
from amends.schemas.topics import Topics


@dataclass(frozen=True, slots=True)
class Count:
    count: int = 0
    order: str = ""
    folded_to: int = -1
    due_at_ms: int | None = None

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

    def restore(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.counts.pop(key, None)
        else:
            self.counts[key] = decode(value)

    def restored(self, folded_to: int) -> None:
        self.folded_to = folded_to
        self._to_emit.update((key, None) for key in self.counts)

    def fold(self, record: LedgerRecord) -> None:
        self.folded_to = record.offset
        if record.key is None:
            return
        before = self.counts.get(record.key, Count())
        self.counts[record.key] = before.with_fact(record.offset, record.appended_at_ms, record.value)
        self._to_emit[record.key] = self._changed[record.key] = None

    def outputs(self, now_ms: int) -> Sequence[Emission]:
        found = [
            Emission(
                self.topics.workflows, key, encode(replace(self.counts[key], folded_to=self.folded_to)), self.partition
            )
            for key in self._to_emit
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
        due = (c.due_at_ms for key, c in self.counts.items() if c.due_at_ms != self._rang_for.get(key))
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    def changes(self) -> Sequence[tuple[bytes, bytes | None]]:
        found: list[tuple[bytes, bytes | None]] = [(key, encode(self.counts[key])) for key in self._changed]
        self._changed.clear()
        return found
