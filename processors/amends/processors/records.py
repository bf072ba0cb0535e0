"""What goes into a fold and comes out of it: a ledger record, and something to send. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A record of a ledger partition, as the broker has it. `appended_at_ms` is the broker's append time."""

    offset: int
    appended_at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True, slots=True)
class Emission:
    """A record to send as a plain confirmed write. `partition` None: the key's own (murmur2)."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes]] = ()
