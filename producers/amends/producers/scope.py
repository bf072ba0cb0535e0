"""The shell of one workflow in this process: what its flows ask of the world is done here."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from amends.producers import clock, refusals
from amends.producers.approving import is_about
from amends.producers.board import Board
from amends.producers.calls import CallBook
from amends.producers.drivers import LATER
from amends.producers.effects import (
    Acknowledged,
    Admit,
    AdmitAgain,
    AwaitApproval,
    AwaitEnd,
    AwaitFold,
    AwaitOwed,
    AwaitPlan,
    AwaitStanding,
    Effect,
    Follow,
    GoOn,
    KeepSavepoint,
    LookAtEcho,
    MeetSavepoint,
    NameSavepoints,
    QueueFact,
    ReadClock,
    ReadHistory,
    ReadOthers,
    Remember,
    Standing,
    Withdraw,
    Write,
    WriteFact,
)
from amends.producers.ledger import History, Ledger, of_instance
from amends.producers.others import Others
from amends.producers.outbox import Outbox, Owed
from amends.producers.outcome import beating
from amends.producers.savepoints import Place
from amends.producers.scope_flow import Opening, admissible, heartbeat, ours, unanswered_heartbeat
from amends.schemas.approvals import ApprovalState
from amends.schemas.commands import Phase, WorkflowEcho
from amends.schemas.facts import BEHIND, StepEvent, StepStatus, WorkflowEvent, WorkflowStatus

Look = AwaitStanding | AwaitEnd | AwaitPlan | AwaitOwed | AwaitFold | AwaitApproval
_LOOKS = (AwaitStanding, AwaitEnd, AwaitPlan, AwaitOwed, AwaitFold, AwaitApproval)

EARLY_ECHOES_MAX = 64

_OVER = frozenset({Phase.SUCCEEDED, *refusals.TURNED})


_process_id = os.getpid()


def _after_fork_in_child() -> None:
    global _process_id
    _process_id = os.getpid()  # kept, for every call asks


os.register_at_fork(after_in_child=_after_fork_in_child)


class Process(Protocol):
    """What all scopes of a process share (`runtime.Runtime`)."""

    @property
    def ledger(self) -> Ledger: ...
    def next_attempt(self) -> str: ...
    def hurry(self, lease_ms: int) -> None: ...


@dataclass(slots=True)
class OpenAttempt:
    """A send under way."""

    started: StepEvent
    lease_ms: int
    beat_at_ms: int
    until_ms: int  # a call that takes longer hangs: nobody says any more that it is alive


class Scope:
    """State of one workflow run by this process. Used from any number of threads and tasks at once."""

    def __init__(self, opening: Opening, process: Process) -> None:
        self.opening = opening
        self.terms = opening.terms
        self.process_id = _process_id
        self.board = Board()
        self.standing: Standing | None = None
        self.started_offset: int | None = None
        self.alive = False  # heartbeats are sent
        self.secrets: set[str] = set()  # of all calls: an error may come out far from the call that had the secret
        self.standing_within_ms = opening.terms.standing_within_ms
        self._process = process
        self._ledger = process.ledger
        self._lock = threading.RLock()
        self._book = CallBook(opening.terms.workflow_id)
        self._outbox = Outbox(self._send, self.board.announce)
        self._open: dict[str, OpenAttempt] = {}
        self._sent_at_ms = 0
        self._folded_to = -1
        self._acknowledged_to = -1
        self._others = Others(opening.instance, opening.terms.lease_ms, -1)
        self._early: list[WorkflowEcho] = []
        self._known_epoch: int | None = None  # the agent has been told of it
        self._unfollow: Callable[[], None] | None = None

    # --- effects ----------------------------------------------------------------------------------------------------

    def at_once(self, effect: Effect) -> Any:
        """Do what needs no waiting."""
        kind = type(effect)
        if kind is ReadClock:
            return clock.now()
        if kind is LookAtEcho:
            return self.standing
        if isinstance(effect, Admit):
            with self._lock:
                return self._book.admit(effect, self._process.next_attempt(), clock.wall_ms())
        if isinstance(effect, QueueFact):
            self._noted(effect.fact)
            self._outbox.put(effect.fact)
            return None
        if isinstance(effect, Withdraw):
            with self._lock:
                self._book.withdraw(effect.admitted)
            return None
        with self._lock:
            return self._noted_in_book(effect)

    def _noted_in_book(self, effect: Effect) -> Any:
        if isinstance(effect, Remember):
            standing = self.standing
            history = effect.history if standing is None else of_instance(effect.history, standing.workflow_offset)
            return self._book.remember(history)
        if isinstance(effect, AdmitAgain):
            return self._book.admit_again(effect)
        if isinstance(effect, MeetSavepoint):
            return self._book.meet_savepoint(effect.name, effect.standing)
        if isinstance(effect, KeepSavepoint):
            return self._book.keep_savepoint(effect.name, Place(effect.epoch, effect.offset))
        if isinstance(effect, NameSavepoints):
            return self._book.name_savepoints(effect.standing)
        if isinstance(effect, GoOn):
            return self._go_on(effect.standing)
        raise AssertionError(f"no such effect here: {effect}")

    def at_once_or_later(self, effect: Effect) -> Any:
        """Do `effect` if that needs no waiting, else return LATER."""
        do = _AT_ONCE.get(type(effect))
        return self.at_once(effect) if do is None else do(self, effect)

    def _later(self, effect: Effect) -> Any:
        return LATER

    def _clock(self, effect: Effect) -> Any:
        return clock.now()

    def _echo(self, effect: Effect) -> Any:
        return self.standing

    def _seen_or_later(self, effect: Look) -> Any:
        found = self._seen(effect)
        return LATER if found is None else self._found(effect, found)

    def _no_others_or_later(self, effect: ReadOthers) -> Any:
        return LATER if effect.surely or self._others.may_write() else ()

    def perform(self, effect: Effect) -> Any:
        """Do `effect` in this thread."""
        if isinstance(effect, WriteFact):
            return self._written(effect.fact, self._ledger.write(self._noted(effect.fact)))
        if isinstance(effect, _LOOKS):
            if (found := self._seen(effect)) is None:
                look, within_ms = self._looked_for(effect)
                found = self.board.wait(look, within_ms)
            return self._found(effect, found)
        if isinstance(effect, Follow):
            self._unfollow = self._ledger.follow(self.terms.workflow_id, self.heard)
            return None
        if isinstance(effect, ReadHistory):
            return self._ledger.history(self.terms.workflow_id, effect.from_offset, effect.to_offset)
        if isinstance(effect, ReadOthers):
            return self._read_others(effect)
        return self.at_once(effect)

    async def perform_async(self, effect: Effect) -> Any:
        """Do `effect`, which is to be waited for, in this task."""
        if isinstance(effect, WriteFact):
            return self._written(effect.fact, await self._ledger.write_async(self._noted(effect.fact)))
        if isinstance(effect, _LOOKS):
            if (found := self._seen(effect)) is None:
                look, within_ms = self._looked_for(effect)
                found = await self.board.wait_async(look, within_ms)
            return self._found(effect, found)
        if isinstance(effect, Follow):
            self._unfollow = await self._ledger.follow_async(self.terms.workflow_id, self.heard)
            return None
        if isinstance(effect, ReadOthers):
            return await asyncio.to_thread(self._read_others, effect)
        assert isinstance(effect, ReadHistory), effect
        read = self._ledger.history
        return await asyncio.to_thread(read, self.terms.workflow_id, effect.from_offset, effect.to_offset)

    def _read_others(self, effect: ReadOthers) -> History:
        others, to_offset = self._others, effect.to_offset
        if not (effect.surely or others.may_write()):
            return ()
        read = self._ledger.history(self.terms.workflow_id, others.read_to + 1, to_offset)
        with self._lock:
            return others.written(read, to_offset)

    def _seen(self, effect: Look) -> Any:
        """Return what is waited for if it is there already: on the way of every call."""
        if isinstance(effect, AwaitStanding):
            return self.standing
        if isinstance(effect, AwaitFold):
            return self._as_of(effect.offset)
        return True if isinstance(effect, AwaitOwed) and not self._outbox else None

    def _as_of(self, offset: int) -> Standing | None:
        with self._lock:
            return self.standing if self._folded_to >= offset else None

    def _decided(self, effect: AwaitApproval) -> Standing | None:
        standing = self.standing
        if standing is None:
            return None
        if standing.phase is not Phase.RUNNING or standing.epoch != effect.epoch:
            return standing
        told = (t for t in standing.approvals if t.argument_digest == effect.argument_digest)
        waits = all(t.state == ApprovalState.REQUESTED for t in told if is_about(t, effect.step_id))
        return None if waits else standing

    def _looked_for(self, effect: Look) -> tuple[Callable[[], Any], int]:
        if isinstance(effect, AwaitStanding):
            return (lambda: self.standing), self.standing_within_ms
        if isinstance(effect, AwaitOwed):
            return (lambda: True if not self._outbox else None), self.terms.owed_within_ms
        if isinstance(effect, AwaitFold):
            offset = effect.offset
            return (lambda: self._as_of(offset)), effect.within_ms
        if isinstance(effect, AwaitApproval):
            asked = effect
            return (lambda: self._decided(asked)), effect.within_ms
        epoch = effect.epoch
        if isinstance(effect, AwaitPlan):
            as_of = self._acknowledged_to if effect.offset is None else effect.offset
            return (lambda: self._plan_closed(epoch, as_of)), effect.within_ms
        return (lambda: self._end(epoch)), self.terms.confirm_within_ms

    def _plan_closed(self, epoch: int, as_of: int) -> Standing | None:
        standing = self._as_of(as_of)
        if standing is not None and standing.phase in _OVER:
            return standing
        return None if standing is None or standing.epoch <= epoch or standing.open_undos else standing

    def _go_on(self, standing: Standing) -> None:
        self._known_epoch = standing.epoch
        self._book.go_on(standing)
        if self.standing is not None:
            self.standing = replace(self.standing, known=self.standing.epoch == standing.epoch)

    def _end(self, epoch: int) -> Standing | None:
        standing = self.standing
        if standing is None or (standing.epoch == epoch and standing.phase not in _OVER):
            return None
        return standing

    def _found(self, effect: Effect, found: Any) -> Any:
        if isinstance(effect, AwaitOwed):
            return found is not None
        if isinstance(effect, AwaitStanding) and found is not None and self.started_offset is not None:
            admissible(self.opening, self.started_offset, found)
        return found

    # --- facts ------------------------------------------------------------------------------------------------------

    def queue(self, fact: Owed) -> None:
        """Owe a fact to the ledger. Never waits."""
        self.at_once(QueueFact(fact))

    def owed(self) -> int:
        """Return how many facts are not on the ledger yet."""
        return len(self._outbox)

    def owe_again(self) -> None:
        """Try again to write what is owed."""
        self._outbox.retry()

    def _send(self, fact: Owed, on_written: Callable[[Write], None]) -> None:
        self._sent_at_ms = clock.elapsed_ms()
        self._ledger.send(fact, on_written)

    def _noted(self, fact: Owed) -> Owed:
        now_ms = clock.elapsed_ms()
        self._sent_at_ms = now_ms
        if isinstance(fact, StepEvent):
            with self._lock:
                if fact.status is StepStatus.STARTED:
                    lease_ms = fact.lease_ms or self.terms.lease_ms
                    until_ms = now_ms + max(lease_ms, self.terms.call_max_ms)
                    self._open[fact.attempt] = OpenAttempt(fact, lease_ms, now_ms, until_ms)
                    if fact.captured is not None:
                        self._book.started(fact)
                    self._process.hurry(lease_ms)
                else:
                    self._open.pop(fact.attempt, None)
                    self._book.note(fact)
        elif fact.status is WorkflowStatus.SAVEPOINT:
            return replace(fact, attributes={**fact.attributes, BEHIND: str(self._acknowledged_to)})
        return fact

    def _written(self, fact: Owed, write: Write) -> Write:
        if not isinstance(write, Acknowledged):
            self._sent_at_ms = 0  # nobody has heard from us: a heartbeat is due
            return write
        if fact.workflow_id == self.terms.workflow_id:  # and not on its parent's partition, which counts otherwise
            self._acknowledged_to = max(self._acknowledged_to, write.offset)
        if fact.status is WorkflowStatus.STARTED:
            self._begun(write.offset)
        elif isinstance(fact, StepEvent) and fact.status is StepStatus.STARTED:
            with self._lock:
                self._book.placed(fact, write.offset)
        return write

    def may_take(self, attempt: str, timeout_ms: int) -> None:
        """The caller gave this call so much time: for so long it does not hang."""
        with self._lock:
            known = self._open.get(attempt)
            if known is not None:
                known.until_ms = max(known.until_ms, clock.elapsed_ms() + timeout_ms)

    def dropped(self, attempt: str) -> OpenAttempt | None:
        """No longer count a send as open: its flow has ended, however it did."""
        with self._lock:
            return self._open.pop(attempt, None)

    # --- the echo ---------------------------------------------------------------------------------------------------

    def heard(self, echo: WorkflowEcho) -> None:
        """Take an echo. Older ones, those below our own STARTED and those of another instance are not believed."""
        with self._lock:
            if self.started_offset is None:
                self._early = [*self._early[-EARLY_ECHOES_MAX:], echo]
                return
            if not self._believed(echo, self.started_offset):
                return
            self._folded_to = echo.folded_to
            self.standing = self._standing(echo)
            self._others.heard(echo.answers_offset, resumed=self.resumed())
        self.board.announce()

    def _standing(self, echo: WorkflowEcho) -> Standing:
        if self._known_epoch is None:
            self._known_epoch = echo.epoch
        return Standing(
            echo.workflow_offset,
            echo.epoch,
            echo.phase,
            echo.story,
            known=echo.epoch == self._known_epoch,
            open_undos=echo.open_undos,
            dead_undos=echo.dead_undos,
            savepoint=echo.savepoint,
            turns=echo.turns,
            steps=echo.steps,
            approvals=echo.approvals,
            own=bool(echo.scope) and echo.scope == self.opening.mark,
        )

    def _believed(self, echo: WorkflowEcho, started_offset: int) -> bool:
        if echo.folded_to < started_offset or echo.folded_to < self._folded_to:
            return False
        if self.standing is None:  # an answer to our STARTED, or to one after it: not what an older instance says
            return echo.answers_offset >= started_offset
        return echo.workflow_offset == self.standing.workflow_offset

    def _begun(self, offset: int) -> None:
        with self._lock:
            self.started_offset = offset
            self._others = Others(self.opening.instance, self.terms.lease_ms, offset)
            self.alive = True
            early, self._early = self._early, []
        for echo in early:
            self.heard(echo)

    def resumed(self) -> bool:
        """Whether the workflow was there before this scope."""
        standing = self.standing
        return standing is not None and not standing.own and standing.workflow_offset != self.started_offset

    # --- being alive ------------------------------------------------------------------------------------------------

    def beats(self, now_ms: int, wall_ms: int) -> list[Owed]:
        """Return the heartbeats that are due. Called from the heart's thread.

        A call that hangs has none, and while one does the agent has none either: it may be waiting for it for ever.
        What else its workflow writes, other calls under way among it, still says that it is alive.
        """
        with self._lock:
            due: list[Owed] = []
            hangs = False
            for attempt in self._open.values():
                if now_ms >= attempt.until_ms:
                    hangs = True
                elif (now_ms - attempt.beat_at_ms) * 3 >= attempt.lease_ms:
                    attempt.beat_at_ms = now_ms
                    due.append(beating(attempt.started, wall_ms))
            if not due and not hangs and (now_ms - self._sent_at_ms) * 3 >= self.terms.lease_ms:
                due.extend(self._beat(wall_ms))
            if due:
                self._sent_at_ms = now_ms
            return due

    def _beat(self, wall_ms: int) -> list[Owed]:
        """Return the heartbeat of the agent, or none if the scope is left or its workflow is somebody else's."""
        if not self.alive or self.started_offset is None:
            return []
        if self.standing is None:
            return [unanswered_heartbeat(self.terms, self.opening.instance, wall_ms)]
        running = self.standing.phase in (Phase.RUNNING, Phase.FINISHING)
        if not running or not ours(self.opening, self.started_offset, self.standing):
            return []
        return [heartbeat(self.terms, self.standing, self.opening.instance, wall_ms)]

    def leave(self, lease_ms: int) -> None:
        """Owe the ledger a last heartbeat, with the lease the workflow is left with. Never waits."""
        for beat in self._beat(clock.wall_ms()):
            if isinstance(beat, WorkflowEvent) and beat.lease_ms is not None:
                self.queue(replace(beat, lease_ms=lease_ms))

    def beaten(self, write: Write) -> None:
        """A heartbeat was written, or not: then it is due again at once."""
        if not isinstance(write, Acknowledged):
            self._sent_at_ms = 0

    def shortest_lease_ms(self) -> int:
        """Return the lease that asks for the most heartbeats."""
        with self._lock:
            return min([self.terms.lease_ms, *(attempt.lease_ms for attempt in self._open.values())])

    def idle(self) -> bool:
        """Whether nothing of this scope is left to be done in the background."""
        return not self.alive and not self._outbox and not self._open

    def closed(self) -> None:
        """The scope is left: no more heartbeats of the workflow, nothing more is listened for."""
        self.alive = False

    def forget(self) -> None:
        """Stop listening. Called once the scope is idle."""
        unfollow, self._unfollow = self._unfollow, None
        if unfollow is not None:
            unfollow()

    def is_of(self, process: Process) -> bool:
        """Whether its facts are written by way of `process`."""
        return self._process is process

    def inherited(self) -> bool:
        """Whether this process is a fork of the one that opened the scope. It must not act for the workflow."""
        return self.process_id != _process_id


_AT_ONCE: dict[type[Effect], Callable[[Scope, Any], Any]] = {
    # What can never be done at once.
    **dict.fromkeys((WriteFact, AwaitEnd, AwaitPlan, AwaitApproval, Follow, ReadHistory), Scope._later),
    ReadClock: Scope._clock,
    LookAtEcho: Scope._echo,
    **dict.fromkeys((AwaitStanding, AwaitOwed, AwaitFold), Scope._seen_or_later),
    ReadOthers: Scope._no_others_or_later,
}
