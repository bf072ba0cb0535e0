"""How a compensator carries out a command. Pure: effects out, answers in; it may be cut off between any two.

The order is: claim, STARTED, read back, clock, (verify,) handler, (verify,) outcome acknowledged, settle. Theory:

- The registry only saves work, and is believed only where that costs a wait: *busy*. What it says of ends may be stale;
  the read back decides. Whoever loses it has done nothing and writes nothing.
- Cut off before STARTED, the attempt is free and the command comes again. After it, the attempt is spent: the fold
  finds it by its lease. After the outcome, another delivery finds it at the read back.
- Nothing is tried again here. Attempts, backoff and budget are the fold's; this writes what one attempt came to.
- An owned attempt always gets an end: UNDONE, NOTHING_TO_UNDO, FAILED, UNKNOWN, RELEASED (it was not used) or DEFERRED.

A run goes on while each member closes. With `at_once` all members are STARTED together and read back once; those
owned and not reached are RELEASED. There a member whose undo is the same whenever it is repeated does not keep the next
one waiting for the acknowledgement of its outcome; all of them are acknowledged before the command ends.
"""

from __future__ import annotations

from amends.compensators.attempt import Member, outcome_of
from amends.compensators.effects import (
    Claim,
    LedgerFact,
    ReadBack,
    ReadClock,
    Report,
    Send,
    Settle,
    Steps,
    Unreadable,
    Unwritten,
    Write,
    Written,
    sent_surely,
    write_surely,
)
from amends.compensators.ladder import decide_probe, decide_resend
from amends.compensators.ownership import CLOSING, Lost, Owned, Released, Standing, standing_of_undo
from amends.compensators.registry import NO_FENCE, Busy, ClaimAnswer, ClaimRequest, Closing, Done, Ended, Go, State
from amends.schemas.commands import Command, ProbeCommand, ResendCommand, UndoCommand, UndoEntry
from amends.schemas.facts import UndoEvent, UndoStatus

_SETTLED_AS = {
    UndoStatus.UNDONE: State.DONE,
    UndoStatus.NOTHING_TO_UNDO: State.DONE,
    UndoStatus.UNKNOWN: State.IN_DOUBT,
    UndoStatus.FAILED: State.FAILED,
    UndoStatus.RELEASED: State.FAILED,
    UndoStatus.DEFERRED: State.FAILED,
}

_EVIDENCE_CHARACTERS = 500


def decide(command: Command, owner: str, by: str) -> Steps[Report]:
    """Return the decision on `command`.

    Args:
        owner: this delivery, unique for ever. It is also the attempt of a re-send.
        by: the compensator's instance, for people.
    """
    match command:
        case UndoCommand():
            return decide_undo(command, owner)
        case ProbeCommand():
            return decide_probe(command, by)
        case ResendCommand():
            return decide_resend(command, owner, by)


def decide_undo(command: UndoCommand, owner: str) -> Steps[Report]:
    """Carry out a run: member after member, or all STARTED at once; the first that does not close ends it."""
    groups = [command.entries] if command.at_once else [(entry,) for entry in command.entries]
    ends: list[tuple[str, str]] = []
    for group in groups:
        closed = yield from _group(command, group, owner, ends)
        if not closed:
            break
    return Report(tuple(ends))


def _group(
    command: UndoCommand, entries: tuple[UndoEntry, ...], owner: str, ends: list[tuple[str, str]]
) -> Steps[bool]:
    """Claim, start and read back `entries` together, then carry them out in order. True if each of them closed."""
    group = command.workflow_id
    requests = tuple(ClaimRequest(entry.key, entry.attempt, owner, entry.lease_ms, group) for entry in entries)
    answers: tuple[ClaimAnswer, ...] = yield Claim(requests)
    members: list[Member] = []
    cut = len(answers) < len(entries)
    for entry, answer in zip(entries, answers, strict=False):
        match answer:
            case Go(fence=fence):
                members.append(Member(command, entry, owner, fence))
            case Done() | Ended():
                # A registry may remember another ledger's undo, or one of before a restore. The fold granted this
                # attempt, so by the ledger it is not ended as of the command; what came since, the read back shows.
                members.append(Member(command, entry, owner, NO_FENCE))
            case Busy():
                ends.append((entry.tool_name, "busy"))
                cut = True
                break
    closed = (yield from _start(command, members, ends)) if members else True
    return closed and not cut


def _start(command: UndoCommand, members: list[Member], ends: list[tuple[str, str]]) -> Steps[bool]:
    started_at_ms: int = yield ReadClock()
    acks: tuple[Written | Unwritten, ...] = yield Write(tuple(member.event(UndoStatus.STARTED) for member in members))
    own_offsets = [ack.offset for ack in acks if isinstance(ack, Written)]
    if not own_offsets:
        # It may stand there all the same. Then the fold finds it by its lease; it is not used here.
        ends.extend((member.entry.tool_name, "not started") for member in members)
        return False
    facts: tuple[LedgerFact, ...] | Unreadable = yield ReadBack(command.as_of + 1, max(own_offsets))
    if isinstance(facts, Unreadable):
        ends.extend((member.entry.tool_name, "not read back") for member in members)
        return False
    sent: list[tuple[Member, UndoEvent]] = []
    unreached: list[tuple[Member, str]] = []
    going = True
    for member, ack in zip(members, acks, strict=True):
        standing = _standing(member, ack, facts)
        match standing:
            case Lost():
                ends.append((member.entry.tool_name, "lost"))
                going = going and standing.closed
            case Released(reason=reason):
                unreached.append((member, reason))
                going = False
            case Owned() if going:
                outcome = yield from outcome_of(member, started_at_ms)
                going = outcome.status in CLOSING
                sent.append((member, outcome))
                yield Send((outcome,))
                if not is_same_when_repeated(member.entry):
                    yield from _recorded(sent, ends)
            case Owned():
                unreached.append((member, "an undo before it in the run did not close"))
    yield from _recorded(sent, ends)
    yield from _release(unreached, ends)
    return going


def _standing(member: Member, ack: Written | Unwritten, facts: tuple[LedgerFact, ...]) -> Standing:
    if isinstance(ack, Unwritten):
        return Lost(closed=False)
    return standing_of_undo(member.command, member.entry, member.owner, ack.offset, facts)


def _release(unreached: list[tuple[Member, str]], ends: list[tuple[str, str]]) -> Steps[None]:
    if not unreached:
        return
    events = [member.event(UndoStatus.RELEASED, evidence=reason) for member, reason in unreached]
    yield from write_surely(tuple(events))
    for (member, _), event in zip(unreached, events, strict=True):
        ends.append((member.entry.tool_name, UndoStatus.RELEASED.value))
        yield _settlement(member, event)


def is_same_when_repeated(entry: UndoEntry) -> bool:
    """Whether the undo comes to the same if it is made again after others of its run were made.

    Cut off before its outcome is acknowledged it is made again, behind those. A remote that takes the key answers as
    before, and one that commutes does nothing. Whoever asks the world first may find what the others have left there.
    """
    return entry.verify is None and not entry.compares


def _recorded(sent: list[tuple[Member, UndoEvent]], ends: list[tuple[str, str]]) -> Steps[None]:
    """Have the outcomes that were sent on the ledger, and settle."""
    if not sent:
        return
    yield from sent_surely(tuple(outcome for _, outcome in sent))
    for member, outcome in sent:
        yield _settlement(member, outcome)
        ends.append((member.entry.tool_name, outcome.status.value))
    sent.clear()


def _settlement(member: Member, outcome: UndoEvent) -> Settle:
    closing = None
    if outcome.status in CLOSING:
        evidence = outcome.evidence[:_EVIDENCE_CHARACTERS]
        closing = Closing(outcome.attempt, outcome.status, outcome.owner, outcome.verified, evidence)
    entry, state = member.entry, _SETTLED_AS[outcome.status]
    return Settle(entry.key, entry.attempt, member.fence, state, closing, member.command.workflow_id)
