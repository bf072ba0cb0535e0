"""C20, C22, C24, C31, C33: an undo that lacks something, is asked for twice, or comes late."""

from __future__ import annotations

import dataclasses

import pytest
from tests.core.ledger import Ledger, contract_of

from amends.processors.state import UndoState
from amends.schemas.commands import UndoCommand, UndoEntry
from amends.schemas.contract import Idempotency
from amends.schemas.facts import Decision, Failure, Party, Resolution, StepStatus, UndoEvent, UndoStatus, WorkflowStatus

STEPS = ("first", "middle", "last")
FOUND = b'{"id":"ch_1"}'
DAY_MS = 24 * 3_600_000


def failed_with_a_lost_answer(lost: str, *, remote: str) -> Ledger:
    """Three calls, of which the answer of one is lost; its undo needs what that answer carried."""
    ledger = Ledger()
    ledger.start()
    keyed = Idempotency.KEY if remote == "takes the call's key" else Idempotency.NEITHER
    contract = contract_of("x", call=keyed, probe=remote == "has a probe")
    for step in STEPS:
        ledger.started(step, contract, undo_arguments=None)
        if step == lost:
            ledger.ended(step, StepStatus.UNKNOWN)
        else:
            ledger.ended(step, StepStatus.SUCCEEDED, undo_arguments=FOUND)
    ledger.said(WorkflowStatus.FAILED)
    return ledger


def undo_all(ledger: Ledger) -> list[str]:
    """Do what is commanded until nothing is; return the steps in the order in which they were undone."""
    order: list[str] = []
    while due := [e for c in ledger.of(UndoCommand) for e in c.entries if e.step_id not in order]:
        assert due[0].arguments == FOUND
        order.append(due[0].step_id)
        ledger.undone(due[0].step_id)
        ledger.wait(10_000)
    return order


# --- C20 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", STEPS)
@pytest.mark.parametrize("remote", ["has a probe", "takes the call's key", "can neither be asked nor told twice"])
def test_an_undo_whose_arguments_the_lost_answer_carried_runs_with_those_that_were_found_or_not_at_all(
    lost: str, remote: str
) -> None:
    ledger = failed_with_a_lost_answer(lost, remote=remote)
    ledger.wait(20_000, until=lambda: bool(ledger.probes() or ledger.resends()))
    if remote == "has a probe":
        ledger.resolve(lost, Decision.PRESENT, "p1", undo_arguments=FOUND, probe_number=0)
    elif remote == "takes the call's key":
        ledger.started(lost, contract_of("x", call=Idempotency.KEY), attempt="r0", writer=Party.COMPENSATOR)
        ledger.ended(lost, StepStatus.SUCCEEDED, attempt="r0", writer=Party.COMPENSATOR, undo_arguments=FOUND)
    undone = undo_all(ledger)
    found = remote != "can neither be asked nor told twice"
    assert undone == [step for step in reversed(STEPS) if found or step != lost]
    assert ledger.phase == ("COMPENSATED" if found else "TURNED")
    assert ledger.incidents() == ({} if found else {"unknown": "OPEN"})


# --- C22 --------------------------------------------------------------------------------------------------------------


def test_a_workflow_whose_undo_has_no_handler_is_an_incident_with_that_reason_and_not_compensated() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("x", contract_of("x", attempts_max=2))
    ledger.said(WorkflowStatus.FAILED)
    missing = Failure("MissingHandler", "no handler undoes the tool x here: deploy the module that declares it")
    for attempt in range(2):
        ledger.undo("x", UndoStatus.STARTED, attempt=attempt)
        ledger.append(UndoEvent("w", "x", 0, attempt, UndoStatus.FAILED, "o", error=missing))
        ledger.wait(5_000)
    (trouble,) = ledger.step("x").troubles
    assert (ledger.phase, trouble.kind) == ("TURNED", "undo_failed")
    assert missing.message in trouble.reason
    ledger.resolve("x", Decision.RETRY, writer=Party.PERSON)  # it is deployed now
    ledger.undone("x", generation=1)
    assert (ledger.phase, ledger.incidents()) == ("COMPENSATED", {"undo_failed": "CLOSED"})


# --- C24 --------------------------------------------------------------------------------------------------------------


def is_due(ledger: Ledger, entry: UndoEntry) -> bool:
    undo = ledger.step(entry.step_id).undo
    return undo is not None and undo.state is UndoState.DUE and undo.attempt == entry.attempt


@pytest.mark.parametrize("broken", STEPS)
def test_an_undo_that_fails_for_ever_ends_with_one_letter_and_one_incident_and_the_others_are_done(broken: str) -> None:
    ledger = Ledger()
    ledger.start()
    for step in STEPS:
        ledger.did(step, contract_of(step, attempts_max=3))
    ledger.said(WorkflowStatus.FAILED)
    over: set[str] = set()
    while due := [e for c in ledger.of(UndoCommand) for e in c.entries if is_due(ledger, e)]:
        entry = due[0]
        ledger.undo(entry.step_id, UndoStatus.STARTED, attempt=entry.attempt)
        end = UndoStatus.FAILED if entry.step_id == broken else UndoStatus.UNDONE
        ledger.undo(entry.step_id, end, attempt=entry.attempt)
        over |= {entry.step_id} - {broken}
        ledger.wait(2_000)
    letters = [emission for emission in ledger.raw if emission.topic.startswith("dlq.amends.undo")]
    assert over == set(STEPS) - {broken}
    assert ledger.incidents() == {"undo_failed": "OPEN"}
    assert len({letter.value for letter in letters}) == 1
    commanded = sum(e.step_id == broken for c in ledger.of(UndoCommand) for e in c.entries)
    ledger.wait(600_000)
    assert sum(e.step_id == broken for c in ledger.of(UndoCommand) for e in c.entries) == commanded


# --- C31 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["at once", "while it runs", "when it was undone"])
@pytest.mark.parametrize("people", [("ann",), ("ann", "bob"), ("ann",) * 20], ids=len)
def test_however_often_and_by_whomever_a_retry_is_asked_for_it_is_one_undo(people: tuple[str, ...], again: str) -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("x", contract_of("x"))
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("x", UndoStatus.STARTED)
    ledger.undo("x", UndoStatus.FAILED, retryable=False)
    dead = ledger.step("x").undo
    assert dead is not None

    def click() -> None:
        for by in people:
            retry = Resolution("w", Decision.RETRY, Party.PERSON, by, step_id="x", version=dead.version)
            ledger.append(retry)

    click()
    if again == "at once":
        click()
    ledger.undo("x", UndoStatus.STARTED, generation=1)
    if again == "while it runs":
        click()
    ledger.undo("x", UndoStatus.UNDONE, generation=1)
    if again == "when it was undone":
        click()
    ledger.wait(60_000)
    assert {entry for command in ledger.commanded() for entry in command} == {("x", 0, 0), ("x", 1, 0)}
    assert ledger.phase == "COMPENSATED"


# --- C33 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", [True, False])
def test_a_letter_redriven_a_day_later_has_the_world_asked_first(verify: bool) -> None:
    """The remote has forgotten its keys: a second try under the old one would be a second effect."""
    contract = contract_of("x", verify=verify, attempts_max=1)
    assert contract.undo is not None
    contract = dataclasses.replace(contract, undo=dataclasses.replace(contract.undo, key_ttl_ms=DAY_MS // 2))
    ledger = Ledger()
    ledger.start()
    ledger.did("x", contract)
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("x", UndoStatus.STARTED)
    ledger.undo("x", UndoStatus.UNKNOWN)
    assert ledger.incidents() == {"undo_failed": "OPEN"}
    before = len(ledger.of(UndoCommand))
    ledger.wait(DAY_MS, step_ms=DAY_MS // 4)
    assert len(ledger.of(UndoCommand)) == before  # nobody asked for it
    ledger.resolve("x", Decision.RETRY, writer=Party.PERSON)
    (entry,) = ledger.of(UndoCommand)[-1].entries
    assert (entry.generation, entry.attempt) == (0, 1)  # the same key, in doubt
    assert entry.verify_first is verify  # without one, a person took it on himself
