"""Savepoints of a workflow as pure generators of effects: taking one, and undoing back to one.

take    AwaitStanding -> AwaitOwed -> MeetSavepoint -> WriteFact(SAVEPOINT) -> KeepSavepoint
        An outcome that is still owed would make it void: so they are waited for.
undo    AwaitStanding -> AwaitOwed -> WriteFact(ROLLBACK_REQUESTED) -> AwaitPlan -> (ReadOthers -> Remember) -> GoOn
        The agent goes on once the fold says that the plan is closed or in the hands of people, and not before: until
        then its calls are refused.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from amends.producers import refusals
from amends.producers.effects import (
    Acknowledged,
    AwaitOwed,
    AwaitPlan,
    AwaitStanding,
    Effect,
    GoOn,
    Instant,
    KeepSavepoint,
    MeetSavepoint,
    NameSavepoints,
    QueueFact,
    ReadClock,
    ReadOthers,
    Remember,
    Standing,
    Unwritten,
    Write,
    WriteFact,
)
from amends.producers.flow import ScopeTerms
from amends.producers.intent import workflow_event
from amends.producers.story import Story, story_of
from amends.schemas.commands import Phase
from amends.schemas.facts import WorkflowStatus

SAVEPOINT_CHARACTERS_MAX = 200

SavepointFlow = Generator[Effect, Any, None]
UndoFlow = Generator[Effect, Any, Story]
AskFlow = Generator[Effect, Any, None]


def check_name(name: str) -> None:
    """Raise ValueError unless `name` can name a savepoint."""
    if not name or len(name) > SAVEPOINT_CHARACTERS_MAX:
        raise ValueError(f"a savepoint's name has 1 to {SAVEPOINT_CHARACTERS_MAX} characters, not {len(name)}")


def savepoint_flow(terms: ScopeTerms, name: str) -> SavepointFlow:
    """Take a savepoint.

    Raises: LedgerUnavailable, LedgerUncertain: there is no new one; WorkflowTurned, Rejected.
    """
    standing = yield from _runs(terms)
    if not standing.known:
        raise refusals.epoch_ended(terms.workflow_id, standing, f"savepoint {name!r} was not taken.")
    if (yield MeetSavepoint(name, standing)):
        return
    now: Instant = yield ReadClock()
    fact = workflow_event(
        terms, standing, WorkflowStatus.SAVEPOINT, now.wall_ms, instance=terms.instance, savepoint=name
    )
    write: Write = yield WriteFact(fact)
    if not isinstance(write, Acknowledged):
        raise refusals.not_written(f"savepoint {name!r} of workflow {terms.workflow_id!r}", write)
    yield KeepSavepoint(name, standing.epoch, write.offset)


def undo_to_flow(terms: ScopeTerms, name: str, reason: str, within_ms: int) -> UndoFlow:
    """Have everything undone that was done since a savepoint, and wait for it.

    Raises: Rejected (no such savepoint); LedgerUnavailable (nothing was asked for); WorkflowTurned (nobody goes on);
        NotConfirmed: it was asked for, and the plan is not closed yet.
    """
    standing = yield from _runs(terms)
    known: tuple[str, ...] = yield NameSavepoints(standing)
    if name not in known:
        raise refusals.no_savepoint(terms.workflow_id, name, known)
    now: Instant = yield ReadClock()
    fact = workflow_event(
        terms,
        standing,
        WorkflowStatus.ROLLBACK_REQUESTED,
        now.wall_ms,
        instance=terms.instance,
        savepoint=name,
        reason=reason,
    )
    write: Write = yield WriteFact(fact)
    if isinstance(write, Unwritten):
        raise refusals.not_written(f"undoing of workflow {terms.workflow_id!r} to savepoint {name!r}", write)
    if not isinstance(write, Acknowledged):
        yield QueueFact(fact)  # it names its epoch: the second of two does nothing
    asked_at = write.offset if isinstance(write, Acknowledged) else None
    end: Standing | None = yield AwaitPlan(standing.epoch, asked_at, within_ms)
    if end is None:
        raise refusals.still_unwinding(terms.workflow_id, name, within_ms)
    if end.phase in refusals.TURNED:
        raise refusals.turned(terms.workflow_id, end, f"it could not be undone to savepoint {name!r} alone.")
    if isinstance(write, Acknowledged):
        # In the epoch before, a remote would have taken the calls of two processes for one; in the next it can't.
        yield Remember((yield ReadOthers(write.offset)))
    yield GoOn(end)
    return story_of(name, end)


def undo_all_flow(terms: ScopeTerms, reason: str) -> AskFlow:
    """Ask for the undoing of the whole workflow, and wait for nothing: what is undone is for the fold and people."""
    standing = yield from _runs(terms)
    now: Instant = yield ReadClock()
    fact = workflow_event(
        terms, standing, WorkflowStatus.ROLLBACK_REQUESTED, now.wall_ms, instance=terms.instance, reason=reason
    )
    write: Write = yield WriteFact(fact)
    if isinstance(write, Unwritten):
        raise refusals.not_written(f"undoing of workflow {terms.workflow_id!r}", write)
    if not isinstance(write, Acknowledged):
        yield QueueFact(fact)


def observed_savepoint_flow(terms: ScopeTerms, standing: Standing, name: str) -> SavepointFlow:
    """Record a savepoint, waiting for nothing."""
    now: Instant = yield ReadClock()
    yield QueueFact(
        workflow_event(terms, standing, WorkflowStatus.SAVEPOINT, now.wall_ms, instance=terms.instance, savepoint=name)
    )


def observed_undo_flow(terms: ScopeTerms, standing: Standing, name: str, reason: str) -> UndoFlow:
    """Record that the agent wanted an undoing. Where amends only looks on, nothing is undone."""
    now: Instant = yield ReadClock()
    status = WorkflowStatus.ROLLBACK_REQUESTED
    yield QueueFact(
        workflow_event(terms, standing, status, now.wall_ms, instance=terms.instance, savepoint=name, reason=reason)
    )
    return NOT_UNDONE


NOT_UNDONE = Story("Nothing was undone: amends only looks on here.")


def _runs(terms: ScopeTerms) -> Generator[Effect, Any, Standing]:
    standing: Standing | None = yield AwaitStanding()
    if standing is None:
        raise refusals.no_processor(terms.workflow_id, terms.standing_within_ms)
    if standing.phase in refusals.TURNED:
        raise refusals.turned(terms.workflow_id, standing, "nothing goes on in it.")
    if standing.phase is not Phase.RUNNING:
        raise refusals.finished(terms.workflow_id, standing)
    if not (yield AwaitOwed()):
        raise refusals.still_owed(terms.workflow_id, terms.owed_within_ms)
    return standing
