"""A workflow's scope as pure generators of effects: how it is opened, how it claims success, fails, or is left open.

open    Follow -> (announced to a parent: `family`) -> WriteFact(STARTED); to resume also AwaitStanding -> ReadHistory
        -> Remember
        A scope that refuses an id in use learns of it from the echo, before its first effect, and from then on writes
        nothing: what is there belongs to somebody else.
claim   AwaitStanding -> AwaitOwed -> WriteFact(SUCCEEDED) -> AwaitEnd
        The agent is told what the fold decided, or "not confirmed": never what it thinks of itself.
fail    AwaitStanding -> WriteFact(FAILED), and in the background if that fails: the error passes on either way.
leave   WriteFact(HEARTBEAT) with the lease that the workflow is left with.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from amends.producers import refusals
from amends.producers.effects import (
    Acknowledged,
    AwaitEnd,
    AwaitOwed,
    AwaitPlan,
    AwaitStanding,
    Effect,
    Follow,
    Instant,
    LookAtEcho,
    QueueFact,
    ReadClock,
    ReadHistory,
    Remember,
    Standing,
    Write,
    WriteFact,
)
from amends.producers.family import Announced, Reference, announce_flow
from amends.producers.flow import ScopeTerms
from amends.producers.intent import workflow_event
from amends.producers.outcome import failure
from amends.schemas.commands import Phase
from amends.schemas.facts import SCOPE, UNKNOWN_OFFSET, WorkflowEvent, WorkflowStatus
from amends.schemas.family import CHILD_STARTED_OFFSET


class OnExisting(StrEnum):
    """What a scope does where its workflow is already there."""

    REFUSE = "refuse"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The fold closed the workflow as a success."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The scope was left by an exception; what the workflow did is being undone."""

    error: str


@dataclass(frozen=True, slots=True)
class Turned:
    """The workflow had turned: what it did is being undone, or has been."""

    standing: Standing


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """The success was claimed and nobody has confirmed it yet; the ledger will decide."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """Neither success nor failure was claimed: the workflow lives until its lease runs out."""

    reason: str


Outcome = Succeeded | Failed | Turned | Unconfirmed | LeftOpen


@dataclass(frozen=True, slots=True)
class Opening:
    """How a scope is opened."""

    terms: ScopeTerms
    instance: str
    on_existing: OnExisting = OnExisting.REFUSE
    observe: bool = False
    deadline_ms: int | None = None  # longest run, from the start
    attributes: tuple[tuple[str, str], ...] = ()
    policy: bytes | None = None  # an encoded policy
    mark: str = ""  # of this scope alone: a client may write its STARTED twice, and must know what is its own


OpenFlow = Generator[Effect, Any, int]
EndFlow = Generator[Effect, Any, Outcome]


def ours(opening: Opening, started_offset: int, standing: Standing) -> bool:
    """Whether the workflow the echo speaks of is one that this scope may act for."""
    began = standing.own or standing.workflow_offset == started_offset
    return began or opening.on_existing is OnExisting.RESUME


def admissible(opening: Opening, started_offset: int, standing: Standing) -> None:
    """Raise AlreadyRunning if the workflow was there before and this scope refuses that."""
    if not ours(opening, started_offset, standing):
        raise refusals.exists(opening.terms.workflow_id, standing)


def open_flow(opening: Opening, parent: Reference | None = None) -> OpenFlow:
    """Open the scope, as a child of `parent`. Returns the ledger offset of its STARTED.

    Raises: LedgerUnavailable, LedgerUncertain; to resume also WorkflowTurned.
    """
    terms = opening.terms
    yield Follow()
    announced = None if parent is None else (yield from announce_flow(terms, parent))
    now: Instant = yield ReadClock()
    if announced is not None and now.elapsed_ms >= announced.begin_by_ms:
        raise refusals.child_too_late(terms.workflow_id, announced.parent.workflow_id, announced.parent.lease_ms)
    write: Write = yield WriteFact(_started(opening, announced, now.wall_ms))
    if not isinstance(write, Acknowledged):
        raise refusals.not_written(f"start of workflow {terms.workflow_id!r}", write)
    if opening.on_existing is OnExisting.RESUME and not opening.observe:
        standing: Standing | None = yield AwaitStanding()
        if standing is None:
            raise refusals.no_processor(terms.workflow_id, terms.standing_within_ms)
        if standing.phase in refusals.TURNED:
            raise refusals.turned(terms.workflow_id, standing, "it cannot be resumed.")
        if standing.workflow_offset < write.offset:
            history = yield ReadHistory(standing.workflow_offset, write.offset)
            yield Remember(history)
            # Its lease may be that of a wait for a person; from here on it is an agent's.
            yield QueueFact(heartbeat(terms, standing, opening.instance, now.wall_ms))
        if standing.open_undos and (yield AwaitPlan(standing.epoch - 1, write.offset, terms.lease_ms // 2)) is None:
            raise refusals.resumed_while_unwinding(terms.workflow_id, terms.lease_ms // 2)
    return write.offset


def claim_flow(terms: ScopeTerms) -> EndFlow:
    """Claim success, and wait for the fold's word.

    Returns Succeeded, Turned or Unconfirmed; the caller decides what is raised.
    """
    standing: Standing | None = yield AwaitStanding()
    if standing is None:
        return Unconfirmed(f"no processor answered the start of the workflow within {terms.standing_within_ms} ms")
    if standing.phase in refusals.TURNED:
        return Turned(standing)
    if not standing.known:
        return Turned(standing)  # undone to a savepoint, by somebody else: what it claims is not what is there
    if standing.phase is Phase.SUCCEEDED:
        return Succeeded()  # resumed after its end: every call was answered from the record
    now: Instant = yield ReadClock()
    claim = workflow_event(terms, standing, WorkflowStatus.SUCCEEDED, now.wall_ms, instance=terms.instance)
    if not (yield AwaitOwed()):
        yield QueueFact(claim)  # behind what is owed, in this order
        return Unconfirmed("facts of the workflow could not be written yet; its success is claimed after them")
    write: Write = yield WriteFact(claim)
    if not isinstance(write, Acknowledged):
        yield QueueFact(claim)
        return Unconfirmed(f"the claim of success could not be written yet ({write.reason})")
    end: Standing | None = yield AwaitEnd(standing.epoch)
    if end is None:
        return Unconfirmed(f"the claim of success is on the ledger; no word within {terms.confirm_within_ms} ms")
    return Succeeded() if end.phase is Phase.SUCCEEDED else Turned(end)


def fail_flow(terms: ScopeTerms, error: BaseException, secrets: Collection[str] = ()) -> EndFlow:
    """Say that the agent failed, without `secrets`. Never raises for what the ledger does: the agent's own error
    is on its way."""
    standing: Standing | None = yield AwaitStanding()
    if standing is None:
        return LeftOpen("the agent failed before a processor answered its start; nothing was called")
    if standing.phase in refusals.TURNED:
        return Turned(standing)
    now: Instant = yield ReadClock()
    why = failure(error, secrets)
    fact = workflow_event(terms, standing, WorkflowStatus.FAILED, now.wall_ms, why, instance=terms.instance)
    write: Write = yield WriteFact(fact)
    if not isinstance(write, Acknowledged):
        yield QueueFact(fact)
    return Failed(f"{type(error).__name__}: {why.message}"[:500])


def leave_flow(terms: ScopeTerms, lease_ms: int, reason: str) -> EndFlow:
    """Leave the workflow to a lease of `lease_ms`."""
    standing: Standing | None = yield AwaitStanding()
    if standing is None or standing.phase is not Phase.RUNNING:
        return LeftOpen(reason)
    now: Instant = yield ReadClock()
    fact = workflow_event(terms, standing, WorkflowStatus.HEARTBEAT, now.wall_ms, lease_ms=lease_ms)
    write: Write = yield WriteFact(fact)
    if not isinstance(write, Acknowledged):
        yield QueueFact(fact)
    return LeftOpen(reason)


def observed_end_flow(terms: ScopeTerms, error: BaseException | None, secrets: Collection[str] = ()) -> EndFlow:
    """Record how an observed scope ended, waiting for nothing."""
    standing: Standing | None = yield LookAtEcho()
    if standing is None:
        return LeftOpen("observed; no processor answered its start")
    now: Instant = yield ReadClock()
    status = WorkflowStatus.SUCCEEDED if error is None else WorkflowStatus.FAILED
    why = None if error is None else failure(error, secrets)
    yield QueueFact(workflow_event(terms, standing, status, now.wall_ms, why))
    return Unconfirmed("observed") if error is None else Failed(type(error).__name__)


def unanswered_heartbeat(terms: ScopeTerms, instance: str, wall_ms: int) -> WorkflowEvent:
    """Return the fact that an agent is alive whose start no processor has answered: it does not know yet whether the
    workflow is its own, so it names no start and no lease."""
    nowhere = Standing(UNKNOWN_OFFSET, 0, Phase.RUNNING)
    return workflow_event(terms, nowhere, WorkflowStatus.HEARTBEAT, wall_ms, instance=instance)


def heartbeat(terms: ScopeTerms, standing: Standing, instance: str, wall_ms: int) -> WorkflowEvent:
    """Return the fact that the agent is alive."""
    return workflow_event(
        terms, standing, WorkflowStatus.HEARTBEAT, wall_ms, lease_ms=terms.lease_ms, instance=instance
    )


def _started(opening: Opening, announced: Announced | None, wall_ms: int) -> WorkflowEvent:
    terms = opening.terms
    attributes = {"on_existing": opening.on_existing.value, **dict(opening.attributes)}
    if announced is not None:
        attributes[CHILD_STARTED_OFFSET] = str(announced.offset)
    if opening.observe:
        attributes["mode"] = "observe"
    if opening.mark:
        attributes[SCOPE] = opening.mark
    return WorkflowEvent(
        workflow_id=terms.workflow_id,
        epoch=0,
        status=WorkflowStatus.STARTED,
        agent_id=terms.agent_id,
        instance=opening.instance,
        lease_ms=terms.lease_ms,
        deadline_ms=opening.deadline_ms,
        policy=opening.policy,
        parent_workflow_id=None if announced is None else announced.parent.workflow_id,
        parent_workflow_offset=UNKNOWN_OFFSET if announced is None else announced.parent.workflow_offset,
        child_started_at_ms=None if announced is None else announced.at_ms,
        timestamp_ms=wall_ms,
        traceparent=terms.traceparent,
        attributes=attributes,
    )
