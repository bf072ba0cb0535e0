"""A long call is alive as long as it is under way here, and one that hangs for ever still ends."""

from __future__ import annotations

import dataclasses

import pytest
from tests.core.flows import TERMS
from tests.core.ledger import Ledger, contract_of

from amends.producers import clock
from amends.producers.effects import Acknowledged, Standing
from amends.producers.scope import Scope
from amends.producers.scope_flow import Opening
from amends.producers.testing import MemoryLedger
from amends.schemas.commands import Phase
from amends.schemas.facts import StepEvent, StepStatus

LEASE_MS = 900
CALL_MAX_MS = 60_000


class Process:
    def __init__(self) -> None:
        self.ledger = MemoryLedger()

    def next_attempt(self) -> str:
        return "a-1"

    def hurry(self, lease_ms: int) -> None:
        pass


@pytest.fixture
def scope() -> Scope:
    """A scope of which the ledger has a STARTED, and no call yet."""
    scope = Scope(Opening(dataclasses.replace(TERMS, call_max_ms=CALL_MAX_MS), "i"), Process())
    scope.started_offset, scope.alive = 7, True
    scope.standing = Standing(7, 0, Phase.RUNNING)
    return scope


def begun(scope: Scope, attempt: str = "a-1", lease_ms: int = LEASE_MS) -> int:
    step = StepEvent("order-1", "s", attempt, 0, StepStatus.STARTED, "t", lease_ms=lease_ms)
    scope._noted(step)
    assert isinstance(scope._written(step, Acknowledged(1)), Acknowledged)
    return scope._open[attempt].beat_at_ms


def beats(scope: Scope, now_ms: int) -> list[str]:
    return [f"{fact.attempt if isinstance(fact, StepEvent) else 'agent'}" for fact in scope.beats(now_ms, 0)]


def test_a_long_call_is_said_to_be_alive_until_it_hangs_and_its_agent_no_longer(scope: Scope) -> None:
    at_ms = begun(scope)
    for passed_ms in range(300, CALL_MAX_MS, 300):
        assert beats(scope, at_ms + passed_ms) == ["a-1"]
    for passed_ms in range(CALL_MAX_MS, CALL_MAX_MS + 60_000, 300):
        assert beats(scope, at_ms + passed_ms) == []


def test_other_calls_of_a_workflow_with_one_that_hangs_go_on(scope: Scope) -> None:
    at_ms = begun(scope)
    begun(scope, "a-2", lease_ms=2 * CALL_MAX_MS)  # a lease of its own that is longer
    assert beats(scope, at_ms + CALL_MAX_MS + 1_000) == ["a-2"]


def test_a_call_that_ends_after_all_gives_its_agent_back_its_heartbeat(scope: Scope) -> None:
    at_ms = begun(scope)
    assert beats(scope, at_ms + CALL_MAX_MS) == []
    scope._noted(StepEvent("order-1", "s", "a-1", 0, StepStatus.SUCCEEDED, "t"))
    assert beats(scope, clock.elapsed_ms() + TERMS.lease_ms) == ["agent"]


def test_a_call_that_was_given_more_time_does_not_hang_before_it(scope: Scope) -> None:
    at_ms = begun(scope)
    scope.may_take("a-1", 2 * CALL_MAX_MS)
    assert beats(scope, at_ms + CALL_MAX_MS + 1_000) == ["a-1"]
    assert beats(scope, at_ms + 2 * CALL_MAX_MS + 1_000) == []


def test_a_workflow_with_a_call_that_hangs_turns_and_the_call_is_unknown() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.started("t", contract_of("t", probe=True), lease_ms=LEASE_MS)
    for _ in range(20):
        ledger.wait(300)
        ledger.append(StepEvent("w", "t", "p1", 0, StepStatus.HEARTBEAT, "t"))
    assert ledger.phase == "RUNNING"
    assert ledger.step("t").attempts[0].state == "open"
    ledger.wait(90_000, step_ms=500)
    assert ledger.phase == "TURNED"
    assert ledger.step("t").attempts[0].state == "unknown"
    assert ledger.probes()


def test_the_heartbeats_of_a_call_renew_the_lease_of_its_agent_too() -> None:
    ledger = Ledger()
    ledger.start(lease_ms=2_000)
    ledger.started("t", contract_of("t"), lease_ms=LEASE_MS)
    for _ in range(40):
        ledger.wait(300)
        ledger.append(StepEvent("w", "t", "p1", 0, StepStatus.HEARTBEAT, "t"))
    assert ledger.phase == "RUNNING"
