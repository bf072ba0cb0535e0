"""The judge sees what is left, what was done or undone twice, what is missing: a judge that passes everything proves
nothing.
"""

from __future__ import annotations

import pytest

from amends.local.story.world import Kind, Thing, Wanted, judge

UNDONE: dict[str, dict[Kind, Wanted]] = {"o-1": {"charge": "undone", "label": "undone or never done"}}
KEPT: dict[str, dict[Kind, Wanted]] = {"o-1": {"charge": "standing"}}


def charge(undone: int, identity: str = "pi_1", order: str = "o-1") -> Thing:
    return Thing("charge", identity, order, undone)


def label(undone: int) -> Thing:
    return Thing("label", "lbl_1", "o-1", undone)


def test_a_world_as_expected_has_no_problems() -> None:
    assert judge([charge(1), label(1)], UNDONE) == []
    assert judge([charge(1)], UNDONE) == []
    assert judge([charge(0)], KEPT) == []


@pytest.mark.parametrize(
    ("things", "problem"),
    [
        ([charge(0)], "left: charge pi_1"),
        ([charge(1), label(0)], "left: label lbl_1"),
        ([charge(2)], "undone twice: charge pi_1"),
        ([charge(1), charge(1, "pi_2")], "done twice: 2 × charge for o-1"),
        ([], "missing: charge for o-1"),
        ([charge(1), charge(1, "pi_9", "o-9")], "unexpected: charge pi_9 of o-9"),
        ([charge(1), Thing("mail", "mail_1", "o-1", 0)], "unexpected: mail mail_1"),
    ],
)
def test_each_wrong_is_named(things: list[Thing], problem: str) -> None:
    problems = judge(things, UNDONE)
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_undoing_what_should_stand_is_a_wrong() -> None:
    assert judge([charge(1)], KEPT)[0].startswith("undone, and should stand")
