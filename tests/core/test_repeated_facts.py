"""A client that recovers from a time-out may write again what stands already: to a scope its own facts stay its own."""

from __future__ import annotations

import pytest
from tests.core.folded import FoldedLedger

from amends.producers import Runtime, workflow
from amends.producers.effects import Acknowledged
from amends.producers.settings import ProducerSettings
from amends.schemas.facts import StepEvent, WorkflowEvent
from amends.tools import compensable
from amends.tools.errors import AlreadyRunning

WAITS = {"standing_within_ms": 500, "owed_within_ms": 500, "confirm_within_ms": 500}


class RepeatingLedger(FoldedLedger):
    """Writes each fact three times, and acknowledges the copy of that number."""

    def __init__(self, acknowledged: int) -> None:
        super().__init__()
        self.acknowledged = acknowledged

    def _append(self, fact: StepEvent | WorkflowEvent) -> Acknowledged:
        copies = [super(RepeatingLedger, self)._append(fact) for _ in range(3)]
        return copies[self.acknowledged]


@compensable("shop.order")
def order(item: str) -> dict[str, str]:
    return {"id": f"o-{item}-1"}


@order.undo(arguments={"number": "output.id"}, idempotency="natural", commutes=True)
def cancel(number: str) -> None:
    """Nothing to see."""


@pytest.mark.parametrize("acknowledged", [0, 1, 2])
def test_a_scope_whose_facts_were_written_thrice_is_its_own_and_succeeds(acknowledged: int) -> None:
    runtime = Runtime(ProducerSettings(**WAITS), RepeatingLedger(acknowledged))
    try:
        with workflow("w", runtime=runtime) as running:
            assert order("tea") == {"id": "o-tea-1"}
        assert running.outcome is not None
        assert type(running.outcome).__name__ == "Succeeded"
    finally:
        runtime.close()


@pytest.mark.parametrize("acknowledged", [0, 1, 2])
def test_a_second_scope_of_the_same_process_is_refused_all_the_same(acknowledged: int) -> None:
    runtime = Runtime(ProducerSettings(**WAITS), RepeatingLedger(acknowledged))
    try:
        with workflow("w", runtime=runtime):
            order("tea")
            with pytest.raises(AlreadyRunning), workflow("w", runtime=runtime, detached=True):
                order("milk")
    finally:
        runtime.close()


def _fail(runtime: Runtime) -> None:
    with workflow("w", runtime=runtime):
        order("tea")
        raise ZeroDivisionError


def test_a_failed_scope_whose_facts_were_written_thrice_is_undone_once() -> None:
    ledger = RepeatingLedger(2)
    runtime = Runtime(ProducerSettings(**WAITS), ledger)
    try:
        with pytest.raises(ZeroDivisionError):
            _fail(runtime)
        assert ledger.phase("w") == "COMPENSATED"
        assert len(ledger.undone) == 1
    finally:
        runtime.close()
