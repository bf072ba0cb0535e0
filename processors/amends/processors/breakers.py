"""Breakers: a tool whose undos fail one after another is left alone for a while. One per tool and partition.

| breaker | an undo ended badly                              | an undo closed | pause over | a person: mended |
|---------|--------------------------------------------------|----------------|------------|------------------|
| CLOSED  | one more workflow; OPEN when they are `failures` | none failed    |            |                  |
| OPEN    | begun before the pause ended: nothing            | CLOSED         | PROBES     | PROBES           |
| PROBES  | OPEN again, for twice as long, at most the cap   | CLOSED         |            |                  |

Rules
- It counts workflows, not attempts: what is wrong with one undo is its own budget's affair. One undo that closes, of
  whichever workflow, shows that the tool works.
- Only what the fold counts as spent counts here; an undo that found the world changed says nothing about the tool. An
  attempt begun before the breaker last opened or closed says nothing about what it does now.
- While it is OPEN no undo of the tool is commanded, so none spends an attempt; on PROBES, one at a time (`admission`).
- It is state: folded from facts, in append times, and kept in the changelog. PROBES is no state of its own: it is OPEN
  once the pause is over.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import astuple, dataclass

from amends.schemas.commands import Incident, IncidentState
from amends.schemas.decisions import BREAKER_OPEN
from amends.schemas.keys import incident_id


@dataclass(frozen=True, slots=True)
class BreakerTerms:
    """When a breaker opens, and for how long."""

    failures: int = 5  # workflows whose undos failed since the last that closed; 0: never
    pause_ms: int = 1_000  # doubles each time it opens again
    pause_cap_ms: int = 60_000
    incident_ms: int = 30_000  # open for longer: a person is told


@dataclass(frozen=True, slots=True)
class Breaker:
    """What is known of a tool in a partition. Times are append times."""

    failed: tuple[str, ...] = ()  # instances whose undo failed since the last one closed; at most `failures`
    opened_at_ms: int = 0  # 0: it is closed
    retry_at_ms: int = 0  # where it is open: when one undo may be let through
    pauses: int = 0  # how often it opened since it was closed
    since_ms: int = 0  # attempts begun before this count for nothing
    error: str = ""  # what the last failure said
    announced: int = 0  # the pause at which a person was last told; 0: nobody was, or all is well and he knows
    mended_by: str = ""  # who said that it works again; "": nobody, or it has failed since

    @property
    def is_open(self) -> bool:
        return self.opened_at_ms != 0


CLOSED = Breaker()


def failed(breaker: Breaker, instance: str, begun_at_ms: int, at_ms: int, error: str, terms: BreakerTerms) -> Breaker:
    """Return the breaker after an undo attempt of `instance`, begun at `begun_at_ms`, ended badly."""
    if not terms.failures or begun_at_ms < breaker.since_ms:
        return breaker
    if breaker.is_open:
        return _opened(breaker, at_ms, error, terms)
    if instance in breaker.failed:
        return breaker
    after = dataclasses.replace(breaker, failed=(*breaker.failed, instance), error=error)
    return _opened(after, at_ms, error, terms) if len(after.failed) >= terms.failures else after


def closed(breaker: Breaker, at_ms: int) -> Breaker:
    """Return the breaker after an undo took. The same object where that is no news."""
    if breaker.is_open:
        return Breaker(since_ms=at_ms, announced=breaker.announced)
    return dataclasses.replace(breaker, failed=(), error="") if breaker.failed else breaker


def mended(breaker: Breaker, by: str, at_ms: int) -> Breaker:
    """Return the breaker after a person said that the tool works again: it is tried at once."""
    if not breaker.is_open:
        return breaker
    return dataclasses.replace(breaker, retry_at_ms=min(breaker.retry_at_ms, at_ms), since_ms=at_ms, mended_by=by)


def _opened(breaker: Breaker, at_ms: int, error: str, terms: BreakerTerms) -> Breaker:
    pause_ms = min(terms.pause_cap_ms, terms.pause_ms * 2 ** min(breaker.pauses, 30))
    return dataclasses.replace(
        breaker,
        opened_at_ms=breaker.opened_at_ms or at_ms,
        retry_at_ms=at_ms + pause_ms,
        since_ms=at_ms + pause_ms,
        pauses=breaker.pauses + 1,
        error=error,
        mended_by="",
    )


# --- who is told ------------------------------------------------------------------------------------------------------


def tells_at_ms(breaker: Breaker, terms: BreakerTerms) -> int | None:
    """Return when there is something to tell about the breaker; None if a fact must come first."""
    if not breaker.is_open or breaker.mended_by:
        return 0 if breaker.announced else None
    return breaker.opened_at_ms + terms.incident_ms if breaker.announced != breaker.pauses else None


def told(breaker: Breaker) -> Breaker:
    """Return the breaker once people know what it is."""
    is_bad = breaker.is_open and not breaker.mended_by
    return dataclasses.replace(breaker, announced=breaker.pauses if is_bad else 0)


def incident_of(tool: str, lane: str, breaker: Breaker, waiting: int, partition: int, now_ms: int) -> Incident:
    """Return what people are told: that the tool is left alone, or that it no longer is. The id is the tool's alone, so
    that all partitions speak of one incident."""
    is_bad = breaker.is_open and not breaker.mended_by
    name = incident_id("", -1, BREAKER_OPEN, tool)
    what = f"Undos of {tool} failed one after another, without one that took; the last said: {breaker.error}."
    return Incident(
        incident_id=name,
        kind=BREAKER_OPEN,
        state=IncidentState.OPEN if is_bad else IncidentState.CLOSED,
        version=max(1, breaker.pauses, breaker.announced),
        summary=f"undos of {tool} fail: {waiting} workflows of partition {partition} wait"
        if is_bad
        else f"undos of {tool} go on",
        detail=f"{what} Nothing more is undone with it for now, and none of what waits spends an attempt: one undo is "
        "tried from time to time, and when it takes, all go on.\n"
        "To do: find out what is wrong with the tool or the system behind it. Then wait, or have it tried at once: "
        f"`amends incidents resolve {name[:8]} --decision retry --reason TEXT`."
        if is_bad
        else f"An undo of {tool} took, or a person said that it works again: what waited goes on.",
        tool_name=tool,
        lane=lane,
        partition=partition,
        opened_at_ms=breaker.opened_at_ms,
        closed_at_ms=None if is_bad else now_ms,
        closed_by="" if is_bad else breaker.mended_by or "an undo that took",
    )


# --- as it is kept ----------------------------------------------------------------------------------------------------


def encode_breaker(breaker: Breaker) -> bytes:
    """Return a breaker as a changelog record: an array by position, fields only ever added at the end."""
    return json.dumps(astuple(breaker), separators=(",", ":"), ensure_ascii=False).encode()


def decode_breaker(data: bytes) -> Breaker:
    instances, *others = json.loads(data)
    return Breaker(tuple(instances), *others)
