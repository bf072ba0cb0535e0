"""Facts arrive at least once: a repeat is no news."""

from __future__ import annotations

from tests.core.ledger import Ledger, contract_of

from amends.schemas.contract import Idempotency
from amends.schemas.facts import Party, StepEvent, StepStatus, UndoStatus, WorkflowStatus

NATURAL = contract_of("natural", call=Idempotency.NATURAL)


def undone_by_the_world() -> Ledger:
    ledger = Ledger()
    ledger.start()
    ledger.did("natural", NATURAL)
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("natural", UndoStatus.STARTED)
    ledger.undo("natural", UndoStatus.NOTHING_TO_UNDO)
    return ledger


def test_a_repeated_success_is_no_new_effect_where_nothing_was_to_be_undone() -> None:
    ledger = undone_by_the_world()
    ledger.ended("natural", StepStatus.SUCCEEDED)
    assert ledger.phase == "COMPENSATED"
    assert ledger.commanded() == [[("natural", 0, 0)]]


def test_an_end_that_contradicts_a_success_is_no_new_effect() -> None:
    ledger = undone_by_the_world()
    ledger.ended("natural", StepStatus.FAILED)
    assert ledger.phase == "COMPENSATED"
    assert ledger.incidents() == {"contradiction": "OPEN"}


def test_a_success_that_comes_to_light_after_nothing_was_found_is_undone() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.started("natural", NATURAL, attempt="p1")
    ledger.ended("natural", StepStatus.UNKNOWN, attempt="p1")
    ledger.started("natural", NATURAL, attempt="p2")
    ledger.ended("natural", StepStatus.SUCCEEDED, attempt="p2")
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(1_500)
    ledger.undo("natural", UndoStatus.STARTED)
    ledger.undo("natural", UndoStatus.NOTHING_TO_UNDO)
    assert ledger.phase == "COMPENSATED"
    ledger.ended("natural", StepStatus.SUCCEEDED, attempt="p1")
    assert ledger.phase == "TURNED"
    assert ledger.commanded()[-1] == [("natural", 1, 0)]


def test_a_resend_given_up_on_gives_its_place_back_once_however_often_it_says_so() -> None:
    keyed = contract_of("keyed", call=Idempotency.KEY)
    ledger = Ledger()
    ledger.start()
    ledger.started("keyed", keyed, undo_arguments=None)
    ledger.ended("keyed", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.FAILED)
    for attempt in ("c1", "c2"):
        for status in (StepStatus.STARTED, StepStatus.UNKNOWN if attempt == "c1" else StepStatus.NOT_EXECUTED):
            fact = StepEvent("w", "keyed", attempt, 1, status, "keyed", writer=Party.COMPENSATOR)
            ledger.append(fact)
    ledger.append(StepEvent("w", "keyed", "c2", 1, StepStatus.NOT_EXECUTED, "keyed", writer=Party.COMPENSATOR))
    assert ledger.step("keyed").resends == 1


def test_a_resend_given_up_on_is_sent_again_only_when_what_is_in_the_lane_has_drained() -> None:
    """A command in the lane is void by the STARTED of the one before; one more at once would be void too, for ever."""
    ledger = Ledger()
    ledger.start()
    ledger.started("keyed", contract_of("keyed", call=Idempotency.KEY), undo_arguments=None)
    ledger.ended("keyed", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(1_500)
    assert len(ledger.resends()) == 1
    for attempt in ("c1", "c2", "c3"):
        for status in (StepStatus.STARTED, StepStatus.NOT_EXECUTED):
            ledger.append(StepEvent("w", "keyed", attempt, 1, status, "keyed", writer=Party.COMPENSATOR))
    assert len(ledger.resends()) == 1
    ledger.wait(1_500)
    assert ledger.resends()[-1].attempts == ("p1", "c1", "c2", "c3")
    assert len(ledger.resends()) == 2
