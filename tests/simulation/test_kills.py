"""Exhaustive: one kill of anybody between any two things anybody does, with each kind of remote at each place."""

from __future__ import annotations

import pytest
from tests.simulation.exhaustive import ROLES, double_kills, orders, play_with, points_of, single_kills
from tests.simulation.world import KINDS

SHARES = 150


@pytest.mark.parametrize("kinds", list(orders()))
def test_a_kill_between_any_two_effects_breaks_no_promise(kinds: tuple[int, ...]) -> None:
    for faults in single_kills(kinds):
        verdict = play_with(kinds, faults)
        assert verdict.broken == [], f"{kinds} with {faults}"


@pytest.mark.parametrize("kinds", list(orders())[::4])
def test_a_kill_between_any_two_effects_of_going_back_breaks_no_promise(kinds: tuple[int, ...]) -> None:
    """Whoever is killed on the way back to a savepoint, or after it: a resumed agent goes on in the epoch it finds."""
    for faults in single_kills(kinds, goes_back=True):
        verdict = play_with(kinds, faults, goes_back=True)
        assert verdict.broken == [], f"{kinds} with {faults}"


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_two_kills_break_no_promise_either(number: int) -> None:
    """Every pair of points would be too many: each order of remotes takes its share of them."""
    kinds = list(orders())[number]
    for faults in double_kills(kinds, share=number, shares=SHARES):
        verdict = play_with(kinds, faults)
        assert verdict.broken == [], f"{kinds} with {faults}"


def test_every_role_has_points_to_be_killed_at() -> None:
    assert all(points_of(next(orders())).get(role, 0) > 5 for role in ROLES)
