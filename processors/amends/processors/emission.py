"""What goes into a fold and comes out of it: a ledger record, and something to send. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from amends.schemas.slots import quick

Headers = Sequence[tuple[str, bytes]]


class LedgerRecord(Protocol):
    """A record of a ledger partition, as the broker has it. Engines hand over what their client read, uncopied."""

    @property
    def offset(self) -> int: ...
    @property
    def appended_at_ms(self) -> int:
        """The broker's append time."""
        ...

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers:
        """Costly with some clients: ask only when they are needed."""
        ...


@quick
@dataclass(frozen=True, slots=True)
class Emission:
    """A record to send as a plain confirmed write. `partition` None: the key's own (murmur2)."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    headers: Headers = ()
