"""The plans of the killing runs: what a seed decides, and what the judge allows."""

from __future__ import annotations

from tests.killing.gate import Orders
from tests.killing.strikes import Act, Moment, Plan, Said, Strike, allowed, plan_of

from amends.local.story.calls import BACKWARD, FORWARD, SEQUENCE

SEEDS = range(600)
CHARGE, LAST = FORWARD[0], FORWARD[-1]


def killed(moment: Moment, call: int) -> Plan:
    return Plan(1, (Strike(Act.KILL_CALLER, moment, FORWARD[call]),))


def test_the_same_seed_is_the_same_plan() -> None:
    assert [plan_of(seed) for seed in SEEDS] == [plan_of(seed) for seed in SEEDS]


def test_callers_are_killed_at_every_moment_of_every_call_by_some_seed() -> None:
    found = {(s.call, s.moment) for seed in SEEDS for s in plan_of(seed).strikes if s.act is Act.KILL_CALLER}
    assert found == {(call, moment) for call in (*FORWARD, *BACKWARD) for moment in Moment}


def test_every_act_is_done_by_some_seed() -> None:
    assert {strike.act for seed in SEEDS for strike in plan_of(seed).strikes} == set(Act)


def test_of_a_call_killed_after_its_effect_the_undoing_is_demanded() -> None:
    (wanted,) = allowed(killed(Moment.AFTER, 2), Said.KILLED)
    assert [wanted[kind] for kind in SEQUENCE] == ["undone"] * 3 + ["undone or never done"]


def test_of_a_call_killed_before_its_effect_it_may_never_have_been_made() -> None:
    (wanted,) = allowed(killed(Moment.BEFORE, 2), Said.KILLED)
    assert [wanted[kind] for kind in SEQUENCE] == ["undone"] * 2 + ["undone or never done"] * 2


def test_only_an_agent_killed_after_an_answer_may_have_succeeded() -> None:
    standing = dict.fromkeys(SEQUENCE, "standing")
    assert standing in allowed(killed(Moment.ANSWERED, 3), Said.KILLED)
    assert standing not in allowed(killed(Moment.AFTER, 3), Said.KILLED)
    assert allowed(killed(Moment.AFTER, 3), Said.SUCCEEDED) == [standing]


def test_a_strike_falls_once_and_only_on_its_order() -> None:
    hits: list[str] = []

    def hit(order: str, strike: Strike, port: int) -> bool:
        hits.append(order)
        return True

    orders = Orders(hit)
    orders.add("order-1", killed(Moment.AFTER, 0))
    orders.add("order-2", Plan(2, ()))
    orders.learn("order-1", "pi_1")
    assert orders.owner("/v1/refunds", "payment_intent=pi_1") == "order-1"
    assert not orders.strike("order-2", CHARGE.name, Moment.AFTER, 1)
    assert not orders.strike("order-1", CHARGE.name, Moment.BEFORE, 1)
    assert orders.strike("order-1", CHARGE.name, Moment.AFTER, 1)
    assert not orders.strike("order-1", CHARGE.name, Moment.AFTER, 1)
    assert hits == ["order-1"]
