"""Facts of an undo: the table, the grant of the next attempt, people's rulings.

| undo   | STARTED(n) | UNDONE, NOTHING | FAILED retryable | FAILED for good | UNKNOWN, Timeout | RELEASED, DEFERRED |
|--------|------------|-----------------|------------------|-----------------|------------------|--------------------|
| DUE n  | OPEN n     | closed          | DUE n+1          | DEAD            | as OPEN          | DUE n+1            |
| OPEN n |            | closed          | DUE n+1 or DEAD  | DEAD            | DUE n+1 or DEAD  | DUE n+1            |
| DEAD   |            | closed          |                  |                 |                  |                    |
| closed |            | beats a loss    |                  |                 |                  |                    |

FAILED retryable is DEAD once the budget is spent; UNKNOWN too, and at once at a remote that can neither be asked nor
told twice.

Rules
- Attempt n + 1 is granted only when the ledger shows how n ended. Of older attempts only UNDONE closes, and none of a
  generation before the last new effect.
- An end other than UNDONE counts only from the owner of the attempt, the one whose STARTED stands first: anybody else
  has lost the read back and knows nothing.
- A remote that took an undo and does it later (202) has `accepted_ms`: until then nothing is spent, "still there" is
  "not yet", and an undo that can neither be asked about nor sent again waits. FAILED of that attempt ends the wait.
- RELEASED and DEFERRED did nothing and spend nothing. UNKNOWN may have taken: the next attempt asks first (`doubt`).
- Only a person leaves DEAD. While an attempt is open a ruling waits for its end and yields to UNDONE.
- FAILED for good because the world has changed since is DEAD of a kind of its own: nothing is wrong with the remote.
- The generation rises here alone: by `retry` when nothing of the old one is in doubt, when the remote refused the key
  for good, or when a new effect came to light.
"""

from __future__ import annotations

from typing import Any, Final

from amends.processors.attempts import with_trouble, without_trouble
from amends.processors.state import (
    BLANK_UNDO,
    CLOSED_UNDO,
    NOWHERE,
    UNDO_DEAD,
    UNDO_DUE,
    UNDO_OPEN,
    Step,
    Undo,
    UndoState,
    arguments_of,
    in_words,
    is_key_remembered,
    replace,
)
from amends.processors.windows import is_closed
from amends.schemas.contract import COMPARE, Contract, Idempotency, UndoTerms
from amends.schemas.facts import ACCEPTED, CHANGED_SINCE, Decision, Resolution, UndoEvent, UndoStatus

UNDO_FAILED = "undo_failed"
GIVEN_UP = (UNDO_FAILED, "changed_since")
"""Kinds of incidents of an undo that was given up on: each has its dead letter."""

_STARTED: Final = UndoStatus.STARTED
_UNDONE: Final = UndoStatus.UNDONE
_NOTHING_TO_UNDO: Final = UndoStatus.NOTHING_TO_UNDO
_DEFAULT_LEASE_MS = UndoTerms(handler="", lane="").lease_ms
_STARTED_KEPT_MAX = 32


def fold_undo_event(step: Step, fact: UndoEvent, contract: Contract | None, offset: int, at_ms: int) -> Step:
    """Return the step after `fact`; the same object where it changes nothing."""
    undo = step.undo or BLANK_UNDO
    if fact.status is _STARTED:
        return _started(step, undo, fact, offset, at_ms)
    if fact.status is _UNDONE or fact.status is _NOTHING_TO_UNDO:
        return _closed(step, undo, fact, at_ms)
    if fact.generation != undo.generation or fact.attempt != undo.attempt:
        if fact.status is UndoStatus.UNKNOWN:
            return _taken_later(step, undo, fact, contract, at_ms)
        return _given_up_later(step, undo, fact, contract, offset, at_ms)
    if undo.state not in (UndoState.DUE, UndoState.OPEN):
        return step
    if undo.state is UndoState.OPEN and fact.owner != undo.owner:
        return step
    match fact.status:
        case UndoStatus.RELEASED | UndoStatus.DEFERRED:
            wait_ms = _backoff_ms(contract, 1) if fact.status is UndoStatus.DEFERRED else 0
            return _after_end(step, _granted(undo, at_ms + wait_ms), offset, at_ms)
        case UndoStatus.FAILED:
            return _failed(step, undo, fact, contract, offset, at_ms)
        case UndoStatus.UNKNOWN:
            undo = _with_acceptance(undo, fact, contract, at_ms)
            return _unknown(step, undo, contract, offset, at_ms, _words(fact))


def undo_timed_out(
    step: Step, generation: int, attempt: int, contract: Contract | None, offset: int, at_ms: int
) -> Step:
    """Return the step after the lease of its open undo attempt ran out: the attempt is UNKNOWN. One that was granted
    and not started in time is too late: the remote has forgotten the key of an attempt that may have taken."""
    undo = step.undo
    if undo is None or (undo.generation, undo.attempt) != (generation, attempt):
        return step
    forgotten_ms = forgotten_at_ms(undo, contract)
    if undo.state is UndoState.DUE and forgotten_ms is not None and at_ms >= forgotten_ms:
        forgotten = "the remote no longer remembers its key and can't be asked"
        silent = "the remote took it, to do it later, and has not said since that it did"
        reason = f"it may have taken, {silent if undo.accepted_until_ms else forgotten}"
        return _dead(step, undo, f"{reason} ({undo.last_error})", offset, at_ms)
    if undo.state is not UndoState.OPEN:
        return step
    return _unknown(step, undo, contract, offset, at_ms, "its lease ran out: the compensator may have died in the call")


def with_undo_due(step: Step, at_ms: int) -> Step:
    """Return the step with an undo that is owed: a first one, or the next generation after a new effect."""
    undo = step.undo
    if undo is None:
        return replace(step, undo=replace(BLANK_UNDO, not_before_ms=at_ms))
    if undo.state not in CLOSED_UNDO:
        return step
    generation = undo.generation + 1
    due = Undo(
        generation=generation,
        floor=generation,
        version=undo.version + 1,
        not_before_ms=at_ms,
        covered_before=undo.covered_before,
    )
    return replace(step, present=False, undo=due)  # evidence so far spoke of what is undone


def with_undo_dead(step: Step, kind: str, reason: str, offset: int, at_ms: int) -> Step:
    """Return the step with an undo that no machine may do: an incident from the start."""
    undo = step.undo or Undo()
    dead = replace(undo, state=UndoState.DEAD, version=undo.version + 1, last_error=reason)
    return with_trouble(replace(step, undo=dead), kind, reason, offset, at_ms)


def fold_ruling(step: Step, fact: Resolution, contract: Contract | None, offset: int, at_ms: int) -> Step:
    """Return the step after a person's ruling on its undo. One taken on another version does nothing."""
    undo = step.undo
    if undo is None or (fact.version is not None and fact.version != undo.version):
        return step
    if fact.decision is Decision.RETRY:
        possible = undo.state is UndoState.DEAD and can_be_run(step, contract)
        fresh = not undo.doubt and bool(undo.started)
        return granted_anew(step, undo, fact.by, contract, at_ms, fresh=fresh) if possible else step
    if fact.decision not in (Decision.MARK_UNDONE, Decision.ACCEPT_LOSS) or undo.state in CLOSED_UNDO:
        return step
    if undo.state is UndoState.OPEN:
        return replace(step, undo=replace(undo, pending=fact.decision.value, pending_by=fact.by))
    return _ruled(step, replace(undo, pending=fact.decision.value, pending_by=fact.by), offset, at_ms)


def can_be_run(step: Step, contract: Contract | None) -> bool:
    """Whether there is an undo and all it needs. Retrying another would close its incident and never run."""
    if step.child is not None:  # it is asked again
        return True
    return contract is not None and contract.undo is not None and arguments_of(step) is not None


def can_be_tried_again(terms: UndoTerms, contract: Contract, first_at_ms: int, now_ms: int) -> bool:
    """Whether an undo whose last attempt may have taken can be attempted again at all."""
    return (
        terms.idempotency is Idempotency.NATURAL
        or is_key_remembered(terms, first_at_ms, now_ms)
        or shows_whether_undone(contract)
    )


def shows_whether_undone(contract: Contract) -> bool:
    """Whether the world can be asked before an undo is tried again: by `verify`, or by reading what it puts back."""
    return contract.verify is not None or contract.restores == COMPARE


def forgotten_at_ms(undo: Undo, contract: Contract | None) -> int | None:
    """When an undo in doubt can no longer be attempted, because the remote forgets its key; None if it always can."""
    if contract is None or contract.undo is None or shows_whether_undone(contract):
        return None
    terms = contract.undo
    if not undo.doubt or not undo.first_opened_at_ms:
        return None
    if terms.idempotency is Idempotency.NEITHER and undo.accepted_until_ms:
        return undo.accepted_until_ms
    reusable_ms = terms.key_reusable_ms
    if terms.idempotency is not Idempotency.KEY or reusable_ms is None:
        return None
    return undo.first_opened_at_ms + reusable_ms


# --- the cells of the table -----------------------------------------------------------------------------------------


def _started(step: Step, undo: Undo, fact: UndoEvent, offset: int, at_ms: int) -> Step:
    if fact.generation != undo.generation:
        return step
    changes: dict[str, Any] = {}
    if all(attempt != fact.attempt for attempt, _ in undo.started):
        changes["started"] = (*undo.started, (fact.attempt, offset))[-_STARTED_KEPT_MAX:]
    if undo.first_opened_at_ms == 0:
        changes["first_opened_at_ms"] = at_ms
    if undo.first_started_offset == NOWHERE:
        changes["first_started_offset"] = offset
    if undo.state is UNDO_DUE and fact.attempt == undo.attempt:
        lease_ms = fact.lease_ms or _DEFAULT_LEASE_MS
        changes |= {"state": UNDO_OPEN, "owner": fact.owner, "opened_at_ms": at_ms, "lease_ms": lease_ms}
    return replace(step, undo=replace(undo, **changes))


def _closed(step: Step, undo: Undo, fact: UndoEvent, at_ms: int) -> Step:
    if fact.generation < undo.floor or fact.generation > undo.generation:
        return step
    current = (fact.generation, fact.attempt) == (undo.generation, undo.attempt)
    undone = fact.status is _UNDONE
    if undo.state in CLOSED_UNDO and not (undone and undo.state is UndoState.LOSS):
        return step
    if not undone and not current:  # an older "nothing to undo" speaks of an older world
        return step
    since = dict(undo.started).get(fact.attempt, NOWHERE) if fact.generation == undo.generation else NOWHERE
    if since == NOWHERE:
        since = undo.first_started_offset
    if since == NOWHERE:  # its STARTED could not be read: it began behind the first end, or it had not been granted
        ends = (a.ended_offset for a in step.attempts if a.ended_offset >= undo.covered_before)
        since = 1 + min(ends, default=undo.covered_before - 1)
    closed = replace(
        undo,
        state=UndoState.UNDONE if undone else UndoState.NOTHING,
        covered_before=since,
        evidence=in_words(fact.evidence),
        pending="",
        version=undo.version + (1 if undo.state is UNDO_DEAD else 0),
    )
    return _without_troubles(replace(step, undo=closed), at_ms, "the undo took")


def _failed(step: Step, undo: Undo, fact: UndoEvent, contract: Contract | None, offset: int, at_ms: int) -> Step:
    undo = replace(undo, spent=undo.spent + 1, last_error=_words(fact))
    if not fact.retryable:
        changed = fact.error is not None and fact.error.type == CHANGED_SINCE
        why = _words(fact) if changed else f"refused for good: {_words(fact)}"
        return _dead(step, undo, why, offset, at_ms, "changed_since" if changed else UNDO_FAILED)
    if undo.spent >= _attempts_max(contract):
        return _dead(step, undo, f"budget of {undo.spent} attempts spent; the last: {_words(fact)}", offset, at_ms)
    granted = _granted(undo, at_ms + _backoff_ms(contract, undo.spent))
    if fact.key_refused and not undo.doubt:
        granted = replace(granted, generation=undo.generation + 1, attempt=0, started=(), first_opened_at_ms=0)
    return _after_end(step, granted, offset, at_ms)


def _unknown(step: Step, undo: Undo, contract: Contract | None, offset: int, at_ms: int, words: str) -> Step:
    awaited = at_ms < undo.accepted_until_ms
    undo = replace(undo, spent=undo.spent + (0 if awaited else 1), doubt=True, last_error=words)
    terms = contract.undo if contract is not None else None
    if awaited and contract is not None and undo.spent <= _attempts_max(contract):  # a remote may take it for ever
        return _after_end(step, _granted(undo, _polled_at_ms(undo, contract, at_ms)), offset, at_ms)
    if (
        contract is None
        or terms is None
        or not can_be_tried_again(terms, contract, undo.first_opened_at_ms or at_ms, at_ms)
    ):
        reason = "it may have taken, and the remote can neither be asked nor told twice"
        return _dead(step, undo, f"{reason} ({words})", offset, at_ms)
    if undo.spent >= _attempts_max(contract):
        return _dead(
            step, undo, f"budget of {undo.spent} attempts spent; the last may have taken: {words}", offset, at_ms
        )
    wait_ms = max(terms.settle_ms, _backoff_ms(contract, undo.spent))
    return _after_end(step, _granted(undo, at_ms + wait_ms), offset, at_ms)


def _with_acceptance(undo: Undo, fact: UndoEvent, contract: Contract | None, at_ms: int) -> Undo:
    """The remote took the attempt, to do it later: the first time it says so, it has from then on. If it took one
    before, and the time of that is over, it came to nothing: an attempt is spent, and the new one has its own time. So
    has each that a remote of no key takes: it is another to it, whatever became of the one before."""
    taken = fact.error is not None and fact.error.type == ACCEPTED
    if not taken or contract is None or contract.undo is None:
        return undo
    is_another = contract.undo.idempotency is Idempotency.NEITHER and fact.attempt > undo.accepted_attempt
    if at_ms < undo.accepted_until_ms and not is_another:
        return undo
    spent, until_ms = undo.spent + (1 if undo.accepted_until_ms else 0), at_ms + contract.undo.accepted_ms
    return replace(undo, accepted_attempt=fact.attempt, accepted_until_ms=until_ms, spent=spent)


def _polled_at_ms(undo: Undo, contract: Contract, at_ms: int) -> int:
    """When to look again at what the remote took; not before it may take no longer, if nobody can look."""
    terms = contract.undo
    assert terms is not None, "what was taken has terms"
    if not can_be_tried_again(terms, contract, undo.first_opened_at_ms or at_ms, at_ms):
        return undo.accepted_until_ms
    return at_ms + max(terms.settle_ms, _backoff_ms(contract, undo.attempt - undo.accepted_attempt + 1))


def _taken_later(step: Step, undo: Undo, fact: UndoEvent, contract: Contract | None, at_ms: int) -> Step:
    """The remote took an attempt, to do it later, and that was heard when its lease had run out: what was granted
    meanwhile looks whether it was done, and does not ask for it a second time. Where nothing is in doubt the remote has
    said since that it will not do it."""
    is_news = fact.generation == undo.generation and undo.accepted_attempt < fact.attempt < undo.attempt
    if not (is_news and undo.doubt) or undo.state not in (UndoState.DUE, UndoState.OPEN):
        return step
    return replace(step, undo=_with_acceptance(undo, fact, contract, at_ms))


def _given_up_later(
    step: Step, undo: Undo, fact: UndoEvent, contract: Contract | None, offset: int, at_ms: int
) -> Step:
    """The remote says that it will not do what it took: what was granted meanwhile may run, if it has not begun."""
    named = (fact.generation, fact.attempt) == (undo.generation, undo.accepted_attempt)
    if not named or fact.status is not UndoStatus.FAILED or undo.state is not UndoState.DUE:
        return step
    terms = contract.undo if contract is not None else None
    sent_once = terms is not None and terms.idempotency is Idempotency.NEITHER
    ended = replace(
        undo,
        attempt=undo.attempt - 1,
        doubt=undo.doubt and not sent_once,
        accepted_attempt=NOWHERE,
        accepted_until_ms=0,
    )
    return _failed(step, ended, fact, contract, offset, at_ms)


def _dead(step: Step, undo: Undo, reason: str, offset: int, at_ms: int, kind: str = UNDO_FAILED) -> Step:
    if undo.pending:
        return _ruled(step, undo, offset, at_ms)
    dead = replace(undo, state=UndoState.DEAD, version=undo.version + 1, owner="")
    return with_trouble(replace(step, undo=dead), kind, reason, offset, at_ms)


def _after_end(step: Step, undo: Undo, offset: int, at_ms: int) -> Step:
    """An attempt ended without closing: a ruling that waited for it applies now."""
    return _ruled(step, undo, offset, at_ms) if undo.pending else replace(step, undo=undo)


def _ruled(step: Step, undo: Undo, offset: int, at_ms: int) -> Step:
    state = UndoState.UNDONE if undo.pending == Decision.MARK_UNDONE.value else UndoState.LOSS
    by = undo.pending_by
    closed = replace(
        undo, state=state, covered_before=offset, version=undo.version + 1, evidence=f"ruled by {by}", pending=""
    )
    return _without_troubles(replace(step, undo=closed), at_ms, by)


def granted_anew(step: Step, undo: Undo, by: str, contract: Contract | None, at_ms: int, *, fresh: bool) -> Step:
    """Return the step with an undo that a person brings back, with a new budget.

    Args:
        fresh: in the next generation, thus under a key of its own: nothing of the old one may have taken.
    """
    forgotten_ms = forgotten_at_ms(undo, contract)
    first_use = fresh or (forgotten_ms is not None and at_ms >= forgotten_ms)  # a person takes it on himself
    granted = replace(
        undo,
        state=UndoState.DUE,
        generation=undo.generation + 1 if fresh else undo.generation,
        attempt=0 if fresh else undo.attempt + 1,
        started=() if fresh else undo.started,
        first_opened_at_ms=0 if first_use else undo.first_opened_at_ms,
        spent=0,
        version=undo.version + 1,
        not_before_ms=at_ms,
        owner="",
        late=undo.late or is_closed(step, contract, at_ms),
        accepted_attempt=NOWHERE,
        accepted_until_ms=0,
    )
    return _without_troubles(replace(step, undo=granted), at_ms, by)


def _granted(undo: Undo, not_before_ms: int) -> Undo:
    return replace(undo, state=UndoState.DUE, attempt=undo.attempt + 1, not_before_ms=not_before_ms, owner="")


def _without_troubles(step: Step, at_ms: int, by: str) -> Step:
    for trouble in step.troubles:
        if trouble.kind != "contradiction":
            step = without_trouble(step, trouble.kind, at_ms, by)
    return step


def _attempts_max(contract: Contract | None) -> int:
    return contract.undo.attempts_max if contract is not None and contract.undo is not None else 1


def _backoff_ms(contract: Contract | None, spent: int) -> int:
    """Exponential, from the contract: backoff, twice that, …, at most the cap."""
    if contract is None or contract.undo is None:
        return 0
    return int(min(contract.undo.backoff_cap_ms, contract.undo.backoff_ms * 2 ** min(spent - 1, 30)))


def _words(fact: UndoEvent) -> str:
    said = f"{fact.error.type}: {fact.error.message}" if fact.error is not None else fact.evidence or fact.status.value
    return in_words(said)
