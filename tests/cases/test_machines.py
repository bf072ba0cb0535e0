"""C28, C38, C39, C42: what stands on the ledger, from whatever version and in whatever number."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.core.compatibility import RELEASED, load
from tests.core.ledger import Entry, Ledger, contract_of
from tests.core.record_samples import avro_body

from amends.processors import saga
from amends.schemas import releases
from amends.schemas.codec import Record, encode, fingerprint_of
from amends.schemas.contract import Contract
from amends.schemas.facts import Fact, StepEvent, StepStatus, UndoEvent, UndoStatus, WorkflowEvent, WorkflowStatus

# --- C28: a loop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 30])
def test_a_loop_that_booked_so_often_is_undone_so_often_the_last_first(count: int) -> None:
    ledger = Ledger()
    ledger.start()
    for number in range(count):
        ledger.did(f"booking-{number}", contract_of("book"))
    ledger.said(WorkflowStatus.FAILED)
    order: list[str] = []
    while len(order) < count:
        (step_id, _, _), *_ = ledger.commanded()[-1]
        order.extend(entry[0] for entry in ledger.commanded()[-1])
        for each in order[order.index(step_id) :]:
            ledger.undone(each)
    assert order == [f"booking-{number}" for number in reversed(range(count))]
    assert ledger.phase == "COMPENSATED"


# --- C38: a poison workflow -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poisoned", ["first", "middle", "last"])
def test_a_workflow_whose_fold_raises_is_an_incident_and_the_partition_goes_on(
    poisoned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold, bad = saga.fold, ["intent", "outcome", "failure"][["first", "middle", "last"].index(poisoned)]

    def raising(workflow: Any, fact: Fact, *rest: Any) -> None:
        if fact.workflow_id == "poison" and fact.attributes.get("bad") == bad:
            raise RuntimeError("a bug")
        fold(workflow, fact, *rest)

    monkeypatch.setattr(saga, "fold", raising)
    ledger = Ledger()
    ids, contract = ("before", "poison", "behind"), contract_of("x")
    for name in ids:
        ledger.append(WorkflowEvent(name, 0, WorkflowStatus.STARTED, agent_id="a", lease_ms=30_000))
    for name in ids:
        step = StepEvent(name, f"x-{name}", "p1", 0, StepStatus.STARTED, "x", contract=encode(contract))
        effect, known = contract.effect, b"{}"
        started = dataclasses.replace(step, side_effect_classification=effect, undo_arguments=known)
        ledger.append(dataclasses.replace(started, attributes={"bad": "intent"}))
        ended = dataclasses.replace(step, status=StepStatus.SUCCEEDED, contract=None)
        ledger.append(dataclasses.replace(ended, attributes={"bad": "outcome"}))
        ledger.append(WorkflowEvent(name, 0, WorkflowStatus.FAILED, attributes={"bad": "failure"}))
    for name in ("before", "behind"):
        ledger.workflow_id = name
        ledger.undone(f"x-{name}")
        assert ledger.phase == "COMPENSATED"
    ledger.workflow_id = "poison"
    assert ledger.phase in ("RUNNING", "TURNED")  # open, whatever is told of it later
    assert ledger.incidents()["poisoned"] == "OPEN"
    letters = [emission for emission in ledger.raw if emission.topic == "dlq.amends.ledger"]
    assert [letter.value for letter in letters] == [e.value for e in ledger.entries if _is_bad(e, bad)]


def _is_bad(entry: Entry, bad: str) -> bool:
    return (
        entry.key == b"poison"
        and entry.value is not None
        and f"\x06bad{chr(2 * len(bad))}{bad}".encode() in entry.value
    )


# --- C39: older and newer records -------------------------------------------------------------------------------------


def as_of_release(version: str) -> Callable[[Record], bytes]:
    """Return what writes a record with the schemas of a release, and a contract in it, too."""
    folder = RELEASED / version

    def written(record: Record) -> bytes:
        schema = load(folder / f"{type(record).__name__}.avsc")
        return b"\xc3\x01" + fingerprint_of(schema) + avro_body(record, schema)

    return written


@pytest.mark.parametrize("version", releases.released_versions())
@pytest.mark.parametrize("end", [UndoStatus.UNDONE, UndoStatus.NOTHING_TO_UNDO])
def test_what_an_agent_and_a_compensator_of_any_release_wrote_is_folded_and_undone(
    version: str, end: UndoStatus
) -> None:
    write, contract = as_of_release(version), contract_of("x")
    told = StepEvent("w", "x", "p1", 0, StepStatus.STARTED, "x", contract=write(contract), undo_arguments=b"{}")
    started = dataclasses.replace(told, side_effect_classification=contract.effect)
    ledger = Ledger()
    for fact in (
        WorkflowEvent("w", 0, WorkflowStatus.STARTED, agent_id="a", lease_ms=30_000),
        started,
        dataclasses.replace(told, status=StepStatus.SUCCEEDED, contract=None),
        WorkflowEvent("w", 0, WorkflowStatus.FAILED),
    ):
        ledger.append(None, raw=write(fact), key=b"w")
    assert ledger.commanded() == [[("x", 0, 0)]]
    for status in (UndoStatus.STARTED, end):
        ledger.append(None, raw=write(UndoEvent("w", "x", 0, 0, status, "o")), key=b"w")
    assert (ledger.phase, ledger.incidents()) == ("COMPENSATED", {})


# --- C42: cost --------------------------------------------------------------------------------------------------------


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions `work` calls: what it costs, on any machine however busy."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def long_workflow(steps: int, contract: Contract) -> Ledger:
    ledger = Ledger()
    ledger.start()
    for number in range(steps):
        ledger.did(f"s{number}", contract)
    return ledger


def fact_of_each_kind(ledger: Ledger, steps: int, contract: Contract) -> list[Callable[[], object]]:
    last = f"s{steps - 1}"
    return [
        lambda: ledger.started("new", contract),
        lambda: ledger.ended("new", StepStatus.UNKNOWN),
        lambda: ledger.ended("new", StepStatus.SUCCEEDED),
        lambda: ledger.said(WorkflowStatus.HEARTBEAT),
        lambda: ledger.ended(last, StepStatus.SUCCEEDED),
        lambda: ledger.savepoint("here"),
    ]


def test_a_fact_costs_the_same_in_a_workflow_of_twenty_steps_and_of_two_thousand() -> None:
    contract = contract_of("x")

    def costs(steps: int) -> list[int]:
        ledger = long_workflow(steps, contract)
        return [calls_of(work) for work in fact_of_each_kind(ledger, steps, contract)]

    few, many = costs(20), costs(2_000)
    assert all(large <= small * 1.25 + 20 for small, large in zip(few, many, strict=True)), (few, many)


def test_a_fact_costs_the_same_beside_ten_workflows_and_beside_two_thousand() -> None:
    contract = contract_of("x")

    def cost(others: int) -> int:
        ledger = Ledger()
        for number in range(others):
            ledger.workflow_id = f"w{number}"
            ledger.start()
            ledger.did("x", contract)
        ledger.workflow_id = "w"
        ledger.start()
        return calls_of(lambda: ledger.did("x", contract))

    few, many = cost(10), cost(2_000)
    assert many <= few * 1.25 + 20, (few, many)


def test_what_is_kept_of_a_step_does_not_grow_with_its_results() -> None:
    """A result of 900 kB stays on the ledger; state keeps where it stands."""
    kept = []
    for size in (10, 900_000):
        ledger = Ledger()
        ledger.start()
        ledger.started("x", contract_of("x"), input_payload=b"1" * size)
        ledger.ended("x", StepStatus.SUCCEEDED, output_payload=b"2" * size)
        ledger.said(WorkflowStatus.FAILED)
        ledger.checkpoint()
        kept.append(sum(map(len, ledger.changelog.values())))
        assert max(len(emission.value or b"") for emission in ledger.raw) < 10_000
    assert kept[1] < kept[0] + 100
