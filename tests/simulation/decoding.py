"""What a run writes and reads again, for less: each fact is read once, and state is encoded when it is restored.

A fact is read by both owners of its partition, by the read back of each attempt, by a resumed agent and by the judge;
of a hundred checkpoints a handful is ever restored. Facts and state can't be changed, so what one has read is shared.
What is shared went through the real codec: state whenever it is restored, and of the facts one in `LOOKED_AT_EACH`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from amends.processors import contracts, folding, partition, reading, records, refolding, refolds, slots
from amends.processors.emission import LedgerRecord
from amends.processors.timers import Silences
from amends.schemas import codec
from amends.schemas.codec import Record
from amends.schemas.facts import Fact
from amends.schemas.framing import Headed

CONTRACTS_MAX = 4_096
LOOKED_AT_EACH = 16

_contract = lru_cache(CONTRACTS_MAX)(codec.decode)
_known: dict[bytes, Record] = {}  # of the run
_read: dict[int, Fact] = {}  # by record: all of them live as long as the run


def encoded(fact: Fact) -> bytes:
    """What `codec.encode` makes of it; what it will be decoded to is known from now on."""
    data = codec.encode(fact)
    if len(_known) % LOOKED_AT_EACH == 0:
        assert codec.decode(data) == fact
    _known[data] = fact
    return data


def decoded(data: bytes | None, stored: Headed | None = None) -> Record:
    """What `codec.decode` makes of it. Here nothing is framed, so that headers say nothing of a value."""
    if data is None:
        return codec.decode(data, stored)
    found = _known.get(data)
    if found is None:
        found = _known[data] = codec.decode(data)
    return found


def read_fact(record: LedgerRecord) -> Fact:
    """What `reading.read_fact` makes of a record of the broker in memory."""
    found = _read.get(id(record))
    if found is None:
        found = _read[id(record)] = reading.read_fact(record)
    return found


class Kept(bytes):
    """A record of the changelog that is encoded, and read, once somebody wants to restore it."""

    what: tuple[Any, ...]
    read: Any = None


def _kept(data: bytes, *what: Any) -> Kept:
    kept = Kept(data)
    kept.what = what
    return kept


def _lazily(encode: Callable[..., bytes], decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode_kept(data: bytes) -> Any:
        assert isinstance(data, Kept)
        if data.read is None:
            data.read = decode(encode(*data.what))
        return data.read

    return decode_kept


def _lazy_records() -> SimpleNamespace:
    """The records of the changelog as they are now, some of their rules perhaps taken away."""
    real = SimpleNamespace(**vars(records))

    def encode_partition(silences: Any, lanes_missing: Any) -> bytes:
        return _kept(b"[", Silences(silences.last_at_ms, list(silences.gaps)), set(lanes_missing))

    lazy = SimpleNamespace(**vars(records))
    lazy.encode_header = lambda header: _kept(b"[", header)
    lazy.decode_header = _lazily(real.encode_header, real.decode_header)
    lazy.encode_step = lambda step: _kept(b"[", step)
    lazy.is_live = lambda data: real.is_live(real.encode_step(*data.what))
    lazy.decode_step = _lazily(real.encode_step, real.decode_step)
    lazy.encode_partition = encode_partition
    lazy.decode_partition = lambda data: real.decode_partition(real.encode_partition(*data.what))  # may be changed
    return lazy


@contextmanager
def shared_decoding() -> Iterator[None]:
    """Let the fold, too, take what is read already, and keep its state as it is until it is restored."""
    _known.clear()
    _read.clear()
    lazy = _lazy_records()
    shared: tuple[tuple[Any, str, Any], ...] = (
        (reading, "decode", decoded),
        (contracts, "decode", _contract),
        (folding, "read_fact", read_fact),
        (refolds, "read_fact", read_fact),
        (refolding, "read_fact", read_fact),
        (partition, "records", lazy),
        (slots, "records", lazy),
    )
    before = [vars(module)[name] for module, name, _ in shared]
    for module, name, ours in shared:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for (module, name, _), real in zip(shared, before, strict=True):
            setattr(module, name, real)
