"""Each record of a run is decoded once, by the real codec, and what it says is shared: facts can't be changed.

A fact is read by both owners of its partition, by the read back of each attempt, by a resumed agent and by the judge;
decoding it for each of them was a tenth of what a run costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from amends.processors import contracts, reading
from amends.schemas import codec
from amends.schemas.codec import Record
from amends.schemas.framing import Headed

RECORDS_MAX = 4_096

_known = lru_cache(RECORDS_MAX)(codec.decode)


def decoded(data: bytes | None, stored: Headed | None = None) -> Record:
    """What `codec.decode` makes of it. Here nothing is framed, so that headers say nothing of a value."""
    return codec.decode(data, stored) if data is None else _known(data)


@contextmanager
def shared_decoding() -> Iterator[None]:
    """Let the fold, too, take what is decoded already."""
    modules = (reading, contracts)
    before = [vars(module)["decode"] for module in modules]
    for module in modules:
        vars(module)["decode"] = decoded
    try:
        yield
    finally:
        for module, real in zip(modules, before, strict=True):
            vars(module)["decode"] = real
