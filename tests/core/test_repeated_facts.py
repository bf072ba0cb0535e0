"""A client that recovers from a time-out may write again what stands already: to a scope its own facts stay its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.core.folded import FoldedLedger
from tests.core.ledger import Ledger, contract_of

from amends.producers import Runtime, clock, workflow
from amends.producers.outside import use
from amends.producers.settings import ProducerSettings
from amends.schemas.commands import Phase
from amends.schemas.contract import Idempotency
from amends.schemas.facts import (
    Decision,
    Fact,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)
from amends.tools import compensable, irreversible
from amends.tools.errors import AlreadyRunning, NotApproved

WAITS = {"standing_within_ms": 500, "owed_within_ms": 500, "confirm_within_ms": 500}


class RepeatingLedger(FoldedLedger):
    """Writes each fact three times, whoever writes it, and acknowledges the copy of that number."""

    def __init__(self, acknowledged: int = 2) -> None:
        super().__init__()
        self.acknowledged = acknowledged

    def add(self, fact: Fact) -> int:
        return [super(RepeatingLedger, self).add(fact) for _ in range(3)][self.acknowledged]

    def troubles(self, workflow_id: str) -> list[str]:
        """The kinds of all incidents there were."""
        found = self.partition.workflow(workflow_id)
        assert found is not None
        kinds = [trouble.kind for step in found.steps for trouble in step.troubles]
        return [*kinds, *(trouble.kind for trouble in found.header.troubles)]


def runtime_on(ledger: RepeatingLedger) -> Runtime:
    return Runtime(ProducerSettings(**WAITS), ledger)


@pytest.fixture(params=[0, 1, 2], ids="acknowledged {}".format)
def ledger(request: pytest.FixtureRequest) -> Iterator[RepeatingLedger]:
    """The ledger of this process, for the time of a test."""
    found = RepeatingLedger(request.param)
    runtime = runtime_on(found)
    before = use(runtime)
    MADE.clear()
    try:
        yield found
    finally:
        use(before)
        runtime.close()


MADE: list[str] = []


@compensable("shop.order")
def order(item: str) -> dict[str, str]:
    MADE.append(item)
    return {"id": f"o-{item}-1"}


@order.undo(arguments={"number": "output.id"}, idempotency="natural", commutes=True)
def cancel(number: str) -> None:
    """Nothing to see."""


@compensable("shop.ask", refused_by=(KeyError,), failed_calls_max=1)
def ask(item: str) -> str:
    raise KeyError(item)


@ask.undo(arguments={"item": "input.item"}, idempotency="natural", commutes=True)
def forget(item: str) -> None:
    """Nothing to see."""


@irreversible("bank.wire", approval="1h")
def wire(to: str) -> str:
    MADE.append(to)
    return to


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


# --- facts of the workflow --------------------------------------------------------------------------------------------


def test_a_child_that_was_announced_thrice_is_undone_once_for_its_parent(ledger: RepeatingLedger) -> None:
    def parent() -> None:
        order("tea")
        with workflow("child"):
            order("milk")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), workflow("w"):
        parent()
    assert ledger.phase("w") is ledger.phase("child") is Phase.COMPENSATED
    assert len(ledger.undone) == 2
    assert ledger.troubles("w") == ledger.troubles("child") == []


def test_a_savepoint_and_an_undoing_that_were_written_thrice_are_one(ledger: RepeatingLedger) -> None:
    with workflow("w") as running:
        order("tea")
        running.savepoint("s")
        order("milk")
        running.undo_to("s")
        order("jam")
    assert ledger.phase("w") is Phase.SUCCEEDED
    assert len(ledger.undone) == 1
    found = ledger.partition.workflow("w")
    assert found is not None
    assert found.header.epoch == 1


def test_of_a_savepoint_that_was_written_thrice_a_resumed_agent_meets_one(ledger: RepeatingLedger) -> None:
    with workflow("w") as running:
        running.savepoint("s")
        order("tea")
        running.leave_open("1h")
    with workflow("w", on_existing="resume") as running:
        running.savepoint("s")
        order("tea")
        running.savepoint("s")  # a second one
        order("milk")
        running.undo_to("s")
    assert len(ledger.undone) == 1, "the tea stood before the second savepoint"


def test_what_a_person_asked_for_thrice_is_undone_once_and_the_agent_goes_on_once(ledger: RepeatingLedger) -> None:
    asked = WorkflowEvent(
        "w", 0, WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON, by="alice", savepoint="s"
    )  # fmt: skip
    with workflow("w") as running:
        running.savepoint("s")
        order("tea")
        ledger.add(asked)
        running.undo_to("s")
        order("milk")
    assert ledger.phase("w") is Phase.SUCCEEDED
    assert len(ledger.undone) == 1


# --- facts of calls ---------------------------------------------------------------------------------------------------


def test_a_call_that_failed_and_said_so_thrice_is_one_of_the_budget(ledger: RepeatingLedger) -> None:
    with workflow("w"), pytest.raises(KeyError):
        ask("tea")
    assert ledger.phase("w") is Phase.SUCCEEDED


def test_a_call_that_was_asked_for_and_approved_thrice_is_made_once(ledger: RepeatingLedger) -> None:
    with workflow("w", requested_by="ann", agent="payer"):
        with pytest.raises(NotApproved):
            wire.options(approval_within="20ms")("acme")
        _approve(ledger)
        assert wire.options(approval_within="20ms")("acme") == "acme"
        with pytest.raises(NotApproved):
            wire.options(approval_within="20ms")("acme")  # a second one: what was approved is used
    assert MADE == ["acme"]
    assert "not_approved" not in ledger.troubles("w")
    assert len([f for f in ledger.steps("w") if f.status is StepStatus.STARTED]) == 3, "one call"


def test_of_two_processes_whose_facts_were_written_thrice_one_makes_the_call(ledger: RepeatingLedger) -> None:
    other = runtime_on(ledger)
    try:
        with workflow("w") as running:
            order("tea")
            with workflow("w", on_existing="resume", runtime=other) as second:
                theirs = order.options(tool_call_id="b")("milk")
                second.leave_open("1h")
            assert order.options(tool_call_id="a")("milk") == theirs
            running.leave_open("1h")
    finally:
        other.close()
    assert MADE == ["tea", "milk"]


def _approve(ledger: RepeatingLedger) -> None:
    asked = [fact for fact in ledger.steps("w") if fact.status is StepStatus.REQUESTED][-1]
    assert asked.approval is not None
    until_ms = clock.wall_ms() + 60_000
    said = Resolution(
        "w", Decision.APPROVE, Party.PERSON, "bob", step_id=asked.step_id, step_epoch=asked.epoch,
        argument_digest=asked.approval.argument_digest, version=1, expires_at_ms=until_ms,
    )  # fmt: skip
    ledger.add(said)


# --- facts of undos, probes and people --------------------------------------------------------------------------------


class Thrice(Ledger):
    """A fold to which each fact comes three times, on three places."""

    def append(self, fact: Fact | None, *, raw: bytes | None = None, key: bytes | None = b"") -> int:
        first, *_ = [super(Thrice, self).append(fact, raw=raw, key=key) for _ in range(3)]
        return first


def owing(*, once: bool, **terms: Any) -> Ledger:
    """A workflow that failed, and owes the undo of one step."""
    ledger = Ledger() if once else Thrice()
    ledger.start()
    ledger.started("s", contract_of("s", verify=True, **terms))
    ledger.ended("s", StepStatus.SUCCEEDED)
    ledger.said(WorkflowStatus.FAILED)
    return ledger


def stands(ledger: Ledger) -> tuple[object, ...]:
    """How it stands with the undo, whatever stands where."""
    undo = ledger.step("s").undo
    assert undo is not None
    return undo.state, undo.generation, undo.attempt, undo.spent, undo.doubt, undo.version, ledger.incidents()


ENDS = [status for status in UndoStatus if status is not UndoStatus.STARTED]


@pytest.mark.parametrize("status", ENDS)
def test_an_attempt_of_an_undo_that_began_and_ended_thrice_is_one_attempt(status: UndoStatus) -> None:
    found = []
    for once in (True, False):
        ledger = owing(once=once)
        ledger.undo("s", UndoStatus.STARTED)
        ledger.undo("s", status)
        found.append(stands(ledger))
    assert found[0] == found[1]


def test_what_a_person_ruled_thrice_is_ruled_once() -> None:
    found = []
    for once in (True, False):
        ledger = owing(once=once, attempts_max=1)
        ledger.undo("s", UndoStatus.STARTED)
        ledger.undo("s", UndoStatus.FAILED)
        undo = ledger.step("s").undo
        assert undo is not None
        ledger.resolve("s", Decision.RETRY, writer=Party.PERSON, version=undo.version)
        found.append(stands(ledger))
    assert found[0] == found[1]
    assert found[0][:2] == ("due", 1)


@pytest.mark.parametrize("decision", [Decision.ABSENT, Decision.PRESENT, Decision.UNKNOWN])
def test_what_a_probe_found_thrice_is_one_of_its_budget(decision: Decision) -> None:
    found = []
    for once in (True, False):
        ledger = Ledger() if once else Thrice()
        ledger.start()
        ledger.started("s", contract_of("s", probe=True))
        ledger.ended("s", StepStatus.UNKNOWN)
        ledger.said(WorkflowStatus.FAILED)
        ledger.resolve("s", decision, "p1", probe_number=0)
        found.append((ledger.step("s").probes, ledger.phase, ledger.incidents()))
    assert found[0] == found[1]


def test_a_call_that_was_sent_again_and_said_so_thrice_is_one_more_send() -> None:
    found = []
    for once in (True, False):
        ledger = Ledger() if once else Thrice()
        ledger.start()
        ledger.started("s", contract_of("s", call=Idempotency.KEY), undo_arguments=None)
        ledger.ended("s", StepStatus.UNKNOWN)
        ledger.said(WorkflowStatus.FAILED)
        for status in (StepStatus.STARTED, StepStatus.UNKNOWN):
            ledger.append(StepEvent("w", "s", "c1", 1, status, "s", writer=Party.COMPENSATOR))
        found.append((ledger.step("s").resends, len(ledger.step("s").attempts), ledger.incidents()))
    assert found[0] == found[1] == (1, 2, {})
