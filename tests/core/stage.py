"""A stage for decisions: one ledger partition, one registry, one clock and scripted answers of the world.

It drives a decision exactly as the worker and the simulation do: take an effect, answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from amends.compensators.effects import (
    AskProbe,
    AskVerify,
    AwaitSent,
    CallAnswer,
    CallForward,
    CallUndo,
    Claim,
    Compare,
    Comparison,
    Effect,
    IsUndone,
    LedgerFact,
    ProbeAnswer,
    ReadBack,
    ReadClock,
    ReadWallClock,
    Renew,
    Report,
    Send,
    Settle,
    ShowsOurs,
    Steps,
    Succeeded,
    Unreadable,
    Unwritten,
    VerifyAnswer,
    Wait,
    Write,
    Written,
)
from amends.compensators.registry import MemoryRegistry
from amends.schemas.commands import ProbeCommand, ResendCommand, UndoCommand, UndoEntry
from amends.schemas.contract import Idempotency
from amends.schemas.facts import Decision, Fact, StepEvent, UndoEvent

AS_OF = 100
LEASE_MS = 1_000
WORKFLOW_OFFSET = 7


def entry(step: str = "s1", *, attempt: int = 1, generation: int = 0, **more: Any) -> UndoEntry:
    terms: dict[str, Any] = {
        "tool_name": f"tool.{step}",
        "handler": f"tool.{step}",
        "key": f"undo-{step}-{generation}",
        "arguments": b"{}",
        "lease_ms": LEASE_MS,
        "settle_ms": 50,
        "idempotency": Idempotency.KEY,
    }
    return UndoEntry(step_id=step, generation=generation, attempt=attempt, **(terms | more))


def run_of(*entries: UndoEntry, at_once: bool = False) -> UndoCommand:
    return UndoCommand("w", WORKFLOW_OFFSET, 1, "default", AS_OF, entries, at_once)


def probe() -> ProbeCommand:
    return ProbeCommand(
        "w", WORKFLOW_OFFSET, 1, "default", AS_OF, "s1", "tool.s1", "tool.s1", 3, ("a1", "a2"), LEASE_MS, "do-s1", 9
    )


def resend() -> ResendCommand:
    return ResendCommand(
        "w",
        WORKFLOW_OFFSET,
        1,
        "default",
        AS_OF,
        "s1",
        "tool.s1",
        1,
        ("a1",),
        "do-s1",
        LEASE_MS,
        50,
        Idempotency.KEY,
        9,
    )


@dataclass
class Stage:
    """`before` stands on the ledger after `as_of`, ahead of everything that is written here."""

    before: Sequence[Fact | None] = ()
    calls: Callable[[str], CallAnswer] = lambda step: Succeeded()
    verifies: list[VerifyAnswer] = field(default_factory=lambda: [IsUndone()])
    compares: list[Comparison] = field(default_factory=lambda: [ShowsOurs()])
    probes: ProbeAnswer = field(default_factory=lambda: ProbeAnswer(Decision.UNKNOWN))
    unwritten: dict[int, Unwritten] = field(default_factory=dict[int, Unwritten])  # by count of facts sent
    read_back_fails: bool = False
    call_takes_ms: int = 0
    ms_per_clock: int = 0
    now_ms: int = 0
    registry: MemoryRegistry = field(init=False)
    ledger: list[LedgerFact] = field(default_factory=list[LedgerFact])
    effects: list[Effect] = field(default_factory=list[Effect])
    sent: int = 0
    _sent_answers: list[Written | Unwritten] = field(default_factory=list[Written | Unwritten])

    def __post_init__(self) -> None:
        self.registry = MemoryRegistry(lambda: self.now_ms)
        self.ledger.extend(LedgerFact(AS_OF + 1 + i, fact) for i, fact in enumerate(self.before))

    def play(self, steps: Steps[Report], *, cut_after: int | None = None) -> Report | None:
        """Drive to the end, or cut off after that many effects were done (None is returned)."""
        answer: Any = None
        self._sent_answers.clear()  # of a decision that was cut off: nobody asks any more
        try:
            while True:
                effect = steps.send(answer)
                self.effects.append(effect)
                answer = self.do(effect)
                if cut_after is not None and len(self.effects) >= cut_after:
                    steps.close()
                    return None
        except StopIteration as stop:
            report: Report = stop.value
            return report

    def do(self, effect: Effect) -> object:
        match effect:
            case Claim(requests=requests):
                return self.registry.claim_now(requests)
            case Renew():
                return self.registry.renew_now(effect.key, effect.attempt, effect.fence, effect.lease_ms)
            case Settle():
                return self.registry.settle_now(effect.key, effect.attempt, effect.fence, effect.state, effect.closing)
            case Write(facts=facts):
                return tuple(self._append(fact) for fact in facts)
            case Send(facts=facts):
                self._sent_answers += [self._append(fact) for fact in facts]
                return None
            case AwaitSent():
                answers, self._sent_answers = tuple(self._sent_answers), []
                return answers
            case ReadBack():
                if self.read_back_fails:
                    return Unreadable("gone")
                return tuple(f for f in self.ledger if effect.from_offset <= f.offset <= effect.to_offset)
            case ReadClock():
                self.now_ms += self.ms_per_clock
                return self.now_ms
            case ReadWallClock():
                return self.now_ms
            case CallUndo() | CallForward():
                self.now_ms += self.call_takes_ms
                return self.calls(effect.entry.step_id if isinstance(effect, CallUndo) else effect.command.step_id)
            case AskVerify():
                return self.verifies.pop(0) if len(self.verifies) > 1 else self.verifies[0]
            case Compare():
                return self.compares.pop(0) if len(self.compares) > 1 else self.compares[0]
            case AskProbe():
                return self.probes
            case Wait():
                self.now_ms += effect.duration_ms
                return None

    def _append(self, fact: Fact) -> Written | Unwritten:
        self.sent += 1
        refused = self.unwritten.get(self.sent)
        if refused is not None:
            return refused
        offset = AS_OF + 1 + len(self.ledger)
        self.ledger.append(LedgerFact(offset, fact))
        return Written(offset)

    def written(self) -> list[Fact]:
        return [found.fact for found in self.ledger[len(self.before) :] if found.fact is not None]

    def undo_facts(self) -> list[str]:
        return [f"{fact.step_id} {fact.status.value}" for fact in self.written() if isinstance(fact, UndoEvent)]

    def step_facts(self) -> list[str]:
        return [f"{fact.attempt} {fact.status.value}" for fact in self.written() if isinstance(fact, StepEvent)]

    def called(self) -> list[str]:
        return [e.entry.step_id for e in self.effects if isinstance(e, CallUndo)]
