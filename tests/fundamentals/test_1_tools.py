"""Part one of the tutorial: how a tool is declared, so that what it did can be undone.

Read from top to bottom. No server is needed here; a runner of a few lines stands for the part that records calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from amends.schemas.contract import Effect, Idempotency
from amends.schemas.payload import decode_payload, encode_payload
from amends.tools import (
    KEY,
    Absent,
    BoundCall,
    ContractError,
    HandlerRegistry,
    OutsideWorkflow,
    Present,
    Step,
    StillThere,
    Undone,
    Unknown,
    compensable,
    read_only,
)
from amends.tools.resolve import Resolved, Unresolved
from amends.tools.runner import active_runner

WORLD: dict[str, dict[str, Any]] = {}
"""The payment service: charges by idempotency key. A real one is somebody else's, and remembers keys."""


# A tool that changes the world says how in its decorator's name: a charge can be compensated, by a refund.
# `KEY` marks the parameter that gets the idempotency key: the same one, however often the call is tried.
@compensable("payments.charge", refused_by=(PermissionError,))
def charge(customer: str, amount_cents: int, *, idempotency_key: str = KEY) -> dict[str, str]:
    """Charge a customer's card."""
    if customer == "cus_broke":
        raise PermissionError("card declined")
    WORLD.setdefault(idempotency_key, {"customer": customer, "amount": amount_cents, "refunds": set()})
    return {"id": f"ch_{idempotency_key}", "status": "succeeded"}


# Its undo runs later, in another process, with what the ledger knows. `arguments` says where each parameter comes from.
@charge.undo(
    arguments={"charge_id": "output.id"}, idempotency="key", window="90d", residue="two lines on the statement"
)
def refund(charge_id: str, *, idempotency_key: str = KEY) -> None:
    WORLD[charge_id.removeprefix("ch_")]["refunds"].add(idempotency_key)


# If the agent dies inside the call, somebody must find out whether it happened. `Unknown` is always an honest answer.
@charge.probe(settles_in="30s")
def find_charge(step: Step) -> Present | Absent | Unknown:
    return Present(output={"id": f"ch_{step.key}"}) if step.key in WORLD else Absent(evidence="no charge of this key")


# And after the undo, somebody looks whether it took.
@charge.verify
def refund_state(charge_id: str) -> Undone | StillThere | Unknown:
    return Undone() if WORLD[charge_id.removeprefix("ch_")]["refunds"] else StillThere()


class Recorder:
    """Stands for amends.producers, which writes each call to the ledger before it makes it."""

    def __init__(self) -> None:
        self.ledger: list[tuple[bytes, bytes]] = []

    def call(self, bound: BoundCall) -> Any:
        intent = encode_payload(bound.arguments)
        result = bound.invoke("key-1")
        self.ledger.append((intent, encode_payload(result)))
        return result

    async def call_async(self, bound: BoundCall) -> Any:
        raise NotImplementedError


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    WORLD.clear()
    made = Recorder()
    token = active_runner.set(made)
    yield made
    active_runner.reset(token)


def test_a_tool_is_called_like_the_function_it_is(recorder: Recorder) -> None:
    assert charge("cus_1", 500) == {"id": "ch_key-1", "status": "succeeded"}


def test_a_model_does_not_see_the_key() -> None:
    assert list(inspect.signature(charge).parameters) == ["customer", "amount_cents"]
    assert charge.__doc__ == "Charge a customer's card."


def test_outside_a_workflow_nothing_would_undo_it_so_it_does_not_run() -> None:
    with pytest.raises(OutsideWorkflow):
        charge("cus_1", 500)


def test_a_tool_that_only_looks_runs_anywhere() -> None:
    @read_only("payments.list")
    def charges() -> list[str]:
        return sorted(WORLD)

    assert charges() == sorted(WORLD)


def test_all_that_was_declared_is_data_and_travels_with_the_call() -> None:
    contract = charge.tool.contract
    assert contract.effect is Effect.COMPENSABLE
    assert contract.call.idempotency is Idempotency.KEY
    assert contract.undo is not None
    assert contract.undo.lane == "payments"  # the team with the credentials, by default the name up to the first dot
    assert contract.undo.arguments == {"charge_id": "output.id"}


def test_the_undo_is_made_from_the_ledger_alone(recorder: Recorder) -> None:
    charge("cus_1", 500)
    intent, outcome = recorder.ledger[0]

    found = charge.tool.resolve(decode_payload(intent), decode_payload(outcome))
    assert found == Resolved({"charge_id": "ch_key-1"}, b'{"charge_id":"ch_key-1"}')

    worker = HandlerRegistry()  # a worker is told which modules to import; here we hand it the tool
    worker.add(charge)
    undo, verify = worker.undo("payments.charge"), worker.verify("payments.charge")
    assert undo is not None
    assert verify is not None
    assert verify.call(found.arguments, key="undo-1") == StillThere()
    undo.call(found.arguments, key="undo-1")
    undo.call(found.arguments, key="undo-1")  # the key is the same on every try, so the service refunds once
    assert verify.call(found.arguments, key="undo-1") == Undone()
    assert WORLD["key-1"]["refunds"] == {"undo-1"}


def test_an_undo_whose_argument_is_not_known_does_not_run(recorder: Recorder) -> None:
    found = charge.tool.resolve({"customer": "cus_1", "amount_cents": 500})  # the agent died before it heard the id
    assert isinstance(found, Unresolved)

    charge("cus_1", 500)
    step = Step("wf", "step", "payments.charge", "", "key-1", {"customer": "cus_1"})
    assert charge.tool.probe is not None
    answer = charge.tool.probe.call({}, key="key-1", step=step)  # so the world is asked, and knows it
    assert isinstance(answer, Present)
    assert isinstance(charge.tool.resolve(step.input, answer.output), Resolved)


def test_a_declared_refusal_means_that_nothing_happened(recorder: Recorder) -> None:
    with pytest.raises(PermissionError) as caught:  # what a tool raises reaches the agent as it is
        charge("cus_broke", 500)
    assert charge.tool.refuses(caught.value)
    assert not charge.tool.refuses(TimeoutError())  # anything else leaves open whether it happened


def test_a_mistake_is_found_where_it_is_written_and_not_when_the_undo_is_needed() -> None:
    @compensable("stock.reserve")
    def reserve(sku: str) -> dict[str, str]:
        return {"reservation": sku}

    def release(reservation: str) -> None: ...

    with pytest.raises(ContractError, match=r"test_1_tools\.py:\d+: the undo has no parameter 'reservatoin'; did you"):
        reserve.undo(arguments={"reservatoin": "output.reservation"})(release)
