"""A person gives an undo other arguments: when they are taken, under which key they go, and when they are refused."""

from __future__ import annotations

import pytest
from tests.core.ledger import Ledger, contract_of

from amends.processors.records import decode_step, encode_step
from amends.processors.state import UndoState, arguments_of
from amends.schemas.commands import DeadLetter, Incident, UndoCommand
from amends.schemas.contract import Contract, Effect, Idempotency
from amends.schemas.facts import Decision, Party, StepStatus, UndoStatus, WorkflowStatus
from amends.schemas.keys import undo_key

OLD, NEW = b'{"id": "old"}', b'{"id": "new"}'


def given_up(contract: Contract | None = None, *, attempts: int = 1) -> Ledger:
    """Return a ledger with an undo that was refused for good, after it was tried so often."""
    ledger = Ledger()
    ledger.start()
    ledger.did("x", contract or contract_of("x"), undo_arguments=OLD)
    ledger.said(WorkflowStatus.FAILED)
    for attempt in range(attempts):
        ledger.undo("x", UndoStatus.STARTED, attempt=attempt)
        ledger.undo("x", UndoStatus.FAILED, attempt=attempt, retryable=attempt < attempts - 1)
        ledger.wait(1_000)
    return ledger


def edit(ledger: Ledger, arguments: bytes | None = NEW, *, writer: Party = Party.PERSON, **more: object) -> int:
    return ledger.resolve("x", Decision.EDIT_ARGS, writer=writer, undo_arguments=arguments, **more)


def reason(ledger: Ledger) -> str:
    return next(t.reason for t in ledger.step("x").troubles if t.closed_at_ms is None)


def test_an_edit_is_tried_in_a_new_generation_under_a_key_of_its_own_with_a_new_budget() -> None:
    ledger = given_up(attempts=2)
    at = edit(ledger, version=1)
    (entry,) = ledger.of(UndoCommand)[-1].entries
    assert (entry.generation, entry.attempt, entry.arguments) == (1, 0, NEW)
    assert entry.key == undo_key("x", 1)
    undo = ledger.step("x").undo
    assert undo is not None
    assert (undo.edited_by, undo.edited_offset, undo.spent) == ("someone", at, 0)
    assert ledger.incidents() == {"undo_failed": "CLOSED"}
    ledger.undone("x", generation=1)
    assert ledger.phase == "COMPENSATED"


@pytest.mark.parametrize("state", [UndoState.DUE, UndoState.OPEN, UndoState.UNDONE])
def test_an_edit_never_changes_an_undo_that_is_granted_under_way_or_done(state: UndoState) -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("x", contract_of("x"), undo_arguments=OLD)
    ledger.said(WorkflowStatus.FAILED)
    if state is not UndoState.DUE:
        ledger.undo("x", UndoStatus.STARTED)
    if state is UndoState.UNDONE:
        ledger.undo("x", UndoStatus.UNDONE)
    before = ledger.step("x")
    edit(ledger)
    assert ledger.step("x") == before
    assert before.undo is not None
    assert before.undo.state is state


def test_an_edit_counts_once_and_only_on_the_version_decided_on() -> None:
    ledger = given_up()
    edit(ledger, b'{"id": "late"}', version=0)
    assert arguments_of(ledger.step("x")) == OLD
    edit(ledger, version=1)
    edit(ledger, b'{"id": "second click"}', version=1)
    assert arguments_of(ledger.step("x")) == NEW
    assert ledger.commanded() == [[("x", 0, 0)], [("x", 1, 0)]]


BAD = [(None, "there are none"), (b"{]}", "not JSON"), (b"{%s}" % (b" " * 4_096), "more than 4096")]


@pytest.mark.parametrize(("arguments", "why"), BAD)
def test_arguments_that_cannot_be_used_are_refused_in_the_incident_and_its_dead_letter(
    arguments: bytes | None, why: str
) -> None:
    ledger = given_up()
    before = reason(ledger)
    edit(ledger, arguments, version=1)
    edit(ledger, arguments, version=1)
    assert arguments_of(ledger.step("x")) == OLD
    assert reason(ledger).startswith(f"{before}; the other arguments that someone gave are refused: ")
    assert reason(ledger).count("refused: ") == before.count("refused: ") + 1
    assert why in reason(ledger)
    assert ledger.incidents() == {"undo_failed": "OPEN"}
    assert why in ledger.of(Incident)[-1].detail
    assert why in ledger.of(DeadLetter)[-1].reason + ledger.of(DeadLetter)[-1].text
    edit(ledger, version=1)
    assert arguments_of(ledger.step("x")) == NEW, "what was refused leaves the decision open"


def test_arguments_in_a_record_that_cannot_be_kept_leave_the_workflow_with_an_incident() -> None:
    ledger = given_up()
    edit(ledger, b"[1]", version=1)
    assert ledger.incidents() == {"undo_failed": "OPEN", "unreadable": "OPEN"}


def test_an_edit_is_refused_while_an_attempt_with_the_old_arguments_may_have_taken() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("x", contract_of("x", undo=Idempotency.NEITHER), undo_arguments=OLD)
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("x", UndoStatus.STARTED)
    ledger.undo("x", UndoStatus.UNKNOWN)
    edit(ledger)
    assert "may have taken" in reason(ledger).rpartition("refused:")[2]
    assert arguments_of(ledger.step("x")) == OLD
    assert len(ledger.commanded()) == 1


def test_an_attempt_that_began_when_its_window_had_closed_forbids_other_arguments() -> None:
    for begins in (False, True):
        ledger = Ledger()
        ledger.start()
        ledger.did("x", contract_of("x", window_ms=5_000), undo_arguments=OLD)
        ledger.said(WorkflowStatus.FAILED)
        ledger.wait(10_000)
        if begins:
            ledger.undo("x", UndoStatus.STARTED)
        edit(ledger)
        assert (arguments_of(ledger.step("x")) == OLD) is begins


def test_arguments_that_were_missing_are_given_by_a_person() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.started("x", contract_of("x"), undo_arguments=None)
    ledger.ended("x", StepStatus.SUCCEEDED)
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.incidents() == {"arguments_missing": "OPEN"}
    edit(ledger)
    assert ledger.of(UndoCommand)[-1].entries[0].arguments == NEW
    ledger.undone("x", generation=1)
    assert ledger.phase == "COMPENSATED"


@pytest.mark.parametrize("effect", [Effect.IRREVERSIBLE, Effect.UNCLASSIFIED])
def test_no_edit_has_a_machine_undo_what_only_a_person_may(effect: Effect) -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("x", contract_of("x", effect=effect), undo_arguments=OLD)
    ledger.said(WorkflowStatus.FAILED)
    edit(ledger)
    assert ledger.commanded() == []
    assert "takes none" in reason(ledger)


def test_only_a_person_edits() -> None:
    ledger = given_up()
    edit(ledger, writer=Party.COMPENSATOR)
    assert arguments_of(ledger.step("x")) == OLD
    assert "only a person" in reason(ledger)


def test_what_a_call_says_later_does_not_replace_what_a_person_gave() -> None:
    ledger = given_up(contract_of("x", call=Idempotency.KEY))
    edit(ledger)
    ledger.started("x", contract_of("x", call=Idempotency.KEY), attempt="p2", undo_arguments=OLD)
    ledger.ended("x", StepStatus.SUCCEEDED, attempt="p2", undo_arguments=OLD)
    ledger.resolve("x", Decision.PRESENT, "p2", undo_arguments=OLD)
    assert arguments_of(ledger.step("x")) == NEW


def test_what_a_person_gave_stays_with_its_undo_though_its_call_is_heard_again_behind_the_end() -> None:
    """Seen by the simulation (seeds 2101537, 2105168): the call's own arguments stood beside the name of who had given
    others."""
    ledger = given_up(contract_of("x", call=Idempotency.KEY))
    edit(ledger)
    ledger.undone("x", generation=1)
    done = ledger.step("x").undo
    ledger.ended("x", StepStatus.SUCCEEDED, undo_arguments=OLD)
    ledger.resolve("x", Decision.PRESENT, "p1", undo_arguments=OLD)
    found = ledger.step("x").undo
    assert found is not None
    assert found == done
    assert found.edited_arguments.encode() == NEW


def test_the_undo_of_an_effect_that_comes_to_light_later_runs_with_what_its_own_call_says() -> None:
    ledger = given_up()
    edit(ledger)
    ledger.undone("x", generation=1)
    later = b'{"id": "later"}'
    ledger.started("x", contract_of("x"), attempt="p2", undo_arguments=None)
    ledger.ended("x", StepStatus.SUCCEEDED, attempt="p2", undo_arguments=later)
    ledger.wait(3_000)
    (entry,) = ledger.of(UndoCommand)[-1].entries
    assert (entry.generation, entry.arguments) == (2, later)


def test_an_edit_is_kept_by_a_restart_and_by_a_second_fold() -> None:
    ledger = given_up()
    edit(ledger)
    step = ledger.step("x")
    assert decode_step(encode_step(step)) == step
    ledger.crash()
    assert ledger.step("x") == step
    ledger.refold()
    assert ledger.step("x") == step
