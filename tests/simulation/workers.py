"""Compensators: the real decisions on the real registry, several workers on one lane, every delivery at least once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation.decoding import decoded
from tests.simulation.pipeline import LAG_MAX_MS, Pipeline
from tests.simulation.schedule import Process, Task
from tests.simulation.world import Said, Tool, register_of

from amends.compensators import effects as asks
from amends.compensators.comparing import compared
from amends.compensators.decide import decide
from amends.compensators.effects import (
    CallAnswer,
    IsStillThere,
    IsUndone,
    LedgerFact,
    NobodyKnows,
    NotBegun,
    NotDeployed,
    ProbeAnswer,
    Refused,
    Succeeded,
    Uncertain,
    Unreadable,
    Unwritten,
    Written,
)
from amends.compensators.registry import NO_FENCE, Go
from amends.compensators.verdicts import taken_for_later
from amends.processors.memory import StoredRecord
from amends.schemas.commands import ProbeCommand, ResendCommand, UndoCommand, UndoEntry
from amends.schemas.facts import ACCEPTED, Decision, Failure, Resolution, StepEvent, UndoEvent
from amends.schemas.payload import decode_payload, encode_payload
from amends.tools.resolve import Resolved, resolve
from amends.tools.step import step_from_facts

RESET = Failure("ConnectionError", "reset")
GONE = Failure("amends.StepGone", "the ledger no longer holds the step")


@dataclass
class Lane:
    """One partition of the lane: what the consumer group has committed, and who owns it."""

    partition: int = 0
    committed: int = 0
    owner: WorkerProcess | None = None


class _Sent:
    """What became of the facts that a decision sent, in their order."""

    def __init__(self) -> None:
        self._told: list[Written | Unwritten | None] = []
        self._answer: Callable[[Any], None] | None = None

    def expected(self) -> Callable[[StoredRecord | bool], None]:
        """Count one more fact; return what is to be told of it."""
        self._told.append(None)
        return partial(self._tell, len(self._told) - 1)

    def ask(self, answer: Callable[[Any], None]) -> None:
        """Have all answers given once the last has come."""
        self._answer = answer
        self._give()

    def _tell(self, number: int, what: StoredRecord | bool) -> None:
        self._told[number] = _written(what)
        self._give()

    def _give(self) -> None:
        if self._answer is None or None in self._told:
            return
        told, answer = tuple(self._told), self._answer
        self._told, self._answer = [], None
        answer(told)


class WorkerProcess(Process):
    """One compensator process."""

    def __init__(self, pipeline: Pipeline, lane: Lane, name: str) -> None:
        super().__init__("compensator", name)
        self.pipeline = pipeline
        self.lane = lane
        self._next = 0
        self._done: set[int] = set()
        self._queues: dict[bytes, list[StoredRecord]] = {}
        self._deliveries = 0
        topic = self.pipeline.topics.undo("default")
        self.pipeline.broker.listeners.setdefault(topic, []).append(self._came)

    def idle(self) -> bool:
        return not self._queues and self._next >= self.pipeline.broker.end(
            self.pipeline.topics.undo("default"), self.lane.partition
        )

    def running(self) -> bool:
        return bool(self._queues)

    def take(self) -> None:
        """The group gives us the lane: begin where it has committed."""
        self.lane.owner = self
        self._next = self.lane.committed
        self._done.clear()
        self._soon()

    def _came(self, record: StoredRecord) -> None:
        if record.partition == self.lane.partition:
            self._soon()

    def _soon(self) -> None:
        self.pipeline.schedule.after(self.pipeline.delay_ms(), self._pump, self)

    def _pump(self) -> None:
        if self.lane.owner is not self:
            return  # what runs goes on to its end
        for record in self.pipeline.broker.read(self.pipeline.topics.undo("default"), self.lane.partition, self._next):
            self._next = record.offset + 1
            assert record.key is not None
            queue = self._queues.setdefault(record.key, [])
            queue.append(record)
            if len(queue) == 1:
                self._begin(record.key)

    def _begin(self, key: bytes) -> None:
        """Commands of one workflow run one after another."""
        record = self._queues[key][0]
        if self.lane.owner is not self:
            del self._queues[key]
            return
        command = decoded(record.value)
        assert isinstance(command, UndoCommand | ProbeCommand | ResendCommand)
        owner = self.next_owner()
        if self.pipeline.schedule.tells:
            self.pipeline.schedule.say(self.name, f"begins {_described(command)} as {owner}")
        task = Task(
            self.pipeline.schedule,
            self,
            decide(command, owner, self.name),
            partial(self._perform, command, owner, _Sent()),
            lambda report: self._end(key, record, report),
        )
        task.start()

    def next_owner(self) -> str:
        """Return the name of a delivery, unique for ever."""
        self._deliveries += 1
        return f"{self.name}/{self._deliveries}"

    def _end(self, key: bytes, record: StoredRecord, report: asks.Report) -> None:
        self.pipeline.schedule.say(self.name, f"ends: {report.ends}")
        self._done.add(record.offset)
        lane = self.lane
        while lane.owner is self and lane.committed in self._done:
            lane.committed += 1
        queue = self._queues.get(key, [])
        if queue and queue[0] is record:
            del queue[0]
        if queue:
            self.pipeline.schedule.after(0, lambda: self._begin(key) if key in self._queues else None, self)
        else:
            self._queues.pop(key, None)

    # --- effects ----------------------------------------------------------------------------------------------------

    def _perform(self, command: Any, owner: str, sent: _Sent, effect: Any, answer: Callable[[Any], None]) -> None:
        pipeline, schedule = self.pipeline, self.pipeline.schedule
        match effect:
            case asks.ReadClock() | asks.ReadWallClock():
                answer(schedule.now_ms)
            case asks.Claim() | asks.Renew() | asks.Settle():
                schedule.after(pipeline.delay_ms(2), lambda: self._ask_registry(effect, answer), self)
            case asks.Write(facts=facts):
                self._write(facts, answer)
            case asks.Send(facts=facts):
                for fact in facts:
                    self.pipeline.write(self, fact, sent.expected())
                answer(None)
            case asks.AwaitSent():
                sent.ask(answer)
            case asks.ReadBack():
                found = self._read_back(command, effect)
                schedule.after(pipeline.delay_ms(2), lambda: answer(found), self)
            case asks.CallUndo():
                pipeline.world.reached.add(owner)
                self._undo(effect, owner, answer)
            case asks.CallForward():
                self._call(effect, owner, answer)
            case asks.AskVerify():
                pipeline.world.reached.add(owner)
                schedule.after(pipeline.delay_ms(), lambda: answer(self._verify(effect)), self)
            case asks.Compare():
                pipeline.world.reached.add(owner)
                schedule.after(pipeline.delay_ms(), lambda: answer(self._compare(effect, owner)), self)
            case asks.AskProbe():
                schedule.after(pipeline.delay_ms(), lambda: answer(self._probe(effect.command)), self)
            case asks.Wait(duration_ms=ms):
                schedule.after(ms, lambda: answer(None), self)
            case _:
                raise AssertionError(effect)

    def _ask_registry(self, effect: Any, answer: Callable[[Any], None]) -> None:
        registry, pipeline = self.pipeline.registry, self.pipeline
        lost = pipeline.happens(pipeline.mix.registry_lost)
        match effect:
            case asks.Claim(requests=requests):
                if lost and pipeline.chance.random() < 0.5:  # out of reach
                    answer(tuple(Go(NO_FENCE) for _ in requests))
                    return
                if lost:  # the reply is lost, and asked for again
                    registry.claim_now(requests)
                answer(registry.claim_now(requests))
            case asks.Renew():
                answer(not lost and registry.renew_now(effect.key, effect.attempt, effect.fence, effect.lease_ms))
            case asks.Settle():
                settle = registry.settle_now
                answer(not lost and settle(effect.key, effect.attempt, effect.fence, effect.state, effect.closing))

    def _write(self, facts: tuple[Any, ...], answer: Callable[[Any], None]) -> None:
        told: dict[int, Written | Unwritten] = {}

        def tell(number: int, what: StoredRecord | bool) -> None:
            told[number] = _written(what)
            if len(told) == len(facts):
                answer(tuple(told[n] for n in range(len(facts))))

        for number, fact in enumerate(facts):
            self.pipeline.write(self, fact, partial(tell, number))

    def _read_back(self, command: Any, effect: asks.ReadBack) -> tuple[LedgerFact, ...] | Unreadable:
        if self.pipeline.happens(self.pipeline.mix.write_refused / 2):
            return Unreadable("the ledger is out of reach")
        count = effect.to_offset - effect.from_offset + 1
        if count <= 0:
            return ()
        topic = self.pipeline.topics.ledger
        if not self._holds(effect.from_offset):
            return Unreadable("what is to be read is gone")
        records = self.pipeline.broker.read(topic, self.lane.partition, effect.from_offset, count)
        key = command.workflow_id.encode()
        found = [LedgerFact(r.offset, decoded(r.value)) for r in records if r.key == key]  # type: ignore[arg-type]
        return tuple(found)

    # --- the world --------------------------------------------------------------------------------------------------

    def _undo(self, effect: asks.CallUndo, owner: str, answer: Callable[[CallAnswer], None]) -> None:
        pipeline, mix, entry = self.pipeline, self.pipeline.mix, effect.entry
        tool = pipeline.tools[entry.tool_name]
        arguments = decode_payload(entry.arguments)
        refuse = pipeline.happens(mix.undo_refused)

        def land() -> CallAnswer:
            if tool.kind.undo_later and not refuse:
                pipeline.doors.take_undo(tool, effect, arguments, owner)
                return Uncertain(taken_for_later("202"))
            said = pipeline.world.undo(tool, arguments, entry.key, owner, pipeline.schedule.now_ms, refuse=refuse)
            pipeline.schedule.say("world", f"undo of {tool.name} {arguments} by {owner}: {said.value}")
            if said is Said.REFUSED:
                kept = tool.kind.keeps_refusals
                return Refused(Failure("Declined", "no"), retryable=pipeline.chance.random() < 0.8, key_refused=kept)
            return Succeeded(nothing=said is Said.NOTHING)

        self._send(land, mix.undo_uncertain, effect.end_within_ms, answer)

    def _call(self, effect: asks.CallForward, attempt: str, answer: Callable[[CallAnswer], None]) -> None:
        pipeline, command = self.pipeline, effect.command
        if not self._holds(command.started_offset):
            answer(NotDeployed(GONE))
            return
        tool = pipeline.tools[command.tool_name]
        started = self._started(command.started_offset)
        given = _given(started)
        refuse = pipeline.happens(pipeline.mix.call_refused)

        def land() -> CallAnswer:
            now_ms = pipeline.schedule.now_ms
            if tool.kind.later and not refuse:
                pipeline.doors.take_again(tool, given, command, attempt)
                return Uncertain(taken_for_later("202"))
            deed = pipeline.world.call(tool, given, command.key, attempt, now_ms, refuse=refuse)
            pipeline.schedule.say("world", f"{tool.name} {given['subject']} sent again: {deed and deed.number}")
            if deed is None:
                return Refused(Failure("Declined", "no"))
            output = deed.output
            return Succeeded(
                output_payload=encode_payload(output), undo_arguments=self._arguments(tool, started, output)
            )

        self._send(land, pipeline.mix.call_uncertain, effect.end_within_ms, answer)

    def _send(
        self, land: Callable[[], CallAnswer], rate: float, within_ms: int, answer: Callable[[CallAnswer], None]
    ) -> None:
        """A request under way: it may never arrive, or its answer may not, or come too late."""
        pipeline, schedule = self.pipeline, self.pipeline.schedule
        if pipeline.happens(rate / 10):
            schedule.after(1, lambda: answer(NotBegun("the pool was full")), self)
            return
        uncertain = pipeline.happens(rate)
        if uncertain and pipeline.chance.random() < 0.3:
            schedule.after(pipeline.delay_ms(), lambda: answer(Uncertain(RESET)), self)
            return
        lands_ms = pipeline.landing_ms(uncertain=uncertain)
        back_ms = lands_ms + pipeline.delay_ms()
        if uncertain or back_ms > within_ms:
            schedule.after(min(pipeline.delay_ms(), within_ms), lambda: answer(Uncertain(RESET)), self)
            schedule.after(lands_ms, lambda: _ignore(land()))
            return

        def arrive() -> None:
            result = land()
            schedule.after(back_ms - lands_ms, lambda: answer(result), self)

        schedule.after(lands_ms, arrive)

    def _verify(self, effect: asks.AskVerify) -> asks.VerifyAnswer:
        pipeline, entry = self.pipeline, effect.entry
        if pipeline.happens(pipeline.mix.question_fails):
            return NobodyKnows(RESET)
        tool = pipeline.tools[entry.tool_name]
        target = pipeline.world.target(tool, decode_payload(entry.arguments))
        if tool.kind.undo == "neither" and target is not None and (owners := pipeline.world.undoing[target.number]):
            # Its remote is at it. Where the 202 was heard that is known; else the remote must say so.
            heard = self._heard_for(entry)
            return IsStillThere() if all(owner in heard for owner in owners) else NobodyKnows(None)
        arguments = decode_payload(entry.arguments)
        gone = pipeline.world.is_gone(tool, arguments, self._shown_before_ms(tool))
        if not gone and tool.kind.undo_later and pipeline.world.is_gone(tool, arguments, pipeline.schedule.now_ms):
            return NobodyKnows(None)  # what it shows is as of then, when it was still at it
        return IsUndone() if gone else IsStillThere()

    def _heard_for(self, entry: UndoEntry) -> set[str]:
        """Whose requests for this undo the remote took, to do it later, as it stands on the ledger."""
        ledger = self.pipeline.topics.ledger
        whole = self.pipeline.broker.whole(
            ledger, self.lane.partition
        )  # a remote knows of itself what the ledger forgets
        facts = (decoded(r.value) for r in whole[entry.started_offset :])
        return {
            fact.owner
            for fact in facts
            if isinstance(fact, UndoEvent)
            and (fact.step_id, fact.generation) == (entry.step_id, entry.generation)
            and fact.error is not None
            and fact.error.type == ACCEPTED
        }

    def _probe(self, command: ProbeCommand) -> ProbeAnswer:
        pipeline = self.pipeline
        if pipeline.happens(pipeline.mix.question_fails):
            return ProbeAnswer(Decision.UNKNOWN, error=RESET)
        if not self._holds(command.started_offset):
            return ProbeAnswer(Decision.UNKNOWN, error=GONE)
        tool = pipeline.tools[command.tool_name]
        if pipeline.world.pending[command.key]:
            return ProbeAnswer(Decision.UNKNOWN)
        deed = pipeline.world.happened(command.key, pipeline.schedule.now_ms)
        if deed is not None and deed.landed_at_ms > (shown_before_ms := self._shown_before_ms(tool)):
            if (
                tool.kind.later
            ):  # what it shows is as of then, when it was still at it: the past of one request, in order
                return ProbeAnswer(Decision.UNKNOWN)
            deed = pipeline.world.happened(command.key, shown_before_ms)
        pipeline.schedule.say("world", f"probe of {command.tool_name}: {deed and deed.number}")
        if deed is None:
            return ProbeAnswer(Decision.ABSENT)
        started = self._started(command.started_offset)
        output = deed.output
        arguments = self._arguments(tool, started, output)
        return ProbeAnswer(Decision.PRESENT, output_payload=encode_payload(output), undo_arguments=arguments)

    def _compare(self, effect: asks.Compare, owner: str) -> asks.Comparison:
        """What the worker does with what the tool's capture reads: the real comparison, of what the ledger holds."""
        pipeline, entry = self.pipeline, effect.entry
        if pipeline.happens(pipeline.mix.question_fails):
            return NobodyKnows(RESET)
        if not self._holds(entry.started_offset) or not self._holds(max(entry.outcome_offset, entry.started_offset)):
            return NobodyKnows(GONE)
        started = self._started(entry.started_offset)
        outcome = self._fact(entry.outcome_offset) if entry.outcome_offset >= 0 else None
        assert outcome is None or isinstance(outcome, StepEvent | Resolution)
        step = step_from_facts(started, outcome, key="")
        image = pipeline.world.look(register_of(dict(step.input)), owner, pipeline.schedule.now_ms)
        return compared(step, started.contract, {"value": image})

    def _shown_before_ms(self, tool: Tool) -> int:
        """A remote may show what it did a little later."""
        lag_ms = LAG_MAX_MS if tool.kind.lags or self.pipeline.happens(self.pipeline.mix.slow) else 0
        return self.pipeline.schedule.now_ms - lag_ms

    def _holds(self, offset: int) -> bool:
        """Whether the ledger has not forgotten what stood there."""
        return offset >= self.pipeline.broker.start(self.pipeline.topics.ledger, self.lane.partition)

    def _fact(self, offset: int) -> Any:
        record = self.pipeline.broker.read(self.pipeline.topics.ledger, self.lane.partition, offset, 1)[0]
        return decoded(record.value)

    def _started(self, offset: int) -> StepEvent:
        fact = self._fact(offset)
        assert isinstance(fact, StepEvent)
        return fact

    @staticmethod
    def _arguments(tool: Tool, started: StepEvent, output: dict[str, object]) -> bytes | None:
        captured = None if started.captured is None else decode_payload(started.captured)
        found = resolve(tool.contract, input=_given(started), output=output, captured=captured)
        return found.data if isinstance(found, Resolved) else None


def _written(what: StoredRecord | bool) -> Written | Unwritten:
    return Written(what.offset) if isinstance(what, StoredRecord) else Unwritten(certain=what)


def _given(started: StepEvent) -> dict[str, Any]:
    given = decode_payload(started.input_payload or b"{}")
    assert isinstance(given, dict)
    return given


def _ignore(answer: CallAnswer) -> None:
    """Nobody waits for it any more."""


def _described(command: UndoCommand | ProbeCommand | ResendCommand) -> str:
    if isinstance(command, UndoCommand):
        members = ", ".join(f"{e.tool_name} {e.generation}/{e.attempt}" for e in command.entries)
        return f"undo of {members} as of {command.as_of}"
    return f"{type(command).__name__} of {command.tool_name} as of {command.as_of}"
