"""What a decision asks its driver to do, and what the driver answers.

A driver is a loop: take the effect, do it, send the answer back in. It decides nothing, so the async worker and the
simulation, which crashes a decision between any two effects, run the same code. Each effect says what answers it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from amends.compensators.registry import ClaimRequest, Closing, State
from amends.schemas.commands import ProbeCommand, ResendCommand, UndoCommand, UndoEntry
from amends.schemas.facts import Decision, Fact, Failure
from amends.schemas.slots import quick

# --- answers --------------------------------------------------------------------------------------------------------


@quick
@dataclass(frozen=True, slots=True)
class Written:
    """The fact stands at `offset` of the workflow's ledger partition."""

    offset: int


@quick
@dataclass(frozen=True, slots=True)
class Unwritten:
    """No acknowledgement. Unless it is `certain`, the fact may stand on the ledger all the same."""

    certain: bool


@quick
@dataclass(frozen=True, slots=True)
class LedgerFact:
    """A record of the ledger as the read back sees it. `fact` is None where nobody can read it."""

    offset: int
    fact: Fact | None


@quick
@dataclass(frozen=True, slots=True)
class Unreadable:
    """The range could not be read back: the ledger is out of reach or no longer holds it."""

    reason: str


@quick
@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler says that it is done. `nothing` if it found nothing to undo; `already` done counts as done."""

    nothing: bool = False
    evidence: str = ""
    output_payload: bytes | None = None
    undo_arguments: bytes | None = None  # of a re-sent call
    external_resource_ids: Mapping[str, str] = field(default_factory=dict[str, str])


@quick
@dataclass(frozen=True, slots=True)
class Refused:
    """A declared refusal: the remote did nothing."""

    error: Failure
    retryable: bool = False
    key_refused: bool = False


@quick
@dataclass(frozen=True, slots=True)
class Uncertain:
    """It may or may not have happened: an undeclared exception, the lease's end, a dead process, "not yet"."""

    error: Failure


@quick
@dataclass(frozen=True, slots=True)
class NotBegun:
    """The handler was not called and will not be; nothing happened."""

    reason: str


@quick
@dataclass(frozen=True, slots=True)
class NotDeployed:
    """This lane's compensators have no such handler, or it cannot be called with what the ledger holds."""

    error: Failure


@quick
@dataclass(frozen=True, slots=True)
class Deferred:
    """A breaker answered in place of the handler."""

    reason: str


CallAnswer = Succeeded | Refused | Uncertain | NotBegun | NotDeployed | Deferred


@quick
@dataclass(frozen=True, slots=True)
class IsUndone:
    evidence: str = ""


@quick
@dataclass(frozen=True, slots=True)
class IsStillThere:
    evidence: str = ""


@quick
@dataclass(frozen=True, slots=True)
class NobodyKnows:
    error: Failure | None = None
    evidence: str = ""


VerifyAnswer = IsUndone | IsStillThere | NobodyKnows


@quick
@dataclass(frozen=True, slots=True)
class ShowsOurs:
    """The world shows what the call wrote."""


@quick
@dataclass(frozen=True, slots=True)
class ShowsBefore:
    """The world shows what was there before the call: there is nothing to put back."""

    evidence: str = ""


@quick
@dataclass(frozen=True, slots=True)
class ShowsOther:
    """The world shows something else, or what nobody can tell from it: putting back might lose a newer value."""

    error: Failure


Comparison = ShowsOurs | ShowsBefore | ShowsOther | NobodyKnows


@quick
@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """`decision` is PRESENT, ABSENT or UNKNOWN."""

    decision: Decision
    evidence: str = ""
    output_payload: bytes | None = None
    undo_arguments: bytes | None = None
    external_resource_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    error: Failure | None = None


# --- effects --------------------------------------------------------------------------------------------------------


@quick
@dataclass(frozen=True, slots=True)
class Claim:
    """-> tuple[ClaimAnswer, ...], as `Registry.claim` says."""

    requests: tuple[ClaimRequest, ...]


@quick
@dataclass(frozen=True, slots=True)
class Renew:
    """-> bool, which changes nothing."""

    key: str
    attempt: int
    fence: int
    lease_ms: int
    group: str = ""


@quick
@dataclass(frozen=True, slots=True)
class Settle:
    """-> bool, which changes nothing."""

    key: str
    attempt: int
    fence: int
    state: State
    closing: Closing | None
    group: str = ""


@quick
@dataclass(frozen=True, slots=True)
class Write:
    """-> tuple[Written | Unwritten, ...], one per fact. The driver stamps `timestamp_ms`, which is for people."""

    facts: tuple[Fact, ...]


@quick
@dataclass(frozen=True, slots=True)
class Send:
    """-> None, at once: the facts are on their way, behind all that was written and sent before. Stamped as by `Write`.
    Nobody may go by them before `AwaitSent` has answered."""

    facts: tuple[Fact, ...]


@quick
@dataclass(frozen=True, slots=True)
class AwaitSent:
    """-> tuple[Written | Unwritten, ...], one for each fact sent since the last time, in that order."""


@quick
@dataclass(frozen=True, slots=True)
class ReadBack:
    """-> tuple[LedgerFact, ...] | Unreadable: what stands of the workflow's key in [from_offset, to_offset]."""

    from_offset: int
    to_offset: int


@quick
@dataclass(frozen=True, slots=True)
class ReadClock:
    """-> int: milliseconds of a clock that never goes back and does not stop while the machine sleeps."""


@quick
@dataclass(frozen=True, slots=True)
class ReadWallClock:
    """-> int: milliseconds since 1970, as this machine has it. Only for what a remote forgets at a date."""


@quick
@dataclass(frozen=True, slots=True)
class CallUndo:
    """-> CallAnswer. Begun within `begin_within_ms` or not at all (NotBegun); cut at `end_within_ms` (Uncertain)."""

    command: UndoCommand
    entry: UndoEntry
    begin_within_ms: int
    end_within_ms: int
    owner: str = ""


@quick
@dataclass(frozen=True, slots=True)
class AskVerify:
    """-> VerifyAnswer. Whatever goes wrong is NobodyKnows."""

    command: UndoCommand
    entry: UndoEntry
    end_within_ms: int


@quick
@dataclass(frozen=True, slots=True)
class Compare:
    """-> Comparison: what the tool's capture reads now, beside what it read before and after the call. Whatever goes
    wrong is NobodyKnows."""

    command: UndoCommand
    entry: UndoEntry
    end_within_ms: int


@quick
@dataclass(frozen=True, slots=True)
class AskProbe:
    """-> ProbeAnswer. Whatever goes wrong is UNKNOWN."""

    command: ProbeCommand


@quick
@dataclass(frozen=True, slots=True)
class CallForward:
    """-> CallAnswer: the step's call with its forward key, under the same terms as `CallUndo`."""

    command: ResendCommand
    begin_within_ms: int
    end_within_ms: int
    attempt: str = ""


@quick
@dataclass(frozen=True, slots=True)
class Wait:
    """-> None, `duration_ms` later."""

    duration_ms: int


Effect = (
    Claim
    | Renew
    | Settle
    | Write
    | Send
    | AwaitSent
    | ReadBack
    | ReadClock
    | ReadWallClock
    | CallUndo
    | AskVerify
    | Compare
    | AskProbe
    | CallForward
    | Wait
)


@quick
@dataclass(frozen=True, slots=True)
class Report:
    """How a command ended here, for metrics: (tool name, end) of each member reached. The command may be committed."""

    ends: tuple[tuple[str, str], ...] = ()


T = TypeVar("T")
Steps = Generator[Effect, Any, T]
"""A decision, or a part of one. Its return means: all that had to be written is written."""

WRITE_AGAIN_MS = 500


def write_surely(facts: tuple[Fact, ...]) -> Steps[None]:
    """Write facts until each is acknowledged.

    Only for outcomes: they name their attempt, so that a duplicate changes nothing, and losing one would turn a known
    end into an unknown one.
    """
    waiting = facts
    while waiting:
        answers: tuple[Written | Unwritten, ...] = yield Write(waiting)
        waiting = _unwritten(waiting, answers)
        if waiting:
            yield Wait(WRITE_AGAIN_MS)


def sent_surely(facts: tuple[Fact, ...]) -> Steps[None]:
    """Wait until each of `facts`, which are all that was sent, is acknowledged; write again what is not."""
    answers: tuple[Written | Unwritten, ...] = yield AwaitSent()
    waiting = _unwritten(facts, answers)
    if waiting:
        yield Wait(WRITE_AGAIN_MS)
        yield from write_surely(waiting)


def _unwritten(facts: tuple[Fact, ...], answers: tuple[Written | Unwritten, ...]) -> tuple[Fact, ...]:
    return tuple(fact for fact, answer in zip(facts, answers, strict=True) if isinstance(answer, Unwritten))


def is_forgotten(not_after_ms: int | None) -> Steps[bool]:
    """Whether the remote has forgotten the key by now, so that what may have taken must not be sent again."""
    if not_after_ms is None:
        return False
    now_ms: int = yield ReadWallClock()
    return now_ms >= not_after_ms


def half_is_gone(since_ms: int, now_ms: int, lease_ms: int) -> bool:
    """Half a lease is what A1 allows between a look at the clock and a send; the other half is for the send."""
    return 2 * (now_ms - since_ms) >= lease_ms
