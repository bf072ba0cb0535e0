"""Two processes of one agent make the same call in every order of what they do: under two ids of a model, or with one
approval that both have waited for."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from tests.core.flows import call
from tests.core.folded import FoldedLedger, folded_runtime

from amends.producers import ProducerSettings, Runtime, clock, workflow
from amends.producers.drivers import End, advance
from amends.producers.effects import Admit, Effect, Invoke, ReadOthers, Returned, WriteFact
from amends.producers.flow import call_flow
from amends.producers.outcome import Call
from amends.schemas.codec import encode
from amends.schemas.contract import STRICT, Idempotency
from amends.schemas.facts import Decision, Party, Resolution, StepStatus
from amends.tools.errors import AlreadyRunning, NotApproved, OutcomeUnknown

STEPS = 5  # Admit, STARTED, ReadOthers, Invoke, the outcome
SEEN_BY_OTHERS = (Admit, WriteFact, ReadOthers, Invoke)


class Agent:
    """One process, driven from one effect that the other can see the traces of to the next."""

    def __init__(
        self, wf: workflow, asked: Call, world: list[str], sees: tuple[type[Effect], ...] = SEEN_BY_OTHERS
    ) -> None:
        self.result: Any = None
        self._sees = sees
        self._scope = wf._session.scope
        self._world = world
        self._flow: Generator[Effect, Any, Any] = call_flow(asked, self._scope.terms)
        self._next: Effect | End = advance(self._flow, None)
        self._go_on()

    def act(self) -> None:
        if not isinstance(self._next, End):
            self._perform(self._next)
            self._go_on()

    def _go_on(self) -> None:
        while not isinstance(self._next, End) and not isinstance(self._next, self._sees):
            self._perform(self._next)
        if isinstance(self._next, End) and self.result is None:
            self.result = self._next.value

    def _perform(self, effect: Effect) -> None:
        answer: Any = None
        if isinstance(effect, Invoke):
            self._world.append(effect.key)
            answer = Returned({"id": f"ch_{len(self._world)}"})
        else:
            answer = self._scope.perform(effect)
        try:
            self._next = advance(self._flow, answer)
        except (AlreadyRunning, OutcomeUnknown, NotApproved) as refusal:
            self.result, self._next = refusal, End(None)


@pytest.mark.parametrize("kind", [Idempotency.NEITHER, Idempotency.KEY])
@pytest.mark.parametrize("fence", ["echo", STRICT])
def test_in_every_order_two_processes_make_an_equal_call_once(kind: Idempotency, fence: str) -> None:
    made = []
    for chosen in combinations(range(2 * STEPS), STEPS):
        world: list[str] = []
        with folded_runtime() as folded:
            other = Runtime(ProducerSettings(standing_within_ms=500, confirm_within_ms=500), folded.ledger)
            with workflow("w") as one, workflow("w", on_existing="resume", runtime=other) as two:
                agents = [
                    Agent(wf, _named(call(kind, fence=fence), name), world) for wf, name in ((one, "a-1"), (two, "b-1"))
                ]
                for place in range(2 * STEPS):
                    agents[0 if place in chosen else 1].act()
                for agent in agents:
                    agent.act()
                one.leave_open("1h")
                two.leave_open("1h")
            other.close()
        assert len(world) == 1, chosen
        results = [agent.result for agent in agents]
        assert Returned({"id": "ch_1"}) in results
        made.append(results.count(Returned({"id": "ch_1"})))
    assert set(made) == {1, 2}, "the other one is refused, or has the result of the first"


def _named(asked: Call, tool_call_id: str) -> Call:

    return replace(asked, tool_call_id=tool_call_id)


@pytest.mark.parametrize("knows", [True, False], ids=["who knows of the other", "who does not"])
@pytest.mark.parametrize("kind", [Idempotency.NEITHER, Idempotency.KEY])
def test_in_every_order_two_processes_that_wait_for_one_approval_have_one_effect(
    kind: Idempotency, *, knows: bool
) -> None:
    """A remote that takes a key takes both sends for one; at another the approval is used by one of them."""
    asked = _approved(call(kind))
    steps = 4  # Admit, STARTED, Invoke, the outcome; whoever comes too late asks again in vain
    for chosen in combinations(range(2 * steps), steps):
        world: list[str] = []
        with folded_runtime(approval_within_ms=1) as folded:
            others = [
                Runtime(
                    ProducerSettings(standing_within_ms=500, confirm_within_ms=500, approval_within_ms=1), folded.ledger
                )
                for _ in range(2)
            ]
            with workflow("w") as first:
                asks = Agent(first, asked, world, sees=BESIDE)
                for _ in range(3):
                    asks.act()
                first.leave_open("1h")
            _approve(folded.ledger)
            with (
                workflow("w", on_existing="resume", runtime=others[0]) as one,
                workflow("w", on_existing="resume", runtime=others[1]) as two,
            ):
                agents = [Agent(wf, asked, world, sees=BESIDE) for wf in (one, two)]
                for wf in (one, two):
                    wf._session.scope._others._seen_at_ms = 0 if knows else None
                for place in [0 if place in chosen else 1 for place in range(2 * steps)] + [0, 1] * steps:
                    agents[place].act()
                one.leave_open("1h")
                two.leave_open("1h")
            for other in others:
                other.close()
        assert len(set(world)) == 1, chosen
        assert kind is Idempotency.KEY or len(world) == 1, chosen
        results = [agent.result for agent in agents]
        assert any(isinstance(result, Returned) for result in results), (chosen, results)
        held = folded.ledger.partition.workflow("w")
        assert held is not None
        assert [trouble.kind for _, trouble in held.open_troubles()] == [], chosen


BESIDE = (Admit, WriteFact, Invoke)


def _approved(asked: Call) -> Call:
    contract = replace(asked.contract, approval_ms=60_000)
    return replace(asked, contract=contract, contract_bytes=encode(contract), call_id="c-1")


def _approve(ledger: FoldedLedger) -> None:
    fact = next(fact for fact in ledger.steps("w") if fact.status is StepStatus.REQUESTED)
    assert fact.approval is not None
    ledger.add(
        Resolution(
            "w",
            Decision.APPROVE,
            Party.PERSON,
            "bob",
            step_id=fact.step_id,
            step_epoch=fact.epoch,
            argument_digest=fact.approval.argument_digest,
            version=1,
            expires_at_ms=clock.wall_ms() + 60_000,
        )
    )
