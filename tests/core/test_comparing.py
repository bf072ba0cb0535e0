"""Before-images: an undo that compares puts back what was there only over what its own call wrote.

From three sides: what the comparison says of an image, what an attempt makes of that, and what the fold grants.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.core.ledger import Ledger, contract_of
from tests.core.stage import Stage, entry, run_of

from amends.compensators.comparing import compared
from amends.compensators.decide import decide
from amends.compensators.effects import (
    CallUndo,
    Compare,
    Comparison,
    NobodyKnows,
    ShowsBefore,
    ShowsOther,
    ShowsOurs,
    Succeeded,
    Uncertain,
    Wait,
)
from amends.schemas.codec import encode
from amends.schemas.commands import DeadLetter, Incident, UndoCommand
from amends.schemas.contract import COMPARE, Contract, Idempotency
from amends.schemas.facts import (
    CHANGED_SINCE,
    Decision,
    Failure,
    Party,
    StepStatus,
    UndoEvent,
    UndoStatus,
    WorkflowStatus,
)
from amends.schemas.payload_marks import Opaque
from amends.tools.step import Step

OTHER = ShowsOther(Failure(CHANGED_SINCE, "somebody else changed it since"))
BEFORE = ShowsBefore("as before")


# --- what an image says ---------------------------------------------------------------------------------------------


def _step(captured: Any, **more: Any) -> Step:
    return Step("w", "s", "crm.move", "", "k", {"city": "Bonn"}, captured=captured, **more)


def _contract(**more: Any) -> bytes:
    return encode(replace(contract_of("crm.move", undo=Idempotency.NATURAL), captures=True, restores=COMPARE, **more))


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("Bonn", ShowsOurs),
        ("Rome", ShowsBefore),
        ("Kyiv", ShowsOther),
        (None, ShowsOther),
    ],
)
def test_the_world_shows_what_was_written_or_what_was_before_or_something_else(image: Any, says: type) -> None:
    assert isinstance(compared(_step("Rome", written="Bonn", written_known=True), _contract(), image), says)


@pytest.mark.parametrize(
    ("image", "says"),
    [("Rome", ShowsBefore), ("Bonn", ShowsOther), ("Kyiv", ShowsOther)],
)
def test_without_an_after_image_only_the_before_image_can_be_recognised(image: str, says: type) -> None:
    said = compared(_step("Rome"), _contract(), image)
    assert isinstance(said, says)
    if isinstance(said, ShowsOther):
        assert "nobody knows what the call wrote" in said.error.message


@pytest.mark.parametrize(("image", "says"), [("Rome", ShowsBefore), ("Bonn", ShowsOurs), ("Kyiv", ShowsOther)])
def test_what_a_tool_says_that_it_writes_decides_where_the_call_was_cut_off_inside(image: str, says: type) -> None:
    assert isinstance(compared(_step("Rome"), _contract(writes="input.city"), image), says)


def test_what_only_the_output_tells_does_not_decide_without_it() -> None:
    contract = _contract(writes="output.city")
    assert isinstance(compared(_step("Rome"), contract, "Bonn"), ShowsOther)
    known = _step("Rome", output={"city": "Bonn"}, output_known=True)
    assert isinstance(compared(known, contract, "Bonn"), ShowsOurs)


def test_a_call_that_changed_nothing_has_nothing_to_undo() -> None:
    assert isinstance(compared(_step("Rome", written="Rome", written_known=True), _contract(), "Rome"), ShowsBefore)


def test_values_are_compared_and_not_how_they_are_spelt() -> None:
    step = _step({"a": 1, "b": [1, 2.0]}, written={"a": 2}, written_known=True)
    assert isinstance(compared(step, _contract(), {"b": [1, 2], "a": 1.0}), ShowsBefore)
    assert isinstance(compared(step, _contract(), {"b": [2, 1], "a": 1}), ShowsOther)


def test_what_was_not_kept_is_never_taken_for_equal() -> None:
    opaque = Opaque("a.Kind", "x" * 64, "text")
    assert isinstance(compared(_step(opaque), _contract(), opaque), NobodyKnows)
    assert isinstance(compared(_step("Rome"), _contract(), object()), NobodyKnows)


# --- what an attempt makes of it ------------------------------------------------------------------------------------


def _played(*shows: Comparison, **more: Any) -> tuple[Stage, UndoEvent]:
    given = {"compares": True, **more.pop("entry", {})}
    stage = Stage(compares=list(shows), **more)
    stage.play(decide(run_of(entry(**given)), "o1", "me"))
    outcome = stage.written()[-1]
    assert isinstance(outcome, UndoEvent)
    return stage, outcome


def test_what_we_wrote_is_put_back_and_looked_at_again() -> None:
    stage, outcome = _played(ShowsOurs(), BEFORE)
    assert [type(e) for e in stage.effects if isinstance(e, Compare | CallUndo)] == [Compare, CallUndo, Compare]
    assert (outcome.status, outcome.verified, outcome.evidence) == (UndoStatus.UNDONE, True, "as before")


def test_where_the_world_shows_the_before_image_nothing_is_called() -> None:
    stage, outcome = _played(BEFORE)
    assert (stage.called(), outcome.status, outcome.verified) == ([], UndoStatus.NOTHING_TO_UNDO, True)


def test_after_a_doubt_the_before_image_means_that_the_undo_took() -> None:
    stage, outcome = _played(BEFORE, entry={"verify_first": True})
    assert (stage.called(), outcome.status, outcome.verified) == ([], UndoStatus.UNDONE, True)


def test_over_somebody_else_s_value_nothing_is_called_and_a_person_is_asked() -> None:
    stage, outcome = _played(OTHER)
    assert (stage.called(), outcome.status, outcome.retryable) == ([], UndoStatus.FAILED, False)
    assert outcome.error == OTHER.error


def test_what_can_t_be_read_now_is_tried_again() -> None:
    stage, outcome = _played(NobodyKnows(Failure("X", "down")))
    assert (stage.called(), outcome.status, outcome.retryable) == ([], UndoStatus.FAILED, True)


def test_an_undo_that_says_done_and_shows_nothing_of_it_is_unknown() -> None:
    stage, outcome = _played(ShowsOurs(), calls=lambda _: Succeeded())
    assert (outcome.status, any(isinstance(effect, Wait) for effect in stage.effects)) == (UndoStatus.UNKNOWN, True)
    _, changed = _played(ShowsOurs(), OTHER)
    assert changed.status is UndoStatus.UNKNOWN


def test_an_undo_of_unknown_end_is_left_to_the_next_attempt() -> None:
    _, outcome = _played(ShowsOurs(), calls=lambda _: Uncertain(Failure("X", "cut")))
    assert outcome.status is UndoStatus.UNKNOWN


def test_a_tool_with_a_verify_is_asked_by_it_after_the_handler() -> None:
    stage, outcome = _played(ShowsOurs(), entry={"verify": "tool.s1"})
    assert [type(e) for e in stage.effects].count(Compare) == 1
    assert (outcome.status, outcome.verified) == (UndoStatus.UNDONE, True)


def test_a_comparison_that_takes_half_the_lease_releases_the_attempt() -> None:
    stage, outcome = _played(ShowsOurs(), ms_per_clock=250)
    assert (stage.called(), outcome.status) == ([], UndoStatus.RELEASED)


# --- what the fold grants -------------------------------------------------------------------------------------------


def _compares(undo: Idempotency = Idempotency.NATURAL, call: Idempotency = Idempotency.NEITHER) -> Contract:
    return replace(contract_of("crm.move", undo=undo, call=call), captures=True, restores=COMPARE)


def _failed(ledger: Ledger, error: str) -> None:
    ledger.undo("move", UndoStatus.STARTED)
    failure = Failure(error, "somebody else changed it since")
    ledger.append(UndoEvent("w", "move", 0, 0, UndoStatus.FAILED, "o", retryable=False, error=failure))


def test_a_command_says_that_its_undo_compares() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("move", _compares())
    ledger.said(WorkflowStatus.FAILED)
    assert [e.compares for c in ledger.of(UndoCommand) for e in c.entries] == [True]


def test_a_world_changed_since_is_an_incident_of_its_own_with_a_dead_letter_and_is_a_person_s_to_decide() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("move", _compares())
    ledger.said(WorkflowStatus.FAILED)
    _failed(ledger, CHANGED_SINCE)
    assert ledger.incidents() == {"changed_since": "OPEN"}
    (letter,) = ledger.of(DeadLetter)
    assert "somebody else changed it since" in letter.reason
    (incident,) = ledger.of(Incident)
    assert "to keep it, accept the loss" in incident.detail
    ledger.wait(100_000)
    assert len(ledger.commanded()) == 1
    ledger.resolve("move", Decision.ACCEPT_LOSS, writer=Party.PERSON, version=1)
    assert (ledger.phase, ledger.incidents()) == ("CLOSED_WITH_LOSS", {"changed_since": "CLOSED"})


def test_a_retry_by_a_person_compares_again() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("move", _compares())
    ledger.said(WorkflowStatus.FAILED)
    _failed(ledger, CHANGED_SINCE)
    ledger.resolve("move", Decision.RETRY, writer=Party.PERSON, version=1)
    assert ledger.commanded() == [[("move", 0, 0)], [("move", 1, 0)]]
    ledger.undone("move", generation=1)
    assert (ledger.phase, ledger.incidents()) == ("COMPENSATED", {"changed_since": "CLOSED"})


def test_a_call_of_unknown_outcome_is_compared_and_not_sent_again() -> None:
    for call in (Idempotency.NEITHER, Idempotency.NATURAL, Idempotency.KEY):
        for undo in Idempotency:
            ledger = Ledger()
            ledger.start()
            ledger.started("move", _compares(undo, call))
            ledger.ended("move", StepStatus.UNKNOWN)
            ledger.said(WorkflowStatus.FAILED)
            ledger.wait(5_000)
            assert (ledger.commanded(), ledger.resends()) == ([[("move", 0, 0)]], []), (call, undo)


def test_an_effect_that_lands_after_nothing_was_found_is_compared_again() -> None:
    for call in (Idempotency.NEITHER, Idempotency.KEY):
        for undo in (Idempotency.NATURAL, Idempotency.KEY):
            ledger = Ledger()
            ledger.start()
            ledger.started("move", _compares(undo, call))
            ledger.ended("move", StepStatus.UNKNOWN)
            ledger.said(WorkflowStatus.FAILED)
            ledger.wait(5_000)
            ledger.undo("move", UndoStatus.STARTED)
            ledger.undo("move", UndoStatus.NOTHING_TO_UNDO)
            assert ledger.phase == "COMPENSATED"
            ledger.ended("move", StepStatus.SUCCEEDED)
            assert ledger.commanded()[-1] == [("move", 1, 0)], (call, undo)


def test_an_undo_in_doubt_is_tried_again_at_any_remote_because_it_compares_first() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("move", _compares(Idempotency.NEITHER))
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("move", UndoStatus.STARTED)
    ledger.undo("move", UndoStatus.UNKNOWN)
    ledger.wait(3_000)
    entries = [e for c in ledger.of(UndoCommand) for e in c.entries]
    assert [(e.attempt, e.verify_first) for e in entries] == [(0, False), (1, True)]
