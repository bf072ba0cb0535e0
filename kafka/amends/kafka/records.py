"""What goes out and what comes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from amends.schemas.slots import quick

if TYPE_CHECKING:
    from confluent_kafka import Message

Headers = Sequence[tuple[str, bytes]]


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class Ack(NamedTuple):
    """Where a record stands, acknowledged by all replicas in sync. `appended_at_ms` is the broker's clock on a topic
    with LogAppendTime, else the writer's."""

    partition: int
    offset: int
    appended_at_ms: int


class Writable(Protocol):
    """Anything with these can be written: `Outgoing`, or a part's own emission."""

    @property
    def topic(self) -> str: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def partition(self) -> int | None: ...
    @property
    def headers(self) -> Headers: ...


@quick
@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to write. `partition` None: the one of the key (murmur2). `value` None: a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    headers: Headers = ()


class Record:
    """A record that was read. Never changed after it is made.

    Not a dataclass, because headers cost more to unpack than everything else and the hot path never asks for them: they
    are unpacked when first asked for.
    """

    __slots__ = ("_headers", "appended_at_ms", "key", "offset", "partition", "topic", "value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        appended_at_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | Message = (),
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.appended_at_ms = appended_at_ms
        self.key = key
        self.value = value
        self._headers = headers

    @property
    def headers(self) -> Headers:
        """Headers in the order they were written; a header without a value has the value `b""`."""
        if not isinstance(self._headers, Sequence):
            self._headers = _headers_of(self._headers)
        return self._headers

    def header(self, name: str) -> bytes | None:
        """Return the last value of header `name`, or None."""
        return next((value for known, value in reversed(self.headers) if known == name), None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return self._identity() == other._identity() and list(self.headers) == list(other.headers)

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        size = "tombstone" if self.value is None else f"{len(self.value)} bytes"
        return f"Record({self.topic}[{self.partition}]@{self.offset}, key={self.key!r}, {size})"

    def _identity(self) -> tuple[object, ...]:
        return (self.topic, self.partition, self.offset, self.appended_at_ms, self.key, self.value)


def _headers_of(message: Message) -> Headers:
    headers = message.headers() or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return tuple((name, value.encode() if isinstance(value, str) else value or b"") for name, value in pairs)


def record_of(message: Message) -> Record:
    """Return a message without error as a `Record`."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return Record(topic, partition, offset, message.timestamp()[1], message.key(), message.value(), message)


@quick
@dataclass(frozen=True, slots=True)
class Batch:
    """What one poll brought. `ends`: partitions that were read to their end; the next offset there.

    An end says nothing about *when* it was the end: for that ask `observe_ends`.
    """

    records: list[Record]
    ends: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class EndObserved:
    """`offset` was the next offset of the partition at some moment not before `observed_at_ms` (this machine's clock,
    read before the broker was asked). So a reader at `offset` has seen all that was appended before that."""

    offset: int
    observed_at_ms: int
