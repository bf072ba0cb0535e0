"""Two processes of one agent make the same call under two ids of a model, in every order of what they do."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from tests.core.flows import call
from tests.core.folded import folded_runtime

from amends.producers import ProducerSettings, Runtime, workflow
from amends.producers.drivers import End, advance
from amends.producers.effects import Admit, Effect, Invoke, ReadOthers, Returned, WriteFact
from amends.producers.flow import call_flow
from amends.producers.outcome import Call
from amends.schemas.contract import STRICT, Idempotency
from amends.tools.errors import AlreadyRunning, OutcomeUnknown

STEPS = 5  # Admit, STARTED, ReadOthers, Invoke, the outcome
SEEN_BY_OTHERS = (Admit, WriteFact, ReadOthers, Invoke)


class Agent:
    """One process, driven from one effect that the other can see the traces of to the next."""

    def __init__(self, wf: workflow, asked: Call, world: list[str]) -> None:
        self.result: Any = None
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
        while not isinstance(self._next, (*SEEN_BY_OTHERS, End)):
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
        except (AlreadyRunning, OutcomeUnknown) as refusal:
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
