"""What a process knows of a schema registry: the ids of its own records, and whom to ask what other ids mean. Pure.

A registry's framing is `00`, a 4-byte id, and the Avro body; the same body as in single-object encoding. So a record
is framed by another prefix, which is computed once, and readers take both side by side.

Every record we frame says its schema's fingerprint in a header, too (`SCHEMA_HEADER`): whoever has our schemas reads
it without a registry. Ids matter only for records that others wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from amends.schemas.wire import Reader

REGISTERED = 0x00
FRAME_BYTES = 5
SCHEMA_HEADER = "amends-schema"
"""Holds the fingerprint of the writer's schema, 16 hexadecimal digits, as it stands in single-object encoding."""

Registered = Callable[[int], Mapping[str, Any] | None]
"""Looks up a registry's schema id; None if the registry has no such id. It may raise anything: it could not tell."""


class Headed(Protocol):
    """A record as it stands on a topic, with its headers."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """Costly with some clients: asked for only where an id is not known."""
        ...


def frame(number: int) -> bytes:
    """Return what stands before the body of a record whose schema has the id `number`."""
    return bytes([REGISTERED]) + number.to_bytes(FRAME_BYTES - 1, "big")


def framed_id(data: bytes) -> int | None:
    """Return the id in a registry's framing; None where `data` is not framed so."""
    if len(data) <= FRAME_BYTES or data[0] != REGISTERED:
        return None
    return int.from_bytes(data[1:FRAME_BYTES], "big")


class Framing:
    """The registry of this process.

    Attributes:
        look_up: asks the registry; called for an id that is not in `known`.
        frames: what stands before each record's body; empty until all ids are known, and replaced as a whole.
        known: readers by id, filled as ids are met. A registry never gives an id to another schema.
    """

    __slots__ = ("frames", "known", "look_up")

    def __init__(self, look_up: Registered) -> None:
        self.look_up = look_up
        self.frames: Mapping[type, bytes] = {}
        self.known: dict[int, tuple[Reader, type]] = {}
