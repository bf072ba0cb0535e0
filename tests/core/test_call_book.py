"""Which step a call is, where the acknowledgement of an intent never came."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amends.producers.calls import CallBook
from amends.producers.effects import Admit, AdmitAgain, Admitted, Pending, Recorded, Standing
from amends.producers.savepoints import Place
from amends.schemas.commands import EndedEpoch, Phase
from amends.schemas.contract import CallTerms, Contract, Effect, Idempotency
from amends.schemas.facts import StepEvent, StepStatus

CONTRACT = Contract("shop.charge", Effect.COMPENSABLE, call=CallTerms(Idempotency.KEY))
RUNNING = Standing(0, 0, Phase.RUNNING)


def admitted(book: CallBook, standing: Standing, attempt: str) -> Admitted:
    found = book.admit(Admit(CONTRACT, "charge 1", "the charge", False, standing), attempt, 0)
    assert isinstance(found, Admitted)
    return found


def noted(book: CallBook, call: Admitted, status: StepStatus, epoch: int = 0) -> StepEvent:
    fact = StepEvent("w", call.step_id, call.attempt, epoch, status, "shop.charge", call_id=call.call_id)
    book.note(fact)
    return fact


def test_what_ended_before_a_savepoint_is_not_condemned_by_a_turn_to_it() -> None:
    """Its intent may stand on the ledger though nobody said so; but it stands before the savepoint."""
    book = CallBook("w")
    noted(book, admitted(book, RUNNING, "a/1"), StepStatus.NOT_EXECUTED)  # no acknowledgement came
    again = admitted(book, RUNNING, "a/2")
    started = noted(book, again, StepStatus.STARTED)
    book.placed(started, 7)
    noted(book, again, StepStatus.SUCCEEDED)
    book.keep_savepoint("paid", Place(0, 9))
    turned = replace(RUNNING, epoch=1, turns=(EndedEpoch(0, 9),))
    met = book.admit(Admit(CONTRACT, "charge 1", "the charge", False, turned), "a/3", 0)
    assert isinstance(met, Recorded)
    assert met.step_id == again.step_id


def test_what_ended_after_the_savepoint_is_condemned_wherever_its_intent_stands() -> None:
    book = CallBook("w")
    book.keep_savepoint("begun", Place(0, 3))
    first = admitted(book, RUNNING, "a/1")
    noted(book, first, StepStatus.NOT_EXECUTED)
    book.keep_savepoint("tried", Place(0, 9))
    turned = replace(RUNNING, epoch=1, turns=(EndedEpoch(0, 3),))
    assert admitted(book, turned, "a/2").step_id != first.step_id


def test_a_call_that_another_process_gave_up_is_met_by_what_this_one_did() -> None:
    """Where each send is a step of its own, that of the other one is newer, and has no effect."""
    neither = replace(CONTRACT, call=CallTerms(Idempotency.NEITHER))
    asked = Admit(neither, "charge 1", "the charge", False, RUNNING)
    book = CallBook("w")
    mine = book.admit(asked, "a/1", 0)
    assert isinstance(mine, Admitted)
    book.placed(noted(book, mine, StepStatus.STARTED), 7)
    noted(book, mine, StepStatus.SUCCEEDED)
    theirs = StepEvent("w", "theirs", "b/1", 0, StepStatus.STARTED, "shop.charge", call_id="the charge")
    gave_up = replace(theirs, status=StepStatus.NOT_EXECUTED)
    book.remember(((9, theirs), (10, gave_up)))
    met = book.admit(asked, "a/2", 0)
    assert isinstance(met, Recorded)
    assert met.step_id == mine.step_id


def test_a_call_that_stands_is_met_though_another_process_made_it_anew_and_that_was_taken_back() -> None:
    """Seen by the simulation (seed 1284807): it was done once more, beside what stood before the savepoint."""
    book = CallBook("w")
    mine = admitted(book, RUNNING, "a/1")
    book.placed(noted(book, mine, StepStatus.STARTED), 7)
    noted(book, mine, StepStatus.SUCCEEDED)
    theirs = StepEvent("w", "theirs", "b/1", 1, StepStatus.STARTED, "shop.charge", call_id="the charge")
    book.remember(((12, theirs), (13, replace(theirs, status=StepStatus.SUCCEEDED))))
    turned = replace(RUNNING, epoch=2, turns=(EndedEpoch(0, 9), EndedEpoch(1, 9)))
    met = book.admit(Admit(CONTRACT, "charge 1", "the charge", False, turned), "a/2", 0)
    assert isinstance(met, Recorded)
    assert met.step_id == mine.step_id


@pytest.mark.parametrize(("after_ms", "made"), [(999, True), (1_000, False)])
def test_a_key_that_another_process_used_so_long_ago_that_it_is_forgotten_is_not_used_again(
    after_ms: int, made: bool
) -> None:
    """Seen by the simulation (seed 1320364): who resumed had read on to before the other's intent only, and its call
    was a second effect of one step, of which one was undone."""
    aging = replace(CONTRACT, call=CallTerms(Idempotency.KEY, key_ttl_ms=1_500, lease_ms=500))
    asked = Admit(aging, "charge 1", "the charge", False, RUNNING)
    book = CallBook("w")
    mine = book.admit(asked, "b/1", 5_000 + after_ms)
    assert isinstance(mine, Admitted)
    book.placed(noted(book, mine, StepStatus.STARTED), 20)
    theirs = StepEvent("w", mine.step_id, "a/1", 0, StepStatus.STARTED, "shop.charge", call_id="charge 1")
    theirs = replace(theirs, timestamp_ms=5_000)
    book.remember(((9, theirs), (10, replace(theirs, status=StepStatus.UNKNOWN))))
    found = book.admit_again(AdmitAgain(asked, mine, 20, 5_000 + after_ms))
    assert isinstance(found, Admitted if made else Pending)


def test_an_intent_that_comes_again_behind_a_savepoint_stands_where_it_stood() -> None:
    """Seen by the simulation (seed 604065): who resumed after a turn to the savepoint made the call once more."""
    before = CallBook("w")
    call = admitted(before, RUNNING, "a/1")
    started, ended = noted(before, call, StepStatus.STARTED), noted(before, call, StepStatus.SUCCEEDED)
    book = CallBook("w")
    book.remember(((5, started), (6, ended), (18, started)))
    turned = replace(RUNNING, epoch=1, turns=(EndedEpoch(0, 7),))
    met = book.admit(Admit(CONTRACT, "charge 1", "the charge", False, turned), "b/1", 0)
    assert isinstance(met, Recorded)
    assert met.step_id == call.step_id
