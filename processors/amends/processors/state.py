"""The state of a workflow, as the fold keeps it: a header, and a record per step.

Rules
- A record is never changed, only replaced; a fact replaces the header and at most one step.
- Nothing derived is stored beside what it derives from: `standing` of a step is computed from its attempts, what is
  owed from standing and undo.
- Records that a fact replaces have no slots, so that replacing is a copied dict (measured: half of the fold's time).
- Offsets are places on the workflow's ledger partition. Times are the broker's append times in ms. Payloads stay on
  the ledger; the state keeps where they stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from amends.schemas.approvals import Approval
from amends.schemas.commands import Phase
from amends.schemas.contract import COMPARE, CallTerms, Contract, Effect, Idempotency, UndoTerms

NOWHERE = -1
"""An offset that is not known."""


if TYPE_CHECKING:
    from dataclasses import replace as replace
else:
    _R = TypeVar("_R")
    _new, _set = object.__new__, object.__setattr__

    def replace(record: _R, **changes: Any) -> _R:
        """`dataclasses.replace` for records without slots: a copied dict, ten times as fast (the fold's hot spot).

        Type checkers see the real one, and check names and types of `changes`.
        """
        made = _new(record.__class__)
        _set(made, "__dict__", record.__dict__ | changes)
        return made


class AttemptState(StrEnum):
    OPEN = "open"
    UNKNOWN = "unknown"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # known to have had no effect
    NOT_EXECUTED = "not_executed"


class Standing(StrEnum):
    """What is known of a step: the join of its attempts and the evidence."""

    PRESENT = "present"
    OPEN = "open"
    UNKNOWN = "unknown"
    ABSENT = "absent"


class UndoState(StrEnum):
    DUE = "due"  # attempt n is granted
    OPEN = "open"  # attempt n is STARTED
    DEAD = "dead"  # given up on: a person decides
    UNDONE = "undone"
    NOTHING = "nothing"  # there was nothing to undo
    LOSS = "loss"  # accepted by a person


# What is asked for with every fact, as globals: on CPython 3.11 a member looked up through its enum costs ten times as
# much, and the fold asked for a hundred of them a fact.
ATTEMPT_OPEN: Final = AttemptState.OPEN
ATTEMPT_UNKNOWN: Final = AttemptState.UNKNOWN
ATTEMPT_SUCCEEDED: Final = AttemptState.SUCCEEDED
PRESENT: Final = Standing.PRESENT
OPEN: Final = Standing.OPEN
UNKNOWN: Final = Standing.UNKNOWN
ABSENT: Final = Standing.ABSENT
UNDO_DUE: Final = UndoState.DUE
UNDO_OPEN: Final = UndoState.OPEN
UNDO_DEAD: Final = UndoState.DEAD
RUNNING: Final = Phase.RUNNING
NO_EFFECT: Final = Effect.NONE

CLOSED_UNDO = frozenset({UndoState.UNDONE, UndoState.NOTHING, UndoState.LOSS})
TURNED_PHASES = frozenset({Phase.TURNED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS})
CLOSED_PHASES = frozenset({Phase.SUCCEEDED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS})


@dataclass(frozen=True)
class Attempt:
    """One send of a step."""

    name: str
    state: AttemptState
    epoch: int
    started_offset: int = NOWHERE  # NOWHERE: its outcome came first
    armed_offset: int = NOWHERE  # the fact that armed its lease
    armed_at_ms: int = 0
    lease_ms: int = 0
    ended_offset: int = NOWHERE  # where it first ended, UNKNOWN included
    ended_at_ms: int = 0
    absent: bool = False  # evidence says that it did not happen
    accepted: bool = False  # UNKNOWN because the remote took the request and does it later
    repeats: bool = (
        False  # first heard of when the call was known to have happened, at a remote that takes both for one
    )


@dataclass(frozen=True)
class Undo:
    """The undo of one step. Attempts count from 0 within a generation."""

    state: UndoState = UndoState.DUE
    generation: int = 0
    floor: int = 0  # the generation in which the last new effect came to light: no older UNDONE closes
    attempt: int = 0
    spent: int = 0  # attempts that count against the budget
    doubt: bool = False  # an attempt of this generation ended UNKNOWN: it may have taken
    not_before_ms: int = 0
    started: tuple[tuple[int, int], ...] = ()  # (attempt, offset of its first STARTED), this generation
    owner: str = ""
    opened_at_ms: int = 0
    first_opened_at_ms: int = 0  # when this generation's key was first used
    first_started_offset: int = NOWHERE  # of the first STARTED since the last new effect
    lease_ms: int = 0
    covered_before: int = NOWHERE  # step attempts that ended before this offset are covered by the (last) close
    version: int = 0  # counts deaths and rulings; a Resolution names it
    pending: str = ""  # mark_undone or accept_loss, waiting for the end of the open attempt
    pending_by: str = ""
    last_error: str = ""
    evidence: str = ""
    late: bool = False  # a person had it tried again though its window had closed
    accepted_attempt: int = NOWHERE  # the one that the remote took, to do it later
    accepted_until_ms: int = 0  # how long it may take; until then "still there" means "not yet"
    edited_by: str = ""  # who gave the arguments it runs with, in place of those of its call
    edited_offset: int = NOWHERE  # where that ruling stands
    edited_arguments: str = ""  # what he gave: JSON


@dataclass(frozen=True)
class Trouble:
    """An incident as the state keeps it."""

    kind: str
    version: int
    reason: str
    opened_offset: int
    opened_at_ms: int
    closed_at_ms: int | None = None
    closed_by: str = ""


class DataFlow(NamedTuple):
    """What a step names, as digests (`schemas.data_flow`): the order of undoing comes from it."""

    uses: tuple[str, ...]  # in its input
    touches: tuple[str, ...]  # keys its tool declares; none: it declares none
    makes: tuple[str, ...] | None = None  # in its output; None: not seen yet
    after: tuple[str, ...] = ()  # ids of the steps it was built on, as told


class Child(NamedTuple):
    """A workflow that a workflow began, as its parent keeps it (`children`)."""

    workflow_id: str
    closed_as: str = ""  # as it last answered
    as_of: int = NOWHERE  # the place of its own partition as of which that is true


@dataclass(frozen=True)
class Step:
    """One tool call: at most one effect. Or a child."""

    number: int  # place in the workflow, in the order of first sight
    step_id: str
    tool_name: str
    epoch: int
    first_offset: int  # of its STARTED (of its first fact, until that is seen): the order of undoing
    first_at_ms: int = 0
    tool_version: str = ""
    call_id: str = ""
    contract: str = ""  # digest
    effect: Effect = Effect.UNCLASSIFIED
    attempts: tuple[Attempt, ...] = ()
    present: bool = False  # evidence says that it happened
    outcome_offset: int = NOWHERE  # where its output stands
    undo_arguments: bytes | None = None
    probes: int = 0  # answered
    probed_at_ms: int = 0
    resends: int = 0  # attempts made by a compensator
    undo: Undo | None = None
    troubles: tuple[Trouble, ...] = ()
    flow: DataFlow | None = None  # None: nobody looked
    call_digest: str = ""  # of tool and canonical arguments; "" where its STARTED did not say
    approval: Approval | None = None  # None: nobody was asked
    child: Child | None = None  # this is no call, but a child: its undo is a request, its only attempt CHILD_STARTED


class Savepoint(NamedTuple):
    """A place that a workflow may be undone to."""

    name: str
    offset: int  # where its fact stands
    epoch: int
    void: bool = False  # taken while a call was open, unknown or unreadable: the next older one is meant


class Turn(NamedTuple):
    """An end of an epoch. It condemns, for ever and whenever they land, the steps of that epoch and of all before it
    whose STARTED stands after `offset`."""

    epoch: int  # the last one it ended
    offset: int  # of the savepoint that is undone to; NOWHERE for the whole workflow
    at_ms: int
    reason: str
    final: bool = True  # nobody goes on after it: it condemns whatever epoch a STARTED carries


class Ask(NamedTuple):
    """A request of the parent for its child's undoing, and the answer (`asking`)."""

    announced: int  # where the CHILD_STARTED stands that it is about, on the parent's partition
    offset: int = NOWHERE  # where it was last repeated
    answer: str = ""  # "" for none yet
    as_of: int = NOWHERE  # the fact that made the answer what it is


class Family(NamedTuple):
    """Whose child a workflow is."""

    parent_id: str
    parent_offset: int
    announced: tuple[int, ...] = ()  # where CHILD_STARTED stands, for each time the parent began or resumed it
    asks: tuple[Ask, ...] = ()
    unborn: bool = False  # no STARTED of it was found; the header stands where it was asked for


@dataclass(frozen=True)
class Header:
    """What is known of a workflow as a whole."""

    workflow_id: str
    started_offset: int = NOWHERE
    started_at_ms: int = 0
    phase: Phase = Phase.NONE
    epoch: int = 0
    agent_id: str = ""
    instance: str = ""
    lease_ms: int = 0
    deadline_ms: int | None = None
    armed_offset: int = NOWHERE  # the fact that armed the heartbeat
    armed_at_ms: int = 0
    asked_offset: int = NOWHERE  # the workflow STARTED that the echo answers
    folded_to: int = NOWHERE
    steps: int = 0
    turned_at_ms: int = 0
    turned_reason: str = ""
    closed_at_ms: int = 0
    observe: bool = False  # records and plans, never undoes
    unread: tuple[int, ...] = ()  # offsets of records of this key that nobody could read
    traceparent: str | None = None
    troubles: tuple[Trouble, ...] = ()
    turns: tuple[Turn, ...] = ()  # in the order of epochs
    savepoints: tuple[Savepoint, ...] = ()  # oldest first
    policy: str = ""  # as its STARTED gave it, JSON; "" is the default one
    failed_calls: tuple[tuple[str, int], ...] = ()  # in this epoch, by tool where one is bounded; "" is all
    finishing_since_ms: int = 0  # when it first failed past its pivot; 0: it has not
    finish_attempts: int = 0  # failures past the pivot
    is_vacant: bool = False  # it waits for an agent that resumes and finishes it
    unread_beyond: int = 0  # more records that nobody could read, behind the last of `unread`
    superseded: bool = False  # a newer instance of the id began
    carried_at_ms: int = 0  # when a Carry was last written; its state stands as of `carried_to`
    carried_to: int = NOWHERE
    fenced_offset: int = NOWHERE  # of the last fact whose agent waits until the echo speaks as of there
    family: Family | None = None  # None: it stands alone
    scope: str = ""  # the mark of the scope whose STARTED began it


# --- what follows from a record --------------------------------------------------------------------------------------


def standing(step: Step) -> Standing:
    """The join: any attempt SUCCEEDED or evidence `present`: PRESENT; else any open: OPEN; else any unknown that no
    `absent` names: UNKNOWN; else ABSENT."""
    if step.present:
        return PRESENT
    found: Standing = ABSENT
    for attempt in step.attempts:
        state = attempt.state
        if state is ATTEMPT_SUCCEEDED:
            return PRESENT
        if state is ATTEMPT_OPEN:
            found = OPEN
        elif state is ATTEMPT_UNKNOWN and not attempt.absent and found is ABSENT:
            found = UNKNOWN
    return found


def arguments_of(step: Step) -> bytes | None:
    """Return what the undo of a step is to run with: what a person gave the one that is owed, else what the call says;
    None if it is not known."""
    undo = step.undo
    if undo is not None and undo.edited_arguments and undo.state not in CLOSED_UNDO:
        return undo.edited_arguments.encode()
    return step.undo_arguments


def is_covered(attempt: Attempt, undo: Undo) -> bool:
    """Whether a closed undo speaks for this attempt: it had ended before the undo started."""
    return attempt.ended_offset != NOWHERE and attempt.ended_offset < undo.covered_before


def owed(step: Step, contract: Contract | None) -> Standing:
    """What is still to be undone of a condemned step: its standing, over the attempts that no closed undo covers.

    ABSENT: nothing. A step that was UNDONE at a remote that takes the call's key has had its one effect; whatever
    lands later under the key is the old answer.
    """
    if step.effect is NO_EFFECT:
        return ABSENT
    undo = step.undo
    if undo is None or (undo.state not in CLOSED_UNDO and undo.covered_before == NOWHERE):
        return standing(step)
    if undo.state not in CLOSED_UNDO:
        if step.present:
            return PRESENT
    elif undo.state is UndoState.UNDONE and contract is not None and _took_the_key(step, undo, contract):
        return ABSENT
    found: Standing = ABSENT
    for attempt in step.attempts:
        if is_covered(attempt, undo):
            continue
        if attempt.state is ATTEMPT_OPEN:
            return OPEN
        if attempt.state is ATTEMPT_SUCCEEDED:
            found = PRESENT
        elif attempt.state is ATTEMPT_UNKNOWN and not attempt.absent and found is ABSENT:
            found = UNKNOWN
    return found


def _took_the_key(step: Step, undo: Undo, contract: Contract) -> bool:
    """Whether the remote has surely seen the call's key before the undo. An undo that does nothing where nothing is
    closes just as well over a call that never arrived."""
    if contract.call.idempotency is not Idempotency.KEY:
        return False
    does_nothing_twice = contract.undo is not None and contract.undo.idempotency is Idempotency.NATURAL
    if step.present or not (does_nothing_twice or contract.restores == COMPARE):
        return True
    return any(a.state is AttemptState.SUCCEEDED and is_covered(a, undo) for a in step.attempts)


def is_condemned(step: Step, turns: tuple[Turn, ...]) -> bool:
    """Whether a turn says that this step is to be undone. Once true it stays true: neither turns nor attempts go away.

    An attempt of which only the end was read stands where that end does; if that end says that the call was not made,
    nowhere. One that repeats a call known to have happened has no effect of its own: a zombie that calls again what
    stands before the savepoint does not have it undone.
    """
    for turn in turns:
        if turn.offset == NOWHERE and turn.final:
            return True
        for attempt in step.attempts:
            at = attempt.started_offset
            if at == NOWHERE and attempt.state is not AttemptState.NOT_EXECUTED:
                at = attempt.ended_offset
            if at > turn.offset and not attempt.repeats and (turn.final or attempt.epoch <= turn.epoch):
                return True
    return False


# To be replaced with what is known: a constructor sets field by field, which takes some six times as long.
BLANK_HEADER: Final = Header("")
BLANK_STEP: Final = Step(0, "", "", 0, NOWHERE)
BLANK_ATTEMPT: Final = Attempt("", AttemptState.OPEN, 0)
BLANK_UNDO: Final = Undo()


def has_open_attempt(step: Step) -> bool:
    for attempt in step.attempts:  # noqa: SIM110 (a loop costs a third of any(), and this runs for each fact)
        if attempt.state is ATTEMPT_OPEN:
            return True
    return False


def settles_at_ms(step: Step, contract: Contract | None) -> int:
    """When the last ended attempt of unknown effect has settled; 0 if there is none. A remote that took the request and
    does it later has until it may take no longer, unless it is known to have done it: that very request, or any of the
    step where it takes a key, for it knows them for one. Where a repeat only does nothing while the effect is there,
    one that it still has in hand would do it again behind the undo."""
    if contract is None:
        return _settled_ms(step, DEFAULT_SETTLE_MS, DEFAULT_SETTLE_MS)
    known = contract.call.idempotency is Idempotency.KEY
    happened = known and (step.present or any(a.state is AttemptState.SUCCEEDED for a in step.attempts))
    settle_ms = contract.call.settle_ms
    return _settled_ms(step, settle_ms, settle_ms if happened else max(settle_ms, contract.call.accepted_ms))


def asked_from_ms(step: Step, contract: Contract) -> int:
    """When a probe can first tell: `settles_at_ms`, and no later for what a remote took to do it later."""
    return _settled_ms(step, contract.call.settle_ms, contract.call.settle_ms)


def _settled_ms(step: Step, settle_ms: int, accepted_ms: int) -> int:
    last_ms = 0
    for attempt in step.attempts:
        if attempt.state is ATTEMPT_UNKNOWN and not attempt.absent:
            last_ms = max(last_ms, attempt.ended_at_ms + (accepted_ms if attempt.accepted else settle_ms))
    return last_ms


WORDS_MAX = 500
DEFAULT_SETTLE_MS = 5_000
DEFAULT_STEP_LEASE_MS = 60_000
DEFAULT_WORKFLOW_LEASE_MS = 30_000


def is_key_remembered(terms: CallTerms | UndoTerms, first_at_ms: int, now_ms: int) -> bool:
    """Whether a remote that takes a key will still know one first used at `first_at_ms` when what is sent now arrives;
    after that it is a "neither"."""
    reusable_ms = terms.key_reusable_ms
    return terms.idempotency is Idempotency.KEY and (reusable_ms is None or now_ms < first_at_ms + reusable_ms)


def in_words(text: str) -> str:
    """Return `text` short enough for state, incidents and pages: what others wrote may be of any size."""
    return text if len(text) <= WORDS_MAX else text[: WORDS_MAX - 1] + "…"


def open_trouble(troubles: tuple[Trouble, ...], kind: str) -> Trouble | None:
    return next((t for t in troubles if t.kind == kind and t.closed_at_ms is None), None)
