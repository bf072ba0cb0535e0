"""A call that is planned again is not made again: between a model's tool-call ids, and between processes."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
from tests.core.folded import Folded, folded_runtime
from tests.core.guarded_tools import KEYS, LOST, WORLD, address, charge, coffee, order, ship

from amends.producers import ProducerSettings, Runtime, Succeeded, recorder, workflow
from amends.producers.ledger import History
from amends.schemas.contract import Contract, Effect, UndoTerms
from amends.schemas.facts import StepEvent, StepStatus
from amends.tools import compensable
from amends.tools.errors import AlreadyDone, AlreadyRunning, ContractError, LedgerUnavailable, OutcomeUnknown
from amends.tools.runner import active_runner


@pytest.fixture
def folded() -> Iterator[Folded]:
    WORLD.clear()
    KEYS.clear()
    LOST.clear()
    with folded_runtime() as found:
        yield found


def another_process(folded: Folded) -> Runtime:
    return Runtime(ProducerSettings(standing_within_ms=500, owed_within_ms=500, confirm_within_ms=500), folded.ledger)


@contextmanager
def inside(wf: workflow) -> Iterator[None]:
    """Act for a moment in the scope of `wf`, which is open outside of this one."""
    token = active_runner.set(wf._session.runner())
    try:
        yield
    finally:
        active_runner.reset(token)


def lost(call: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(ConnectionResetError):
        call(*arguments)


SPELLINGS = [100, 100.0, Decimal("100"), Decimal("100.00"), 1e2]


@pytest.mark.parametrize("amount", SPELLINGS)
def test_a_charge_whose_answer_was_lost_and_that_is_planned_again_is_charged_once(
    folded: Folded, amount: object
) -> None:
    with workflow("w"):
        LOST.add("cus_1")
        lost(charge.options(tool_call_id="call_1"), "cus_1", 100)
        again = charge.options(tool_call_id="call_2")(currency="eur", amount=amount, customer="cus_1")
        assert again == {"id": "ch_cus_1"}, "the remote takes the key, so the same step was sent again"
    assert WORLD == ["charge cus_1"]


def test_text_in_another_unicode_form_is_the_same_text(folded: Folded) -> None:
    with workflow("w"):
        first = order.options(tool_call_id="1")(unicodedata.normalize("NFC", "café"))
        assert order.options(tool_call_id="2")(unicodedata.normalize("NFD", "café"), customer="cus_1") == first
        assert order.options(tool_call_id="3")("cafe") != first
    assert len(WORLD) == 2


def test_a_call_of_unknown_outcome_that_its_remote_would_do_twice_is_refused_with_its_step(folded: Folded) -> None:
    with workflow("w") as wf:
        LOST.add("cus_1")
        lost(order.options(tool_call_id="call_1"), "cup")
        with pytest.raises(OutcomeUnknown) as refusal:
            order.options(tool_call_id="call_2")("cup")
        assert refusal.value.step == folded.ledger.steps("w")[0].step_id
        wf.leave_open("1h")
    assert WORLD == ["order cup"]


def test_a_call_that_is_open_is_not_made_beside_itself_under_another_id(folded: Folded) -> None:
    seen: list[AlreadyRunning] = []

    def inner() -> None:
        with pytest.raises(AlreadyRunning) as refusal:
            order.options(tool_call_id="call_2")("cup")
        seen.append(refusal.value)

    with workflow("w"), recorder.step("shop.order", {"item": "cup", "customer": "cus_1"}, tool_call_id="1") as step:
        inner()
        step.succeed("o")
    assert seen[0].step
    assert WORLD == []


def test_what_was_done_is_not_done_again_and_its_result_comes_back(folded: Folded) -> None:
    with workflow("w"):
        first = order.options(tool_call_id="call_1")("cup")
        assert order.options(tool_call_id="call_2")("cup") == first
        assert order.options(tool_call_id="call_2")("cup") == first
        assert order.options(tool_call_id="call_3")("saucer") != first
    assert WORLD == ["order cup", "order saucer"]


def test_what_is_known_to_be_done_answers_before_an_equal_call_of_unknown_outcome(folded: Folded) -> None:
    """Begun side by side, or both wanted: to make the unknown one sure would be one more effect."""
    with workflow("w") as wf:
        first = order.options(tool_call_id="call_1")("cup")
        LOST.add("cus_1")
        lost(order.options(tool_call_id="call_2", repeatable=True), "cup")
        assert order.options(tool_call_id="call_3")("cup") == first
        wf.leave_open("1h")
    assert WORLD == ["order cup", "order cup"]


def test_a_tool_that_wants_to_hear_of_it_is_told_and_has_the_result_at_hand(folded: Folded) -> None:
    with workflow("w"):
        ship.options(tool_call_id="call_1")("o-1")
        assert ship.options(tool_call_id="call_1")("o-1") == "parcel-o-1", "the same plan is no duplicate"
        with pytest.raises(AlreadyDone) as refusal:
            ship.options(tool_call_id="call_2")("o-1")
        assert (refusal.value.output, refusal.value.step) == ("parcel-o-1", folded.ledger.steps("w")[0].step_id)
        LOST.add("o-2")
        lost(ship.options(tool_call_id="call_3"), "o-2")
        with pytest.raises(OutcomeUnknown):
            ship.options(tool_call_id="call_4")("o-2")
        assert ship.options(tool_call_id="call_5", repeatable=True)("o-1") == "parcel-o-1"
        assert ship.options(call_id="the second parcel")("o-1") == "parcel-o-1"
    assert WORLD == ["ship o-1", "ship o-2", "ship o-1", "ship o-1"]


def test_two_orders_of_the_same_coffee_both_wanted_are_two(folded: Folded) -> None:
    with workflow("w"):
        order("cup")
        order("cup")  # in plain code a repeat is a new step
        order.options(call_id="line-1")("pot")
        order.options(call_id="line-2")("pot")  # the caller says that they are two
        coffee.options(tool_call_id="1")("big")
        coffee.options(tool_call_id="2")("big")  # the tool says that a repeat is wanted
    assert WORLD == ["order cup", "order cup", "order pot", "order pot", "coffee big", "coffee big"]


def test_what_a_natural_remote_was_told_before_may_have_changed_since(folded: Folded) -> None:
    with workflow("w"):
        address.options(tool_call_id="1")("cus_1", "Elm")
        address.options(tool_call_id="2")("cus_1", "Oak")
        address.options(tool_call_id="3")("cus_1", "Elm")
    assert WORLD == ["address Elm", "address Oak", "address Elm"]


def test_one_id_for_two_calls_with_other_arguments_is_two_calls(folded: Folded) -> None:
    with workflow("w"):
        cup, pot = order.options(tool_call_id="0")("cup"), order.options(tool_call_id="0")("pot")
        assert (order.options(tool_call_id="0")("cup"), order.options(tool_call_id="0")("pot")) == (cup, pot)
    assert WORLD == ["order cup", "order pot"]


def test_a_framework_retries_a_whole_task_in_another_process_and_each_effect_happens_once(folded: Folded) -> None:
    def task(prefix: str, *, dies: bool) -> list[object]:
        done: list[object] = [order.options(tool_call_id=f"{prefix}-1")("cup")]
        done.append(charge.options(tool_call_id=f"{prefix}-2")("cus_1", 5))
        if dies:
            raise KeyboardInterrupt
        return [*done, ship.options(tool_call_id=f"{prefix}-3")("o-1")]

    with pytest.raises(KeyboardInterrupt), workflow("w"):
        task("a", dies=True)
    with workflow("w", on_existing="resume", runtime=another_process(folded)) as wf:
        assert task("b", dies=False) == [{"id": "order-cup-1"}, {"id": "ch_cus_1"}, "parcel-o-1"]
    assert wf.outcome == Succeeded()
    assert WORLD == ["order cup", "charge cus_1", "ship o-1"]


def test_what_was_undone_is_done_again(folded: Folded) -> None:
    with workflow("w") as wf:
        wf.savepoint("start")
        order.options(tool_call_id="1")("cup")
        wf.undo_to("start")
        order.options(tool_call_id="2")("cup")
        order.options(tool_call_id="3")("cup")
    assert WORLD == ["order cup", "order cup"]


def test_a_failed_call_is_made_again(folded: Folded) -> None:
    terms = Contract("crm.add", Effect.UNCLASSIFIED)
    with workflow("w"):
        with recorder.step("crm.add", {"name": "a"}, contract=terms, tool_call_id="1") as step:
            step.refuse("no such list")
        with recorder.step("crm.add", {"name": "a"}, contract=terms, tool_call_id="2") as step:
            assert not step.recorded
            step.succeed(1)


def test_what_another_process_did_meanwhile_is_handed_back(folded: Folded) -> None:
    with workflow("w") as wf:
        order.options(tool_call_id="a-0")("pot")
        with workflow("w", on_existing="resume", runtime=another_process(folded)) as second:
            theirs = order.options(tool_call_id="b-1")("cup")
            second.leave_open("1h")
        assert order.options(tool_call_id="a-1")("cup") == theirs
        assert order.options(tool_call_id="a-2")("saucer") != theirs
        wf.leave_open("1h")
    assert WORLD == ["order pot", "order cup", "order saucer"]
    steps = [f for f in folded.ledger.steps("w") if f.call_id == "a-1"]
    assert [f.status for f in steps] == [StepStatus.STARTED, StepStatus.NOT_EXECUTED], "its own intent came second"


def test_a_call_under_way_in_another_process_is_refused_with_its_step_and_never_made(folded: Folded) -> None:
    with workflow("w") as wf:
        order.options(tool_call_id="0")("pot")
        with workflow("w", on_existing="resume", runtime=another_process(folded)) as other:
            with recorder.step("shop.order", {"item": "cup", "customer": "cus_1"}, tool_call_id="b") as step:
                with inside(wf), pytest.raises(AlreadyRunning) as refusal:
                    order.options(tool_call_id="a")("cup")
                step.succeed("o")
            other.leave_open("1h")
        wf.leave_open("1h")
    steps = [f for f in folded.ledger.steps("w") if f.tool_name == "shop.order" and f.step_id != refusal.value.step]
    assert [f.status for f in steps if f.status is StepStatus.NOT_EXECUTED]
    assert WORLD == ["order pot"]


def test_nobody_reads_the_ledger_for_others_where_there_are_none(folded: Folded) -> None:
    read = folded.ledger.history
    folded.ledger.history = None  # type: ignore[method-assign, assignment]
    try:
        with workflow("w"):
            order.options(tool_call_id="1")("cup")
    finally:
        folded.ledger.history = read  # type: ignore[method-assign]
    assert WORLD == ["order cup"]


def test_a_call_that_nobody_could_look_for_in_other_processes_is_told_not_to_have_been_made(
    folded: Folded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(workflow_id: str, from_offset: int, to_offset: int) -> History:
        raise LedgerUnavailable("its history can't be read")

    with workflow("w") as wf:
        with workflow("w", on_existing="resume", runtime=another_process(folded)) as other:
            monkeypatch.setattr(folded.ledger, "history", unreadable)
            with inside(wf), pytest.raises(LedgerUnavailable):
                order.options(tool_call_id="a")("cup")
            other.leave_open("1h")
        wf.leave_open("1h")
    assert [f.status for f in folded.ledger.steps("w")] == [StepStatus.STARTED, StepStatus.NOT_EXECUTED]
    assert WORLD == []


def test_an_agent_that_undid_its_call_by_itself_may_make_it_again(folded: Folded) -> None:
    book = Contract("hotel.book", Effect.COMPENSABLE, undo=UndoTerms("hotel.book", "shop", agent_tool="hotel.cancel"))
    cancel = Contract("hotel.cancel", Effect.UNCLASSIFIED)
    with workflow("w") as wf:
        for number in (1, 2):
            with recorder.step("hotel.book", {"room": 1}, contract=book, tool_call_id=f"b{number}") as step:
                assert not step.recorded, "the booking before it was cancelled"
                step.succeed({"id": f"booking-{number}00"})
            inputs = {"booking": f"booking-{number}00"}
            with recorder.step("hotel.cancel", inputs, contract=cancel, tool_call_id=f"c{number}") as step:
                step.succeed()
        with recorder.step("hotel.book", {"room": 1}, contract=book, tool_call_id="b3") as step:
            step.succeed({"id": "booking-300"})
        with recorder.step("hotel.book", {"room": 1}, contract=book, tool_call_id="b4", reuse=True) as step:
            assert step.output == {"id": "booking-300"}
        wf.leave_open("1h")


def test_a_declaration_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ContractError, match="repeatable"):

        @compensable("x.y", repeatable=True, duplicates="refuse")
        def both() -> None: ...

    with pytest.raises(ContractError, match="none of"):

        @compensable("x.y", duplicates="maybe")  # type: ignore[arg-type]
        def neither() -> None: ...

    with pytest.raises(ValueError, match="give one of them"):
        order.options(call_id="a", tool_call_id="b")


def test_the_intent_says_what_was_asked_in_one_digest(folded: Folded) -> None:
    with workflow("w"):
        order("cup")
        order("cup", "cus_1")
    digests = {f.call_digest for f in folded.ledger.steps("w") if f.status is StepStatus.STARTED}
    assert len(digests) == 1
    assert isinstance(folded.ledger.steps("w")[0], StepEvent)
