"""One owned attempt of an undo: clock, (verify,) handler, (verify,) and what it came to. Pure.

`verify` is asked first where any attempt before this one ended unknown, and the handler then runs only on *still
there*. It is asked again after the handler, whose word alone closes nothing where the world can be asked. An undeclared
exception, silence and "not yet" are UNKNOWN; only a declared refusal is FAILED.

A remote may take an undo and do it later (202, `Accepted`): UNKNOWN too. While it may be at it the entry says `polls`:
the world is asked, and *still there* is "not yet"; the handler does not run.

An undo that compares looks at the world before anything else of it:

    the world shows                      the attempt
    what the call wrote                  runs the handler
    what was there before the call       UNDONE after a doubt, else NOTHING_TO_UNDO
    anything else                        FAILED for good: a person is asked, and nobody's newer value is lost
    (could not be read)                  FAILED, to be tried again

and once more after the handler, as `verify` does, where the tool has none. It is one look, not a lock: what somebody
writes between it and the handler is overwritten, unless the handler's own request is conditional.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from amends.compensators.effects import (
    AskVerify,
    CallAnswer,
    CallUndo,
    Compare,
    Comparison,
    Deferred,
    IsStillThere,
    IsUndone,
    NobodyKnows,
    NotBegun,
    NotDeployed,
    ReadClock,
    Refused,
    Renew,
    ShowsBefore,
    ShowsOther,
    ShowsOurs,
    Steps,
    Succeeded,
    Uncertain,
    VerifyAnswer,
    Wait,
    half_is_gone,
    is_forgotten,
)
from amends.compensators.ownership import CLOSING
from amends.schemas.commands import UndoCommand, UndoEntry
from amends.schemas.facts import Failure, UndoEvent, UndoStatus
from amends.schemas.slots import quick


@quick
@dataclass(frozen=True, slots=True)
class Member:
    """An undo of a run that may be started."""

    command: UndoCommand
    entry: UndoEntry
    owner: str
    fence: int

    def event(
        self,
        status: UndoStatus,
        *,
        evidence: str = "",
        error: Failure | None = None,
        output_payload: bytes | None = None,
        retryable: bool = True,
        key_refused: bool = False,
    ) -> UndoEvent:
        """Return a fact about the attempt."""
        return UndoEvent(
            workflow_id=self.command.workflow_id,
            step_id=self.entry.step_id,
            generation=self.entry.generation,
            attempt=self.entry.attempt,
            status=status,
            owner=self.owner,
            workflow_offset=self.command.workflow_offset,
            tool_name=self.entry.tool_name,
            retryable=retryable,
            key_refused=key_refused,
            evidence=evidence,
            lease_ms=self.entry.lease_ms if status is UndoStatus.STARTED else None,
            output_payload=output_payload,
            error=error,
            traceparent=self.command.traceparent,
        )


def outcome_of(member: Member, started_at_ms: int) -> Steps[UndoEvent]:
    """Use the attempt, STARTED just after `started_at_ms`, and return its end."""
    entry = member.entry
    now_ms: int = yield ReadClock()
    if half_is_gone(started_at_ms, now_ms, entry.lease_ms):
        return _late(member)
    if entry.verify is not None and (entry.verify_first or entry.polls):
        within_ms = started_at_ms + entry.lease_ms - now_ms
        answer: VerifyAnswer = yield AskVerify(member.command, entry, within_ms)
        if not isinstance(answer, IsStillThere):
            return _verified(member.event(UndoStatus.UNDONE), answer)
        if entry.polls:
            return _not_yet(member, answer.evidence)
        now_ms = yield ReadClock()
        if half_is_gone(started_at_ms, now_ms, entry.lease_ms):
            return _late(member)
    if entry.compares:
        shows: Comparison = yield Compare(member.command, entry, started_at_ms + entry.lease_ms - now_ms)
        if not isinstance(shows, ShowsOurs):
            return _not_over_others(member, shows)
        if entry.polls:
            return _not_yet(member, "the world still shows what the call wrote")
        now_ms = yield ReadClock()
        if half_is_gone(started_at_ms, now_ms, entry.lease_ms):
            return _late(member)
    if (yield from is_forgotten(entry.not_after_ms)):
        return member.event(UndoStatus.RELEASED, evidence="the remote has forgotten the key of an earlier attempt")
    gone_ms = now_ms - started_at_ms
    begin_within_ms = (entry.lease_ms + 1) // 2 - gone_ms
    result: CallAnswer = yield CallUndo(member.command, entry, begin_within_ms, entry.lease_ms - gone_ms, member.owner)
    outcome = _as_event(member, result)
    if outcome.status in CLOSING and (entry.verify is not None or entry.compares):
        return (yield from _verify_after(member, outcome))
    return outcome


def _not_over_others(member: Member, shows: ShowsBefore | ShowsOther | NobodyKnows) -> UndoEvent:
    match shows:
        case ShowsBefore():
            status = UndoStatus.UNDONE if member.entry.verify_first else UndoStatus.NOTHING_TO_UNDO
            return replace(member.event(status, evidence=shows.evidence), verified=True)
        case ShowsOther():
            return member.event(UndoStatus.FAILED, error=shows.error, retryable=False)
        case NobodyKnows():
            error = shows.error or Failure("amends.NotRead", "what is there now could not be read")
            return member.event(UndoStatus.FAILED, error=error, retryable=True)


def _not_yet(member: Member, evidence: str) -> UndoEvent:
    said = "the remote took it before and is not done yet" + (f": {evidence}" if evidence else "")
    return member.event(UndoStatus.UNKNOWN, evidence=said, error=Failure("amends.NotYet", said))


def _late(member: Member) -> UndoEvent:
    return member.event(UndoStatus.RELEASED, evidence="half the lease had gone before the handler was called")


def _as_event(member: Member, result: CallAnswer) -> UndoEvent:
    match result:
        case Succeeded():
            status = UndoStatus.NOTHING_TO_UNDO if result.nothing else UndoStatus.UNDONE
            return member.event(status, evidence=result.evidence, output_payload=result.output_payload)
        case Refused():
            return member.event(
                UndoStatus.FAILED, error=result.error, retryable=result.retryable, key_refused=result.key_refused
            )
        case NotDeployed():  # nothing ran; a deployment under way may bring it, else the budget makes it an incident
            return member.event(UndoStatus.FAILED, error=result.error, retryable=True)
        case Uncertain():
            return member.event(UndoStatus.UNKNOWN, error=result.error)
        case NotBegun():
            return member.event(UndoStatus.RELEASED, evidence=result.reason)
        case Deferred():
            return member.event(UndoStatus.DEFERRED, evidence=result.reason)


def _verify_after(member: Member, outcome: UndoEvent) -> Steps[UndoEvent]:
    """The handler says it is done; the world is asked. It gets `settle_ms` to show it, and no more."""
    entry = member.entry
    answer = yield from _took(member)
    if isinstance(answer, IsStillThere):
        lease_ms = entry.settle_ms + entry.lease_ms
        yield Renew(entry.key, entry.attempt, member.fence, lease_ms, member.command.workflow_id)
        yield Wait(entry.settle_ms)
        answer = yield from _took(member)
    return _verified(outcome, answer)


def _took(member: Member) -> Steps[VerifyAnswer]:
    """Ask whether the undo took: the tool's `verify`, else what its capture reads."""
    entry = member.entry
    if entry.verify is not None:
        answer: VerifyAnswer = yield AskVerify(member.command, entry, entry.lease_ms)
        return answer
    shows: Comparison = yield Compare(member.command, entry, entry.lease_ms)
    match shows:
        case ShowsBefore():
            return IsUndone(shows.evidence)
        case ShowsOurs():
            return IsStillThere("the world still shows what the call wrote")
        case ShowsOther():
            return NobodyKnows(shows.error)
        case NobodyKnows():
            return shows


def _verified(claimed: UndoEvent, answer: VerifyAnswer) -> UndoEvent:
    """What `verify` makes of a claimed end. "Still there" is never FAILED: the same key would answer "done" again."""
    if isinstance(answer, IsUndone):
        return replace(claimed, verified=True, evidence=answer.evidence or claimed.evidence)
    said = "still there" if isinstance(answer, IsStillThere) else "unknown"
    error = None if isinstance(answer, IsStillThere) else answer.error
    evidence = f"verify says {said}" + (f": {answer.evidence}" if answer.evidence else "")
    return replace(claimed, status=UndoStatus.UNKNOWN, evidence=evidence, error=error)
