"""The plan: what is commanded side by side, what waits for what, windows, covering undos, the agent's own undos."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from typing import Any

import pytest
from tests.core.counting import Calls
from tests.core.ledger import Ledger, contract_of

from amends.processors.runs import BOUNDS, RUN_MAX
from amends.schemas.commands import UndoCommand
from amends.schemas.contract import Contract, Effect, Idempotency
from amends.schemas.data_flow import RULES, id_digest
from amends.schemas.facts import Decision, Party, StepStatus, UndoStatus, WorkflowEvent, WorkflowStatus
from amends.schemas.policy import Policy, encode_policy

LANES = ("default", "other")


def ids(*texts: str) -> tuple[str, ...]:
    return tuple(id_digest(text) for text in texts)


def ledger() -> Ledger:
    made = Ledger()
    made.terms = dataclasses.replace(made.terms, lanes=frozenset(LANES))
    made.__post_init__()
    return made


def begin(
    on: Ledger, step: str, uses: Iterable[str] = (), *, contract: Contract | None = None, **more: object
) -> Contract:
    declared = contract or contract_of(step)
    fields: dict[str, Any] = {"data_flow": RULES, "uses": ids(*uses), **more}
    on.started(step, declared, **fields)
    return declared


def did(
    on: Ledger,
    step: str,
    uses: Iterable[str] = (),
    makes: Iterable[str] = (),
    *,
    contract: Contract | None = None,
    **more: object,
) -> None:
    begin(on, step, uses, contract=contract, **more)
    on.ended(step, StepStatus.SUCCEEDED, data_flow=RULES, makes=ids(*makes))


def commanded(on: Ledger) -> list[list[str]]:
    return [[e.step_id for e in c.entries] for c in on.of(UndoCommand)]


def fail(on: Ledger) -> None:
    on.sent.clear()
    on.said(WorkflowStatus.FAILED)


# --- order ------------------------------------------------------------------------------------------------------------


def test_what_has_nothing_to_do_with_one_another_is_commanded_side_by_side() -> None:
    on = ledger()
    on.start()
    for name in ("a", "b", "c"):
        did(on, name, [f"id-{name}"])
    fail(on)
    assert commanded(on) == [["c"], ["b"], ["a"]]


def test_a_chain_is_one_run_and_its_base_waits() -> None:
    on = ledger()
    on.start()
    did(on, "base", ["x-1"], ["made-1"])
    did(on, "apart", ["y-1"])
    did(on, "built", ["made-1"])
    fail(on)
    assert commanded(on) == [["built", "base"], ["apart"]]


def test_lanes_work_at_once_where_nothing_orders_them_and_in_order_where_it_does() -> None:
    on = ledger()
    on.start()
    did(on, "base", ["x-1"], ["made-1"])
    did(on, "built", ["made-1"], contract=contract_of("built", lane="other"))
    did(on, "apart", ["y-1"], contract=contract_of("apart", lane="other"))
    fail(on)
    assert commanded(on) == [["apart"], ["built"]]
    on.undone("built")
    assert commanded(on)[2:] == [["base"]]


def test_a_base_of_two_waits_for_both() -> None:
    on = ledger()
    on.start()
    did(on, "base", ["x-1"], ["made-1"], contract=dataclasses.replace(contract_of("base"), resources=("input.k",)))
    for name in ("left", "right"):
        declared = dataclasses.replace(contract_of(name), resources=("input.k",))
        did(on, name, ["made-1"], contract=declared, touches=ids(name))
    fail(on)
    assert commanded(on) == [["right"], ["left"]]
    on.undone("left")
    assert ["base"] not in commanded(on)
    on.undone("right")
    assert commanded(on)[-1] == ["base"]


@pytest.mark.parametrize("later", [{"uses": ["base-1"]}, {"uses": ["x-1"], "after": ("base",)}, {"data_flow": 0}])
def test_a_call_that_is_sent_again_is_built_on_what_any_of_its_sends_names(later: dict[str, Any]) -> None:
    """Seen by the simulation (seed 415887): who resumed knew the id that the process before it had not been told."""
    on = ledger()
    on.start()
    did(on, "base", ["y-1"], ["base-1"])
    begin(on, "x", ["x-1"])
    on.ended("x", StepStatus.FAILED)
    begin(on, "x", attempt="q1", **later)
    on.ended("x", StepStatus.SUCCEEDED, attempt="q1", data_flow=RULES, makes=ids("z-1"))
    fail(on)
    assert commanded(on) == [["x", "base"]]


def test_what_is_told_is_kept_to() -> None:
    on = ledger()
    on.start()
    did(on, "a", ["x-1"])
    did(on, "b", ["y-1"], after=("a",))
    fail(on)
    assert commanded(on) == [["b", "a"]]


@pytest.mark.parametrize("uses", [(), ("*",)])
def test_a_step_that_names_nothing_or_too_much_keeps_to_lifo(uses: tuple[str, ...]) -> None:
    on = ledger()
    on.start()
    did(on, "a", ["x-1"])
    on.started("b", contract_of("b"), data_flow=RULES, uses=uses)
    on.ended("b", StepStatus.SUCCEEDED, data_flow=RULES)
    did(on, "c", ["y-1"])
    fail(on)
    assert commanded(on) == [["c", "b", "a"]]


def test_a_workflow_may_want_one_after_the_other() -> None:
    on = ledger()
    policy = encode_policy(Policy(parallel_undos=False))
    on.append(WorkflowEvent("w", 0, WorkflowStatus.STARTED, lease_ms=30_000, policy=policy))
    for name in ("a", "b", "c"):
        did(on, name, [f"id-{name}"])
    fail(on)
    assert commanded(on) == [["c", "b", "a"]]


def test_the_order_is_the_same_after_a_restart() -> None:
    on = ledger()
    on.start()
    did(on, "base", ["x-1"], ["made-1"])
    did(on, "apart", ["y-1"])
    did(on, "built", ["made-1"])
    fail(on)
    before = commanded(on)
    on.sent.clear()
    on.crash()
    assert commanded(on) == before


# --- what waits -------------------------------------------------------------------------------------------------------


def test_an_undo_that_waits_for_its_backoff_holds_only_what_it_was_built_on() -> None:
    on = ledger()
    on.start()
    did(on, "base", ["x-1"], ["made-1"])
    did(on, "apart", ["y-1"])
    did(on, "built", ["made-1"], contract=contract_of("built", lane="other"))
    fail(on)
    on.undo("built", UndoStatus.STARTED)
    on.undo("built", UndoStatus.FAILED)
    on.undone("apart")
    assert [c for c in commanded(on) if "base" in c] == []
    on.wait(500)
    on.undone("built", attempt=1)
    assert commanded(on)[-1] == ["base"]


def test_a_call_that_is_open_holds_only_what_it_names() -> None:
    on = ledger()
    on.start()
    did(on, "base", ["x-1"], ["made-1"])
    did(on, "apart", ["y-1"])
    begin(on, "open", ["made-1"])
    fail(on)
    assert commanded(on) == [["apart"]]
    on.ended("open", StepStatus.FAILED)
    assert commanded(on)[-1] == ["base"]


def test_what_is_given_up_on_blocks_nobody() -> None:
    on = ledger()
    on.start()
    did(on, "base", ["x-1"], ["made-1"])
    did(on, "built", ["made-1"], contract=contract_of("built", undo=None))
    fail(on)
    assert commanded(on) == [["base"]]


def test_no_more_than_the_bounds_are_under_way_of_a_tool_and_of_a_lane() -> None:
    on = ledger()
    on.start()
    same = contract_of("same")
    for number in range(3 * BOUNDS.of_lane):
        did(on, f"s{number}", [f"id-{number}"], contract=same if number % 2 else contract_of(f"t{number}"))
    fail(on)
    first = commanded(on)
    assert len(first) == BOUNDS.of_lane
    assert sum(1 for run in first if int(run[0][1:]) % 2) == BOUNDS.of_tool
    for run in first:
        on.undo(run[0], UndoStatus.STARTED)
    assert len(commanded(on)) == BOUNDS.of_lane
    on.undo(first[0][0], UndoStatus.UNDONE)
    assert len(commanded(on)) == BOUNDS.of_lane + 1


# --- windows ----------------------------------------------------------------------------------------------------------


def with_window(tool: str, window_ms: int, **more: object) -> Contract:
    contract = contract_of(tool, **more)  # type: ignore[arg-type]
    assert contract.undo is not None
    return dataclasses.replace(contract, undo=dataclasses.replace(contract.undo, window_ms=window_ms))


def test_the_window_that_closes_first_goes_first_within_what_order_allows() -> None:
    on = ledger()
    on.start()
    did(on, "soon", ["a-1"], contract=with_window("soon", 20_000))
    did(on, "sooner", ["b-1"], contract=with_window("sooner", 10_000))
    did(on, "never", ["c-1"])
    fail(on)
    assert commanded(on) == [["sooner"], ["soon"], ["never"]]


def test_a_window_that_has_closed_is_an_incident_and_never_automatic() -> None:
    on = ledger()
    on.start(lease_ms=300_000)
    did(on, "late", ["a-1"], contract=with_window("late", 10_000))
    on.wait(11_000)
    fail(on)
    assert commanded(on) == []
    assert on.incidents() == {"window_closed": "OPEN"}
    on.resolve("late", Decision.RETRY, writer=Party.PERSON)
    assert commanded(on) == [["late"]]
    on.undone("late", attempt=1)
    assert on.phase == "COMPENSATED"
    assert on.incidents() == {"window_closed": "CLOSED"}


def test_a_person_knows_before_the_window_closes_and_the_undo_may_still_come() -> None:
    on = ledger()
    on.start()
    did(on, "first", ["a-1"], contract=with_window("first", 40_000))
    fail(on)
    on.wait(29_000)
    assert on.incidents() == {}
    on.wait(2_000)
    assert on.incidents() == {"window_closing": "OPEN"}
    on.undone("first")
    assert on.incidents() == {"window_closing": "CLOSED"}
    assert on.phase == "COMPENSATED"


def test_an_undo_that_waited_until_its_window_closed_is_an_incident_and_no_longer_commanded() -> None:
    on = ledger()
    on.start()
    did(on, "first", ["a-1"], contract=with_window("first", 40_000))
    fail(on)
    on.wait(41_000)
    assert on.incidents() == {"window_closing": "CLOSED", "window_closed": "OPEN"}
    on.sent.clear()
    on.wait(60_000)
    assert commanded(on) == []


def test_an_attempt_under_way_when_the_window_closes_is_let_end() -> None:
    on = ledger()
    on.start()
    did(on, "first", ["a-1"], contract=with_window("first", 10_000))
    fail(on)
    on.wait(9_000)
    on.undo("first", UndoStatus.STARTED, lease_ms=30_000)
    on.wait(5_000)
    assert on.incidents() == {"window_closing": "OPEN"}
    on.undo("first", UndoStatus.FAILED)
    on.wait(2_000)
    assert on.incidents() == {"window_closing": "CLOSED", "window_closed": "OPEN"}


# --- one undo for several steps ---------------------------------------------------------------------------------------


def covering(tool: str, *covered: str) -> Contract:
    contract = contract_of(tool)
    assert contract.undo is not None
    return dataclasses.replace(contract, undo=dataclasses.replace(contract.undo, covers=covered))


def cart(on: Ledger, *, item: Contract | None = None) -> None:
    on.start()
    did(on, "cart", ["c-1"], ["cart-1"], contract=covering("cart", "item"))
    for name in ("i1", "i2"):
        did(on, name, ["cart-1"], contract=item or contract_of("item"))
    did(on, "note", ["cart-1"])


@pytest.mark.parametrize("declared", [contract_of("item"), contract_of("item", undo=None)])
def test_one_undo_covers_later_steps_that_name_what_its_step_made(declared: Contract) -> None:
    on = ledger()
    cart(on, item=declared)
    fail(on)
    assert commanded(on) == [["note", "cart"]]
    on.undone("note")
    on.undone("cart")
    assert on.phase == "COMPENSATED"
    assert on.incidents() == {}
    for name in ("i1", "i2"):
        undo = on.step(name).undo
        assert undo is not None
        assert "cart" in undo.evidence


def test_what_is_covered_is_undone_alone_once_the_covering_undo_is_given_up_on() -> None:
    on = ledger()
    cart(on)
    fail(on)
    on.undone("note")
    on.undo("cart", UndoStatus.STARTED)
    on.undo("cart", UndoStatus.FAILED, retryable=False)
    assert commanded(on)[-1] == ["i2", "i1"]


def test_what_is_covered_and_has_no_undo_is_an_incident_once_the_covering_undo_is_given_up_on() -> None:
    on = ledger()
    cart(on, item=contract_of("item", undo=None))
    fail(on)
    on.undone("note")
    on.undo("cart", UndoStatus.STARTED)
    on.undo("cart", UndoStatus.FAILED, retryable=False)
    assert on.incidents() == {"undo_failed": "OPEN", "no_undo": "OPEN"}


def test_a_covered_call_that_is_open_holds_the_covering_undo() -> None:
    on = ledger()
    on.start()
    did(on, "cart", ["c-1"], ["cart-1"], contract=covering("cart", "item"))
    begin(on, "i1", ["cart-1"], contract=contract_of("item"))
    fail(on)
    assert commanded(on) == []
    on.ended("i1", StepStatus.SUCCEEDED, data_flow=RULES)
    assert commanded(on) == [["cart"]]


def test_what_has_nothing_to_do_with_the_covering_step_is_not_covered() -> None:
    on = ledger()
    on.start()
    did(on, "cart", ["c-1"], ["cart-1"], contract=covering("cart", "item"))
    did(on, "other", ["cart-2"], contract=contract_of("item"))
    fail(on)
    assert commanded(on) == [["other"], ["cart"]]


# --- the agent's own undo ---------------------------------------------------------------------------------------------


def booking() -> Contract:
    contract = contract_of("book", undo=Idempotency.NEITHER)
    assert contract.undo is not None
    return dataclasses.replace(contract, undo=dataclasses.replace(contract.undo, agent_tool="cancel"))


CANCEL = contract_of("cancel", effect=Effect.IRREVERSIBLE)


def book(on: Ledger, step: str, made: str) -> None:
    begin(on, step, ["flight-7"], contract=booking())
    arguments = f'{{"booking": "{made}"}}'.encode()
    on.ended(step, StepStatus.SUCCEEDED, data_flow=RULES, makes=ids(made), undo_arguments=arguments)


def test_a_step_that_the_agent_undid_itself_is_not_undone_again() -> None:
    on = ledger()
    on.start()
    book(on, "b1", "bk-1")
    book(on, "b2", "bk-2")
    did(on, "c1", ["bk-1"], contract=CANCEL)
    fail(on)
    assert commanded(on) == [["b2"]]
    on.undone("b2")
    assert on.phase == "COMPENSATED"
    assert on.incidents() == {}
    undo = on.step("b1").undo
    assert undo is not None
    assert "by the agent" in undo.evidence


def test_a_cancellation_of_unknown_end_is_found_out_about_first() -> None:
    on = ledger()
    on.start()
    book(on, "b1", "bk-1")
    begin(on, "c1", ["bk-1"], contract=contract_of("cancel", effect=Effect.IRREVERSIBLE, probe=True))
    on.ended("c1", StepStatus.UNKNOWN)
    fail(on)
    on.wait(2_000)
    assert commanded(on) == []
    assert len(on.probes()) == 1
    on.resolve("c1", Decision.PRESENT, "p1", probe_number=0)
    assert commanded(on) == []
    assert on.phase == "COMPENSATED"


def test_a_cancellation_that_nobody_knows_of_holds_its_booking_until_a_person_decides() -> None:
    on = ledger()
    on.start()
    book(on, "b1", "bk-1")
    begin(on, "c1", ["bk-1"], contract=CANCEL)
    on.ended("c1", StepStatus.UNKNOWN)
    fail(on)
    on.wait(20_000)
    assert on.incidents() == {"unknown": "OPEN"}
    assert commanded(on) == []
    on.resolve("c1", Decision.MARK_ABSENT, "p1", writer=Party.PERSON)
    assert commanded(on) == [["b1"]]


def test_one_cancellation_undoes_one_of_several_under_one_id() -> None:
    on = ledger()
    on.start()
    for step in ("b1", "b2", "b3"):
        book(on, step, "seat-1")
    did(on, "c1", ["seat-1"], contract=CANCEL)
    fail(on)
    assert commanded(on) == [["b2", "b1"]]


def test_a_booking_that_comes_to_light_after_its_cancellation_is_not_undone_again() -> None:
    on = ledger()
    on.start()
    declared = dataclasses.replace(booking(), probe=contract_of("book", probe=True).probe)
    begin(on, "b1", ["flight-7"], contract=declared, undo_arguments=b'{"booking": "bk-1"}')
    on.ended("b1", StepStatus.UNKNOWN)
    did(on, "c1", ["bk-1"], contract=CANCEL)
    fail(on)
    on.wait(2_000)
    on.resolve("b1", Decision.PRESENT, "p1", probe_number=0)
    assert commanded(on) == []
    assert on.phase == "COMPENSATED"


# --- any graph --------------------------------------------------------------------------------------------------------


def random_graph(chance: random.Random, on: Ledger) -> dict[str, set[str]]:
    """Make a workflow of steps that name what earlier ones made; return who is built on whom, directly."""
    bases: dict[str, set[str]] = {}
    for number in range(chance.randint(2, 12)):
        name = f"s{number}"
        bases[name] = {base for base in bases if chance.random() < 0.25}
        lane = chance.choice(LANES)
        contract = dataclasses.replace(contract_of(name, lane=lane), resources=("input.k",))
        uses = [f"own-{number}", *(f"made-{base}" for base in bases[name])]
        did(on, name, uses, [f"made-{name}"], contract=contract, touches=ids(f"key-{number}"))
    return bases


@pytest.mark.parametrize("seed", range(60))
def test_no_undo_is_commanded_before_all_that_was_built_on_it_is_closed_or_a_persons(seed: int) -> None:
    chance = random.Random(seed)
    on = ledger()
    on.start()
    bases = random_graph(chance, on)
    fail(on)
    over: set[str] = set()
    attempts = dict.fromkeys(bases, 0)
    seen = 0
    for _ in range(400):
        for run in commanded(on)[seen:]:
            before = set(over)
            for name in run:
                missing = {later for later in bases if name in bases[later]} - before
                assert not missing, (seed, name, missing)
                before.add(name)
        seen = len(commanded(on))
        due = [run for run in commanded(on) if run[0] not in over]
        if not due:
            on.wait(300)
            if over == set(bases):
                break
            continue
        for name in chance.choice(due):
            if name in over:
                continue
            on.undo(name, UndoStatus.STARTED, attempt=attempts[name])
            how = chance.random()
            if how < 0.7:
                on.undo(name, UndoStatus.UNDONE, attempt=attempts[name])
                over.add(name)
            else:
                on.undo(name, UndoStatus.FAILED, attempt=attempts[name], retryable=how < 0.85)
                attempts[name] += 1
                if how >= 0.85 or attempts[name] == 3:
                    over.add(name)
                on.wait(500)
                break
    assert over == set(bases), seed


@pytest.mark.parametrize("shape", ["chain", "apart", "hub"])
def test_a_fact_of_the_plan_costs_the_same_among_two_thousand_steps(shape: str) -> None:
    def cost(size: int) -> float:
        on = ledger()
        on.start()
        contracts = [contract_of(f"t{n}") for n in range(8)]
        for number in range(size):
            uses = {"chain": [], "apart": [f"u-{number}"], "hub": ["made-0"] if number else ["u-0"]}[shape]
            did(on, f"s{number}", uses, [f"made-{number}"], contract=contracts[number % 8])
        fail(on)
        count = 100
        calls = Calls()
        done: set[str] = set()
        for _ in range(count):
            name = next(e for run in commanded(on) for e in run if e not in done)
            with calls.counted():
                on.undone(name)
            done.add(name)
            if len(on.sent) > RUN_MAX:
                on.sent = on.sent[-RUN_MAX:]
        return calls.made / count

    small, large = cost(150), cost(2_000)
    print(f"{small:g} calls, {large:g}")
    assert large < 4 * small + 100, (small, large)  # apart, all that is under way is looked at once a fact
