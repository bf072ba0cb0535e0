"""Part two of the tutorial: what an agent's code looks like, and what is on record when it ends.

Everything here runs on a ledger in memory, as your own tests can: see `memory_runtime` below. It answers as a processor
does and undoes nothing; the undoing itself is a later chapter.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amends.producers import ProducerSettings, Succeeded, Unconfirmed, recorder, workflow
from amends.producers.testing import Memory, MemoryLedger, memory_runtime
from amends.schemas.commands import Phase
from amends.schemas.contract import Contract, Effect
from amends.tools import KEY, OutsideWorkflow, WorkflowTurned, compensable

SHIPPED: list[str] = []


@compensable("parcels.ship", refused_by=(LookupError,))
def ship(address: str, *, idempotency_key: str = KEY) -> dict[str, str]:
    if address == "nowhere":
        raise LookupError("there is no such address")
    if address == "Slow Lane 1":
        raise TimeoutError("the carrier did not answer")
    SHIPPED.append(address)
    return {"parcel": f"p{len(SHIPPED)}", "asked_with": idempotency_key}


@ship.undo(arguments={"parcel": "output.parcel"}, idempotency="key")
def call_back(parcel: str, *, idempotency_key: str = KEY) -> None:
    SHIPPED.remove(parcel)


@pytest.fixture(autouse=True)
def memory() -> Iterator[Memory]:
    SHIPPED.clear()
    with memory_runtime() as memory:
        yield memory


@pytest.fixture
def ledger(memory: Memory) -> MemoryLedger:
    return memory.ledger


def test_an_agents_code_is_a_scope_with_calls_in_it() -> None:
    with workflow("order-4711", agent="fulfilment") as wf:
        ship("Elm Street 1")
    assert wf.outcome == Succeeded()  # the processor's word, not the agent's


def test_before_each_call_its_intent_is_on_the_ledger_and_after_it_the_outcome(ledger: MemoryLedger) -> None:
    with workflow("order-4711"):
        ship("Elm Street 1")
    assert ledger.statuses("order-4711") == [
        "workflow STARTED",
        "parcels.ship STARTED",
        "parcels.ship SUCCEEDED",
        "workflow SUCCEEDED",
    ]


def test_the_intent_alone_says_how_to_undo_the_call_and_the_outcome_says_with_what(ledger: MemoryLedger) -> None:
    with workflow("order-4711"):
        ship("Elm Street 1")
    started, succeeded = ledger.steps("order-4711")
    assert started.contract is not None  # any process can undo it, the agent's code need not be there
    assert succeeded.undo_arguments == b'{"parcel":"p1"}'


def test_an_exception_that_leaves_the_scope_fails_the_workflow_and_is_still_yours(ledger: MemoryLedger) -> None:
    with pytest.raises(ZeroDivisionError), workflow("order-4711"):  # noqa: PT012
        ship("Elm Street 1")
        _ = 1 / 0
    assert ledger.phase("order-4711") is Phase.TURNED  # from here on it is being undone


def test_a_failed_call_is_not_a_failed_workflow() -> None:
    with workflow("order-4711") as wf:
        try:
            ship("nowhere")
        except LookupError:
            ship("Elm Street 1")  # the agent found another way
    assert wf.outcome == Succeeded()


def test_only_a_declared_refusal_means_that_nothing_happened(ledger: MemoryLedger) -> None:
    with workflow("order-4711", confirm_within="50ms") as wf:
        with pytest.raises(LookupError):
            ship("nowhere")
        with pytest.raises(TimeoutError):
            ship("Slow Lane 1")
    ends = [step.status.value for step in ledger.steps("order-4711") if step.error is not None]
    assert ends == ["FAILED", "UNKNOWN"]
    assert isinstance(wf.outcome, Unconfirmed)  # nobody calls that a success: what is unknown is cleared up first


def test_a_workflow_that_was_turned_from_outside_stops_its_agent(ledger: MemoryLedger) -> None:
    with pytest.raises(WorkflowTurned), workflow("order-4711"):  # noqa: PT012
        ship("Elm Street 1")
        ledger.turn("order-4711")  # a person did, or its lease ran out
        ship("Elm Street 2")
    assert SHIPPED == ["Elm Street 1"]


def test_an_agent_that_comes_back_gets_what_was_done_and_does_it_only_once() -> None:
    with pytest.raises(KeyboardInterrupt), workflow("order-4711"):  # noqa: PT012
        first = ship("Elm Street 1")
        raise KeyboardInterrupt  # neither success nor failure is claimed: the workflow lives until its lease runs out
    with workflow("order-4711", on_existing="resume"):
        assert ship("Elm Street 1") == first
        ship("Elm Street 2")
    assert SHIPPED == ["Elm Street 1", "Elm Street 2"]


def test_outside_a_workflow_a_tool_that_changes_the_world_is_refused() -> None:
    with pytest.raises(OutsideWorkflow):
        ship("Elm Street 1")
    assert not SHIPPED


def test_or_it_is_a_workflow_of_its_own_if_you_say_so() -> None:
    with memory_runtime(ProducerSettings(outside="single-step")) as memory:
        ship("Elm Street 1")
        (started, *_) = memory.ledger.all_facts()
        assert memory.ledger.phase(started.workflow_id) is Phase.SUCCEEDED


def test_what_is_no_declared_tool_is_recorded_by_hand(ledger: MemoryLedger) -> None:
    contract = Contract("crm.update", Effect.COMPENSABLE)
    with workflow("order-4711"), recorder.step("crm.update", {"order": 4711}, contract=contract) as step:
        # your client's call goes here, with step.key as its idempotency key
        step.succeed({"row": 1}, external_resource_ids={"row": "1"})
    assert ledger.statuses("order-4711")[1:3] == ["crm.update STARTED", "crm.update SUCCEEDED"]
