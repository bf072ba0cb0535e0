"""A world in which one flow is driven: every answer is chosen by the test, every effect is kept."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from amends.producers.calls import CallBook
from amends.producers.drivers import drive
from amends.producers.effects import (
    Acknowledged,
    Admit,
    AwaitEnd,
    AwaitOwed,
    AwaitStanding,
    Effect,
    Instant,
    Invoke,
    LookAtEcho,
    QueueFact,
    ReadClock,
    ReadHistory,
    Remember,
    Result,
    Returned,
    Standing,
    Write,
    WriteFact,
)
from amends.producers.flow import ScopeTerms
from amends.producers.outcome import Call
from amends.schemas.codec import encode
from amends.schemas.commands import Phase
from amends.schemas.contract import CallTerms, Contract, Idempotency, UndoTerms
from amends.schemas.contract import Effect as EffectClass
from amends.schemas.facts import Fact, StepEvent, WorkflowEvent

R = TypeVar("R")

WORKFLOW = "order-1"
RUNNING = Standing(workflow_offset=7, epoch=0, phase=Phase.RUNNING)
TERMS = ScopeTerms(WORKFLOW, lease_ms=30_000)


def contract(idempotency: Idempotency = Idempotency.KEY, **changes: Any) -> Contract:
    """Return the contract of a charge that is undone by its output's id."""
    fields: dict[str, Any] = {
        "tool_name": "payments.charge",
        "effect": EffectClass.COMPENSABLE,
        "call": CallTerms(idempotency=idempotency, lease_ms=60_000),
        "undo": UndoTerms("payments.charge", "payments", arguments={"charge": "output.id"}),
        "refused_by": ("builtins.PermissionError",),
    }
    return Contract(**(fields | changes))


def call(idempotency: Idempotency = Idempotency.KEY, *, call_id: str | None = None, **changes: Any) -> Call:
    """Return a call of that tool."""
    terms = contract(idempotency, **changes)
    return Call(terms, encode(terms), {"customer": "cus_1", "cents": 500}, call_id)


@dataclass
class World:
    """Answers effects. `writes` are the answers to WriteFact in order, the last one for all that follow."""

    standing: Standing | None = RUNNING
    echo: Standing | None = RUNNING
    end: Standing | None = None
    owed: bool = True
    writes: list[Write] = field(default_factory=lambda: [Acknowledged(8)])
    body: Result = field(default_factory=lambda: Returned({"id": "ch_1"}))
    clock_ms: list[int] = field(default_factory=lambda: [0])
    history: tuple[tuple[int, Fact], ...] = ()
    book: CallBook = field(default_factory=lambda: CallBook(WORKFLOW))
    instance: str = "here"
    effects: list[Effect] = field(default_factory=list)
    interrupt_at: int | None = None
    interruption: BaseException = field(default_factory=KeyboardInterrupt)
    attempts: int = 0
    wall_ms: int = 1_000_000

    def drive(self, flow: Generator[Effect, Any, R]) -> R:
        """Drive `flow` to its end."""
        return drive(flow, self.perform)

    def perform(self, effect: Effect) -> Any:
        self.effects.append(effect)
        if self.interrupt_at == len(self.effects) - 1:
            raise self.interruption
        return self.answer(effect)

    def answer(self, effect: Effect) -> Any:
        match effect:
            case AwaitStanding():
                return self.standing
            case AwaitOwed():
                return self.owed
            case AwaitEnd():
                return self.end
            case LookAtEcho():
                return self.echo
            case ReadClock():
                now = self.clock_ms.pop(0) if len(self.clock_ms) > 1 else self.clock_ms[0]
                return Instant(now, 1_000_000 + now)
            case Admit():
                self.attempts += 1
                return self.book.admit(effect, f"{self.instance}-{self.attempts}", self.wall_ms)
            case WriteFact(fact):
                self._note(fact)
                return self.writes.pop(0) if len(self.writes) > 1 else self.writes[0]
            case QueueFact(fact):
                self._note(fact)
                return None
            case Invoke():
                return self.body
            case ReadHistory():
                return self.history
            case Remember(history):
                self.book.remember(history)
                return None
            case _:
                return None

    def _note(self, fact: StepEvent | WorkflowEvent) -> None:
        if isinstance(fact, StepEvent) and fact.status.value != "STARTED":
            self.book.note(fact)

    # --- what was done ----------------------------------------------------------------------------------------------

    def kinds(self) -> list[str]:
        return [type(effect).__name__ for effect in self.effects]

    def written(self) -> list[str]:
        """Statuses handed to the ledger, in order; a queued one has a star."""
        return [
            effect.fact.status.value + ("*" if isinstance(effect, QueueFact) else "")
            for effect in self.effects
            if isinstance(effect, WriteFact | QueueFact)
        ]

    def facts(self) -> list[StepEvent | WorkflowEvent]:
        return [effect.fact for effect in self.effects if isinstance(effect, WriteFact | QueueFact)]

    def steps(self) -> list[StepEvent]:
        return [fact for fact in self.facts() if isinstance(fact, StepEvent)]

    def invoked(self) -> list[Invoke]:
        return [effect for effect in self.effects if isinstance(effect, Invoke)]
