"""Exhaustive: one kill of anybody between any two things anybody does, with each kind of remote at each place."""

from __future__ import annotations

import pytest
from tests.simulation.exhaustive import ROLES, orders, play_with, points_of, single_kills


@pytest.mark.parametrize("kinds", list(orders()))
def test_a_kill_between_any_two_effects_breaks_no_promise(kinds: tuple[int, ...]) -> None:
    for faults in single_kills(kinds):
        verdict = play_with(kinds, faults)
        assert verdict.broken == [], f"{kinds} with {faults}"


def test_every_role_has_points_to_be_killed_at() -> None:
    assert all(points_of(next(orders())).get(role, 0) > 5 for role in ROLES)
