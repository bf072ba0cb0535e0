"""Agents: the real flows of `amends.producers` on a real `Scope`, in virtual time.

What the driver of a flow does in production in a thread is done here in events. Only waiting and writing are replaced;
which step a call is, which echo is believed, what is owed and when a heart beats is the producers' own code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation.decoding import decoded
from tests.simulation.lives import Agent, Begin, Belief, Life, Think
from tests.simulation.pipeline import Pipeline
from tests.simulation.schedule import Process, Task
from tests.simulation.scripts import Alone, Child, Script
from tests.simulation.world import Declined, register_of

from amends.processors.memory import StoredRecord
from amends.producers import effects as asks
from amends.producers.effects import Acknowledged, Raised, Returned, Uncertain, Unwritten, Write
from amends.producers.family import Reference
from amends.producers.flow import ScopeTerms
from amends.producers.ledger import History, Listener, OnWritten
from amends.producers.scope import Scope
from amends.producers.scope_flow import OnExisting, Opening
from amends.schemas.codec import UnreadableRecord
from amends.schemas.commands import WorkflowEcho
from amends.schemas.facts import StepEvent, WorkflowEvent
from amends.tools.errors import AmendsError, LedgerUnavailable

LEASE_MS = 6_000
WITHIN_MS = 9_000
BEATS_PER_LEASE = 6
CHILD_LOOKS_EACH_MS = 50
CHILD_LOOKS_MAX = 200


_NOT_AT_ONCE = frozenset(
    {
        asks.WriteFact,
        asks.AwaitStanding,
        asks.AwaitEnd,
        asks.AwaitPlan,
        asks.AwaitOwed,
        asks.AwaitFold,
        asks.AwaitApproval,
        asks.Follow,
        asks.ReadHistory,
        asks.ReadOthers,
        asks.Invoke,
        asks.ReadImage,
        Begin,
        Think,
    }
)


@dataclass(frozen=True, slots=True)
class _Waiting:
    task: Task
    effect: Any
    look: Callable[[], Any]
    end_ms: int


class AgentProcess(Process):
    """One process of an agent, which runs one script. It is what a scope wants of its process and of its ledger."""

    def __init__(
        self,
        pipeline: Pipeline,
        script: Script,
        belief: Belief,
        name: str,
        parent: Reference | None = None,
        alone: Alone | None = None,
        *,
        resumes: bool,
    ) -> None:
        super().__init__("agent", name)
        self.parent = parent
        self.alone = alone
        self.begin_child: Callable[[Child, Reference], AgentProcess]
        self._pipeline = pipeline
        self.script = script
        self._attempts = 0
        self._heard_at_ms = 0
        self._leaving = False
        existing = OnExisting.RESUME if resumes else OnExisting.REFUSE
        terms = ScopeTerms(
            script.workflow_id,
            name,
            LEASE_MS,
            WITHIN_MS,
            WITHIN_MS,
            WITHIN_MS,
            approval_within_ms=WITHIN_MS,
            instance=name,
        )
        self._scope = Scope(Opening(terms, name, existing), self)
        self._waiting: _Waiting | None = None
        self._agent = Agent(pipeline, script, belief, self._scope, self, parent, alone)
        self._scope.board._wakers.add(lambda: pipeline.schedule.after(0, self._look, self))
        self.over = False

    # --- what a scope wants of its process and its ledger -----------------------------------------------------------

    @property
    def ledger(self) -> AgentProcess:
        return self

    def next_attempt(self) -> str:
        self._attempts += 1
        return f"{self.name}/{self._attempts}"

    def attempts_made(self) -> int:
        return self._attempts

    def hurry(self, lease_ms: int) -> None:
        """The heart here beats often enough."""

    def send(self, fact: StepEvent | WorkflowEvent, on_written: OnWritten) -> None:
        self._pipeline.write(self, fact, lambda told: on_written(_write(told)))

    def follow(self, workflow_id: str, listener: Listener) -> Callable[[], None]:
        key = workflow_id.encode()

        def heard(record: StoredRecord) -> None:
            if record.key != key or record.value is None:
                return
            echo = decoded(record.value)
            assert isinstance(echo, WorkflowEcho)
            pipeline = self._pipeline
            at_ms = max(pipeline.schedule.now_ms + pipeline.delay_ms(), self._heard_at_ms)
            self._heard_at_ms = at_ms
            pipeline.schedule.after(at_ms - pipeline.schedule.now_ms, lambda: listener(echo), self)

        listeners = self._pipeline.broker.listeners.setdefault(self._pipeline.topics.workflows, [])
        listeners.append(heard)
        return lambda: listeners.remove(heard)

    def history(self, workflow_id: str, from_offset: int, to_offset: int) -> History:
        pipeline = self._pipeline
        count, place = to_offset - from_offset + 1, (pipeline.topics.ledger, pipeline.partition_of(workflow_id))
        if pipeline.broker.start(*place) > from_offset:
            raise LedgerUnavailable(f"the history of {workflow_id} is gone")
        if pipeline.mix.unread and not pipeline.calm and pipeline.chance.random() < pipeline.mix.unread:
            raise LedgerUnavailable(f"the history of {workflow_id} can't be read")
        records = pipeline.broker.read(*place, from_offset, count)
        key = workflow_id.encode()
        found: list[tuple[int, Any]] = []
        for record in records:
            if record.key == key and record.value is not None:
                try:
                    found.append((record.offset, decoded(record.value)))
                except UnreadableRecord:
                    continue
        return tuple(found)

    def write(self, fact: StepEvent | WorkflowEvent) -> Write:
        raise AssertionError("nothing blocks here")

    async def write_async(self, fact: StepEvent | WorkflowEvent) -> Write:
        raise AssertionError("nothing blocks here")

    async def follow_async(self, workflow_id: str, listener: Listener) -> Callable[[], None]:
        raise AssertionError("nothing blocks here")

    def close(self) -> None:
        """Nothing is held."""

    # --- the agent --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        schedule = self._pipeline.schedule
        task = Task(schedule, self, self._play(), lambda effect, answer: self._perform(task, effect, answer))
        schedule.after(0, task.start, self)
        self._beat()

    def _play(self) -> Life:
        """The whole life of one agent process."""
        try:
            yield from self._agent.play()
        finally:
            self._scope.closed()
            self._leaving = True

    def _beat(self) -> None:
        """What the heart's thread does: beat, owe again, and stop once nothing is left."""
        scope, schedule = self._scope, self._pipeline.schedule
        for fact in scope.beats(schedule.now_ms, schedule.now_ms):
            self.send(fact, scope.beaten)
        scope.owe_again()
        if self._leaving and scope.idle():
            scope.forget()
            self.over = True
            return
        schedule.after(LEASE_MS // BEATS_PER_LEASE, self._beat, self)

    # --- effects ----------------------------------------------------------------------------------------------------

    def _perform(self, task: Task, effect: Any, answer: Callable[[Any], None]) -> None:
        scope, pipeline = self._scope, self._pipeline
        if type(effect) not in _NOT_AT_ONCE:  # most are
            answer(scope.at_once(effect))
            return
        match effect:
            case asks.WriteFact(fact=fact):
                noted = scope._noted(fact)
                pipeline.write(self, noted, lambda told: answer(scope._written(fact, _write(told))))
            case (
                asks.AwaitStanding()
                | asks.AwaitEnd()
                | asks.AwaitPlan()
                | asks.AwaitOwed()
                | asks.AwaitFold()
                | asks.AwaitApproval()
            ):
                look, within_ms = scope._looked_for(effect)
                self._waiting = _Waiting(task, effect, look, pipeline.schedule.now_ms + within_ms)
                pipeline.schedule.after(within_ms, self._look, self)
                self._look()
            case asks.Follow() | asks.ReadHistory() | asks.ReadOthers():
                try:
                    found = scope.perform(effect)
                except LedgerUnavailable as error:
                    task.throw(error)
                else:
                    answer(found)
            case Begin(child=child, parent=parent):
                process = self.begin_child(child, parent)
                self._await_child(process if child.waits else None, answer)
            case Think(duration_ms=ms):
                pipeline.schedule.after(ms, lambda: answer(None), self)
            case asks.Invoke():
                self._invoke(effect, answer)
            case asks.ReadImage():
                fails = pipeline.happens(pipeline.mix.question_fails / 3)
                pipeline.schedule.after(pipeline.delay_ms(), lambda: answer(self._image(fails=fails)), self)
            case _:
                raise AssertionError(effect)

    def _await_child(self, child: AgentProcess | None, answer: Callable[[Any], None], looks: int = 0) -> None:
        """Go on when a child is over, or nothing was heard of it for long."""
        if child is None or child.over or looks >= CHILD_LOOKS_MAX:
            answer(None)
            return
        again = partial(self._await_child, child, answer, looks + 1)
        self._pipeline.schedule.after(CHILD_LOOKS_EACH_MS, again, self)

    def _look(self) -> None:
        """Something changed, or a wait is over."""
        waiting = self._waiting
        if waiting is None:
            return
        found = waiting.look()
        if found is None and self._pipeline.schedule.now_ms < waiting.end_ms:
            return
        self._waiting = None
        try:
            answer = self._scope._found(waiting.effect, found)
        except AmendsError as error:
            waiting.task.throw(error)
        else:
            waiting.task.answer(answer)

    def _invoke(self, effect: asks.Invoke, answer: Callable[[Any], None]) -> None:
        pipeline, mix, schedule = self._pipeline, self._pipeline.mix, self._pipeline.schedule
        tool, given = self._agent.calling
        refuse, uncertain = pipeline.happens(mix.call_refused), pipeline.happens(mix.call_uncertain)
        if uncertain and pipeline.chance.random() < 0.4:  # it never arrives
            schedule.after(pipeline.delay_ms(), lambda: answer(Raised(ConnectionError("reset"))), self)
            return
        lands_ms = pipeline.landing_ms(uncertain=uncertain)
        if uncertain:
            schedule.after(pipeline.delay_ms(), lambda: answer(Raised(ConnectionError("reset"))), self)

        def land() -> None:
            if tool.kind.later and not refuse:
                pipeline.doors.take_call(tool, given, effect, self.script.workflow_id)
                if not uncertain:
                    schedule.after(pipeline.delay_ms(), lambda: answer(Returned({"status": "pending"})), self)
                return
            deed = pipeline.world.call(tool, given, effect.key, effect.attempt, schedule.now_ms, refuse=refuse)
            what = "refused" if deed is None else f"did {deed.number}"
            schedule.say("world", f"{tool.name} {given['subject']} {what} ({effect.attempt})")
            result = Raised(Declined("no")) if deed is None else Returned(deed.output)
            if not uncertain:
                schedule.after(pipeline.delay_ms(), lambda: answer(result), self)

        schedule.after(lands_ms, land)

    def _image(self, *, fails: bool) -> asks.Result:
        if fails:
            return Raised(ConnectionError("reset"))
        _, given = self._agent.calling
        return Returned({"value": self._pipeline.world.read(register_of(given))})


def _write(told: StoredRecord | bool) -> Write:
    if isinstance(told, StoredRecord):
        return Acknowledged(told.offset, told.appended_at_ms)
    return Unwritten("refused") if told else Uncertain("no acknowledgement")
