"""Diagnosis: what ends a workflow's going forward, and why.

A trigger names the epoch it wants to end and does nothing in another; a person's or parent's that asks for the whole
means every epoch, for it stands when it is repeated. A failed tool call is not a failed workflow.
A failure or request may name a savepoint: then the turn is to there (`turning`).

| signal                                   | RUNNING   | FINISHING | SUCCEEDED | TURNED and closed |
|------------------------------------------|-----------|-----------|-----------|-------------------|
| claim: SUCCEEDED                         | FINISHING |           |           |                   |
| failure: FAILED, Timeout, agent's request| turn      | turn      | incident  |                   |
| request: of a person or parent           | turn      | turn      | turn      | turn, if wider    |

A heartbeat is armed only while RUNNING: who claimed success has said its last word, and the claim is judged by what
the steps show, not by silence.
"""

from __future__ import annotations

from enum import StrEnum

from amends.processors.policies import finish_due_ms
from amends.processors.state import TURNED_PHASES, Header, in_words
from amends.processors.timers import Silences
from amends.schemas.commands import Phase
from amends.schemas.facts import Party, Timeout, TimeoutKind, WorkflowEvent, WorkflowStatus


class Signal(StrEnum):
    CLAIM = "claim"
    FAILURE = "failure"
    REQUEST = "request"


class Action(StrEnum):
    NOTHING = "nothing"
    FINISH = "finish"
    TURN = "turn"
    INCIDENT = "incident"


TABLE: dict[tuple[Phase, Signal], Action] = {
    (Phase.RUNNING, Signal.CLAIM): Action.FINISH,
    (Phase.RUNNING, Signal.FAILURE): Action.TURN,
    (Phase.RUNNING, Signal.REQUEST): Action.TURN,
    (Phase.FINISHING, Signal.FAILURE): Action.TURN,
    (Phase.FINISHING, Signal.REQUEST): Action.TURN,
    (Phase.SUCCEEDED, Signal.FAILURE): Action.INCIDENT,
    (Phase.SUCCEEDED, Signal.REQUEST): Action.TURN,
    **{(phase, Signal.REQUEST): Action.TURN for phase in TURNED_PHASES},
}


def action_for(phase: Phase, signal: Signal) -> Action:
    return TABLE.get((phase, signal), Action.NOTHING)


def signal_of(header: Header, fact: WorkflowEvent) -> tuple[Signal, str] | None:
    """Return what `fact` says to the workflow as a whole, with the reason in words; None if nothing."""
    asked = fact.writer in (Party.PERSON, Party.PARENT)
    if fact.status is WorkflowStatus.ROLLBACK_REQUESTED and asked:
        if fact.savepoint is not None and fact.epoch != header.epoch:
            return None  # a repeat would undo what was done since
        who = fact.by or fact.writer.value
        return Signal.REQUEST, in_words(f"undoing was asked for by {who}" + (f": {fact.reason}" if fact.reason else ""))
    if fact.epoch != header.epoch or _is_not_the_owner(header, fact):
        return None
    match fact.status:
        case WorkflowStatus.SUCCEEDED:
            return Signal.CLAIM, "the agent says that it has finished"
        case WorkflowStatus.FAILED:
            error = f": {fact.error.type}: {fact.error.message}" if fact.error is not None else ""
            return Signal.FAILURE, in_words(f"the agent failed{error}" + (f" ({fact.reason})" if fact.reason else ""))
        case WorkflowStatus.ROLLBACK_REQUESTED:
            return Signal.FAILURE, in_words("the agent asked for undoing" + (f": {fact.reason}" if fact.reason else ""))
        case _:
            return None


def _is_not_the_owner(header: Header, fact: WorkflowEvent) -> bool:
    """Of two agents in one workflow only the one that began or last resumed it claims its success or its failure; the
    other may ask for undoing. A claim that names no instance is the owner's."""
    claims = fact.status in (WorkflowStatus.SUCCEEDED, WorkflowStatus.FAILED)
    return claims and bool(fact.instance and header.instance) and in_words(fact.instance) != header.instance


def ran_out(header: Header, fact: Timeout, silences: Silences, at_ms: int) -> str | None:
    """Return why an accepted Timeout ends the workflow, in words; None if it is early, stale or of another epoch."""
    if fact.epoch != header.epoch:
        return None
    if fact.kind is TimeoutKind.HEARTBEAT:
        if header.phase is not Phase.RUNNING or fact.armed_offset != header.armed_offset:
            return None
        if header.is_vacant:
            so_long = f"{(at_ms - header.finishing_since_ms) / 1000:g} s"
            return f"nobody has finished it for {so_long} past its pivot" if at_ms >= finish_due_ms(header) else None
        due_ms = silences.heartbeat_due_ms(header.armed_at_ms, header.lease_ms, at_ms)
        silent_s = (at_ms - header.armed_at_ms) / 1000
        return (
            f"the agent went silent for {silent_s:.1f} s (lease {header.lease_ms / 1000:g} s)"
            if at_ms >= due_ms
            else None
        )
    if header.phase not in (Phase.RUNNING, Phase.FINISHING):
        return None  # proposed before the end and appended behind it: what succeeded stays
    if header.finishing_since_ms or header.deadline_ms is None or at_ms < header.started_at_ms + header.deadline_ms:
        return None
    return f"the deadline of {header.deadline_ms / 1000:g} s passed" if fact.kind is TimeoutKind.DEADLINE else None
