"""Errors, durations and steps: small things that must not surprise."""

from __future__ import annotations

import contextlib
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amends.schemas.contract import Effect
from amends.schemas.facts import Decision, Party, Resolution, StepEvent, StepStatus
from amends.schemas.payload import UnreadablePayload, encode_payload
from amends.tools import AmendsError, errors, step_from_facts
from amends.tools.durations import duration_ms
from amends.tools.errors import CallEffect, Fault


def _all(kind: type[AmendsError]) -> list[type[AmendsError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _all(child))]


@pytest.mark.parametrize("kind", _all(AmendsError))
def test_every_error_says_whose_fault_it_is_and_survives_pickling(kind: type[AmendsError]) -> None:
    error = kind("what happened.")
    error.note = "kept"  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__
    assert isinstance(error.whose_fault, Fault)
    assert isinstance(error.effect, CallEffect)
    assert str(error).startswith("what happened.")
    assert str(error).endswith(kind.what_to_do)


def test_only_errors_after_which_nothing_was_called_are_safe_to_try_again() -> None:
    safe = {kind for kind in _all(AmendsError) if kind.retry_safe}
    assert safe == {errors.LedgerUnavailable, errors.LedgerUncertain}
    assert all(kind.effect is CallEffect.NOT_CALLED for kind in safe)


def test_details_are_attributes() -> None:
    assert errors.AlreadyRunning("m", step="s-1").step == "s-1"
    assert errors.WorkflowTurned("m", workflow_id="w", phase="TURNED", epoch=2).epoch == 2
    assert errors.Rejected("m", which="budget").which == "budget"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("90d", 90 * 86_400_000),
        ("30s", 30_000),
        ("500ms", 500),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("2w", 14 * 86_400_000),
        (" 10 s ", 10_000),
        (timedelta(minutes=2), 120_000),
    ],
)
def test_durations_are_written_as_people_write_them(text: str | timedelta, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "90", "d", "-1s", "1 year", "1s1", "1e3s", "0s", "101w0", "9999999w", 90, 1.5, None]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|between"):
        duration_ms(text)


@given(st.text())
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert duration_ms(text) >= 1


STARTED = StepEvent(
    "wf",
    "step",
    "a1",
    0,
    StepStatus.STARTED,
    "pay.charge",
    tool_version="2",
    side_effect_classification=Effect.COMPENSABLE,
    input_payload=encode_payload({"x": 1}),
    external_resource_ids={"cart": "c"},
    captured=encode_payload("before"),
)


def test_a_step_is_made_of_facts_alone() -> None:
    outcome = StepEvent(
        "wf", "step", "a1", 0, StepStatus.SUCCEEDED, "pay.charge",
        output_payload=encode_payload(None), external_resource_ids={"charge": "ch"},
    )  # fmt: skip
    step = step_from_facts(STARTED, outcome, key="k")
    assert (step.input, step.output, step.output_known, step.captured) == ({"x": 1}, None, True, "before")
    assert step.external_resource_ids == {"cart": "c", "charge": "ch"}
    assert (step.tool_name, step.tool_version, step.key) == ("pay.charge", "2", "k")


def test_a_step_of_unknown_outcome_says_so() -> None:
    step = step_from_facts(STARTED, None, key="k")
    assert not step.output_known
    found = Resolution("wf", Decision.PRESENT, Party.COMPENSATOR, "probe", output_payload=encode_payload({"id": 1}))
    assert step_from_facts(STARTED, found, key="k").output == {"id": 1}


def test_an_input_written_in_another_language_need_not_be_an_object() -> None:
    odd = StepEvent("wf", "s", "a", 0, StepStatus.STARTED, "t", input_payload=b"[1]")
    assert step_from_facts(odd, None, key="k").input == {"value": [1]}
    with pytest.raises(UnreadablePayload):
        step_from_facts(StepEvent("wf", "s", "a", 0, StepStatus.STARTED, "t", input_payload=b"\xff"), None, key="k")
