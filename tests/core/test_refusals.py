"""The words of a refusal: true of the case, and said once."""

from __future__ import annotations

import pytest

from amends.producers import refusals
from amends.producers.effects import Standing, Unwritten
from amends.schemas.commands import Phase
from amends.tools.errors import AmendsError

REJECTED = [
    refusals.record_too_large("x", Unwritten("MSG_SIZE_TOO_LARGE")),
    refusals.finished("w", Standing(7, 0, Phase.SUCCEEDED)),
    refusals.result_not_kept("x", "s"),
    refusals.input_too_large("x", 600_000, 500_000),
    refusals.another_process("w"),
]


@pytest.mark.parametrize("error", REJECTED)
def test_a_rejection_says_once_that_nothing_was_called(error: AmendsError) -> None:
    assert str(error).count("The tool was not called") == 1


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS])
def test_a_workflow_that_has_ended_is_not_said_to_be_running_and_offers_nothing_to_wait_for(phase: Phase) -> None:
    said = str(refusals.exists("w", Standing(7, 0, phase)))
    assert f"has ended: it is {phase}" in said
    assert "resume" not in said
    assert "wait" not in said.lower()


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FINISHING, Phase.TURNED])
def test_a_workflow_that_has_not_ended_can_be_waited_for_or_resumed(phase: Phase) -> None:
    said = str(refusals.exists("w", Standing(7, 0, phase)))
    assert "on_existing='resume'" in said
    assert "has ended" not in said
