"""What is looked at between STARTED and the effect: other processes, the fold, and last the echo and the clock. Pure.

- Others: where another process runs the workflow too, what it wrote before our STARTED is read. Of two that make the
  same call, the one whose STARTED stands first makes it.
- Strict: the STARTED asks the fold for an echo, and the call waits for one as of that place or later. In it is whatever
  ended the epoch before our STARTED, by the order of the ledger: failures, requests, Timeouts that were accepted.
- Last: the echo shows no newer epoch, and less than half a lease has passed since before STARTED was sent. The echo
  lags: who is not fenced strictly may slip through, is condemned, and undone.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from amends.producers import refusals
from amends.producers.effects import (
    Admission,
    Admit,
    AdmitAgain,
    Admitted,
    AwaitFold,
    Effect,
    Instant,
    LookAtEcho,
    NotMade,
    QueueFact,
    ReadClock,
    ReadOthers,
    Remember,
    Standing,
)
from amends.producers.outcome import not_executed
from amends.schemas.commands import Phase
from amends.schemas.contract import STRICT, Contract, Idempotency
from amends.schemas.contract import Effect as EffectClass
from amends.schemas.facts import StepEvent
from amends.tools.errors import LedgerUnavailable

OTHERS = "another process makes the same call, and began first"
UNREAD = "nobody could read whether another process makes the same call"


def is_strict(contract: Contract, *, approved: bool) -> bool:
    """Whether a call waits for the fold: what can't be undone, or was approved, always does."""
    return contract.fence == STRICT or approved or contract.effect is EffectClass.IRREVERSIBLE


def yielded_to(
    started: StepEvent, asked: Admit, admitted: Admitted, offset: int, *, surely: bool = False
) -> Generator[Effect, Any, NotMade | None]:
    """Return what is known of the same call in another process whose STARTED stands before ours, None if it is ours.
    Where its remote takes both for one, nobody looks, nor where no other process is known of, unless `surely`: the fold
    says that there is one."""
    terms = asked.contract.call
    keyed = terms.idempotency is not Idempotency.NEITHER
    ages = terms.idempotency is Idempotency.KEY and terms.key_ttl_ms is not None  # the other may have used it long ago
    if not surely and (asked.repeatable or (keyed and not ages and asked.tool_call_id is None)):
        return None
    try:
        found = yield from made_by_others(asked, admitted, offset, started.timestamp_ms, surely=surely)
    except LedgerUnavailable:
        yield QueueFact(not_executed(started, UNREAD, started.timestamp_ms))
        raise
    if found is not None:
        now: Instant = yield ReadClock()
        yield QueueFact(not_executed(started, OTHERS, now.wall_ms))
    return found


def made_by_others(
    asked: Admit, admitted: Admitted, offset: int, wall_ms: int, *, surely: bool = False
) -> Generator[Effect, Any, NotMade | None]:
    """Return what is known of a call by what other processes wrote before `offset`; None if it is still to be made."""
    history = yield ReadOthers(offset, surely)
    if not history:
        return None
    yield Remember(history)
    found: Admission = yield AdmitAgain(asked, admitted, offset, wall_ms)
    return None if isinstance(found, Admitted) else found


def folded(
    started: StepEvent, asked: Instant, lease_ms: int, offset: int, subject: str
) -> Generator[Effect, Any, Standing]:
    """Wait until the fold has seen the STARTED at `offset`; return how the workflow stands as of there.

    Raises:
        LedgerUnavailable: it has not within half a lease.
    """
    now: Instant = yield ReadClock()
    within_ms = max(0, lease_ms // 2 - (now.elapsed_ms - asked.elapsed_ms))
    echo: Standing | None = yield AwaitFold(offset, within_ms)
    if echo is None:
        yield QueueFact(not_executed(started, "no processor has seen its intent in time", now.wall_ms))
        raise refusals.not_folded(subject, lease_ms // 2)
    return echo


def fenced(
    started: StepEvent, asked: Instant, lease_ms: int, workflow_id: str, subject: str
) -> Generator[Effect, Any, None]:
    """Last before the effect.

    Raises:
        WorkflowTurned, Rejected: the epoch is over, or its agent has claimed success.
        LedgerUnavailable: half a lease has passed.
    """
    echo: Standing | None = yield LookAtEcho()
    now: Instant = yield ReadClock()
    took_ms = now.elapsed_ms - asked.elapsed_ms
    if echo is not None and (echo.epoch != started.epoch or echo.phase is not Phase.RUNNING):
        yield QueueFact(not_executed(started, f"the workflow is {echo.phase}, epoch {echo.epoch}", now.wall_ms))
        if echo.epoch == started.epoch and echo.phase not in refusals.TURNED:
            raise refusals.finished(workflow_id, echo)
        raise refusals.turned(workflow_id, echo, f"{started.tool_name} was not called.")
    if took_ms * 2 >= lease_ms:
        yield QueueFact(not_executed(started, f"{took_ms} ms of a lease of {lease_ms} ms had passed", now.wall_ms))
        raise refusals.slept(subject, took_ms, lease_ms)
