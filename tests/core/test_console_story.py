"""What the console tells of a workflow: it rounds nothing, forgets nothing, and says what to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.record_samples import any_record

from amends.console import phrases
from amends.console.steps import Placed
from amends.console.story import Story, tell
from amends.schemas.commands import Incident, IncidentState, Phase, WorkflowEcho
from amends.schemas.contract import Effect
from amends.schemas.facts import (
    Carry,
    Decision,
    Fact,
    Failure,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    Timeout,
    TimeoutKind,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)


def workflow(status: WorkflowStatus, **more: Any) -> WorkflowEvent:
    return WorkflowEvent(workflow_id="order-1", epoch=0, status=status, **more)


def step(status: StepStatus, *, name: str = "charge", attempt: str = "p1:1", epoch: int = 0, **more: Any) -> StepEvent:
    return StepEvent(
        workflow_id="order-1",
        step_id=f"{name}-step",
        attempt=attempt,
        epoch=epoch,
        status=status,
        tool_name=f"payments.{name}",
        side_effect_classification=Effect.COMPENSABLE,
        **more,
    )


def undo(status: UndoStatus, *, attempt: int = 0, **more: Any) -> UndoEvent:
    return UndoEvent("order-1", "charge-step", 0, attempt, status, owner="d1", **more)


def echo(phase: Phase, epoch: int, offset: int = 0) -> WorkflowEcho:
    return WorkflowEcho("order-1", offset, epoch, phase, folded_to=99)


def story(*facts: Fact | None, said: WorkflowEcho | None = None, incidents: tuple[Incident, ...] = ()) -> Story:
    placed = [Placed(offset, 1_000 + offset, fact) for offset, fact in enumerate(facts)]
    return tell("order-1", said, placed, incidents)


STARTED = workflow(WorkflowStatus.STARTED)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([("1", StepStatus.STARTED)], "open"),
        ([("1", StepStatus.STARTED), ("1", StepStatus.SUCCEEDED)], "present"),
        ([("1", StepStatus.STARTED), ("1", StepStatus.UNKNOWN)], "unknown"),
        ([("1", StepStatus.STARTED), ("1", StepStatus.FAILED)], "absent"),
        ([("1", StepStatus.SUCCEEDED), ("1", StepStatus.STARTED)], "present"),
        ([("1", StepStatus.SUCCEEDED), ("1", StepStatus.FAILED)], "present"),
        ([("1", StepStatus.UNKNOWN), ("2", StepStatus.FAILED)], "unknown"),
        ([("1", StepStatus.UNKNOWN), ("2", StepStatus.STARTED)], "open"),
        ([("1", StepStatus.UNKNOWN), ("2", StepStatus.SUCCEEDED)], "present"),
        ([("1", StepStatus.FAILED), ("1", StepStatus.UNKNOWN)], "absent"),
        ([("1", StepStatus.REQUESTED)], "requested"),
        ([("1", StepStatus.STARTED), ("1", StepStatus.NOT_EXECUTED)], "absent"),
    ],
)
def test_a_step_is_what_its_attempts_join_to(ends: list[tuple[str, StepStatus]], expected: str) -> None:
    told = story(STARTED, *(step(status, attempt=attempt) for attempt, status in ends))
    assert [row.status for row in told.steps] == [expected]


def test_evidence_settles_an_unknown_step_and_never_takes_a_success_away() -> None:
    absent = Resolution("order-1", Decision.ABSENT, Party.COMPENSATOR, "c1", step_id="charge-step")
    assert story(STARTED, step(StepStatus.UNKNOWN), absent).steps[0].status == "absent"
    assert story(STARTED, step(StepStatus.UNKNOWN), absent, step(StepStatus.SUCCEEDED)).steps[0].status == "present"


def test_an_attempt_that_timed_out_is_unknown() -> None:
    lost = Timeout("order-1", TimeoutKind.STEP, 0, 1, 2_000, step_id="charge-step", attempt="p1:1")
    assert story(STARTED, step(StepStatus.STARTED), lost).steps[0].status == "unknown"


def test_a_condemned_step_stands_as_open_until_its_undo_closes() -> None:
    facts: list[Fact | None] = [STARTED, step(StepStatus.SUCCEEDED), workflow(WorkflowStatus.FAILED)]
    turned = echo(Phase.TURNED, 1)
    assert "is still there" in story(*facts, said=turned).open[0]
    facts.append(undo(UndoStatus.STARTED))
    assert "its undo has not ended" in story(*facts, said=turned).open[0]
    facts.append(undo(UndoStatus.FAILED, error=Failure("Busy", "try later")))
    assert "attempt 1 failed" in story(*facts, said=turned).open[0]
    facts.append(undo(UndoStatus.UNDONE, attempt=1, verified=True))
    told = story(*facts, said=echo(Phase.COMPENSATED, 1))
    assert told.open == ()
    assert told.to_do == ()
    assert told.steps[0].undo == "undone, verified"


def test_a_late_end_of_an_older_attempt_does_not_reopen_an_undo() -> None:
    told = story(STARTED, step(StepStatus.SUCCEEDED), undo(UndoStatus.UNDONE, attempt=2), undo(UndoStatus.FAILED))
    assert told.steps[0].undo_closed


def test_open_incidents_of_this_workflow_are_what_is_to_be_done() -> None:
    def incident(number: int, state: IncidentState, workflow_id: str = "order-1") -> Incident:
        return Incident(f"{number}" * 8, "dead", state, 1, f"look {number}", "", workflow_id, 0)

    incidents = (
        incident(1, IncidentState.OPEN),
        incident(2, IncidentState.CLOSED),
        incident(3, IncidentState.OPEN, "order-2"),
    )
    told = story(STARTED, said=echo(Phase.TURNED, 1), incidents=incidents)
    assert len(told.to_do) == 1
    assert "amends incidents show 11111111" in told.to_do[0]


def test_what_waits_for_a_person_says_for_which_incident() -> None:
    asked = Incident("7" * 32, "dead", IncidentState.OPEN, 1, "", "", "order-1", 0, step_id="charge-step")
    told = story(STARTED, step(StepStatus.SUCCEEDED), said=echo(Phase.TURNED, 1), incidents=(asked,))
    assert told.open[0].endswith("is still there; incident 77777777")


def test_an_older_instance_of_the_same_id_is_left_out() -> None:
    again = workflow(WorkflowStatus.STARTED)
    old, new = step(StepStatus.SUCCEEDED, name="old", workflow_offset=0), step(StepStatus.STARTED, workflow_offset=2)
    for said in (echo(Phase.RUNNING, 0, offset=2), None):
        told = story(STARTED, old, again, new, said=said)
        assert told.workflow_offset == 2
        assert [row.tool for row in told.steps] == ["payments.charge"]


def test_heartbeats_are_counted_and_not_shown() -> None:
    told = story(STARTED, workflow(WorkflowStatus.HEARTBEAT), step(StepStatus.HEARTBEAT))
    assert told.heartbeats == 2
    assert len(told.moments) == 1


def test_a_proposal_that_was_repeated_is_one_line() -> None:
    silent = Timeout("order-1", TimeoutKind.HEARTBEAT, 0, 0, 2_000)
    told = story(STARTED, silent, silent, silent)
    assert [(moment.offset, moment.times) for moment in told.moments] == [(0, 1), (3, 3)]
    assert "proposes" in told.moments[1].what


def test_a_record_nobody_could_read_stands_in_the_time_line() -> None:
    assert "nobody could read" in story(STARTED, None).moments[1].what


def test_the_time_line_says_who_did_what() -> None:
    told = story(
        workflow(WorkflowStatus.STARTED, agent_id="fulfilment"),
        step(StepStatus.SUCCEEDED, agent_id="fulfilment", external_resource_ids={"payment_intent": "pi_1"}),
        workflow(WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON, by="ann", reason="wrong customer"),
        undo(UndoStatus.STARTED),
        Resolution("order-1", Decision.ACCEPT_LOSS, Party.PERSON, "ann", step_id="charge-step", reason="5 cents"),
    )
    assert [(moment.who, moment.what) for moment in told.moments] == [
        ("agent fulfilment", "the workflow starts"),
        ("agent fulfilment", "payments.charge succeeded (payment_intent=pi_1)"),
        ("person ann", "everything is asked to be undone: wrong customer"),
        ("compensator", "undo of payments.charge: begins, attempt 1"),
        ("person ann", "payments.charge: the loss is accepted (5 cents)"),
    ]


def test_without_a_word_of_the_fold_it_asks_for_a_processor() -> None:
    assert "is a processor running?" in story(STARTED).to_do[0]


ANY_FACT = any_record(StepEvent, WorkflowEvent, UndoEvent, Resolution, Timeout, Carry)


@settings(max_examples=200)
@given(st.lists(ANY_FACT, max_size=6), st.none() | any_record(WorkflowEcho), st.lists(any_record(Incident), max_size=2))
def test_any_facts_make_a_story(facts: list[Any], said: WorkflowEcho | None, incidents: list[Incident]) -> None:
    story = tell("order-1", said, [Placed(offset, offset, fact) for offset, fact in enumerate(facts)], incidents)
    assert story.workflow_id == "order-1"
    assert len(story.moments) <= len(facts)
    assert all(moment.what for moment in story.moments)


@settings(max_examples=200)
@given(ANY_FACT)
def test_every_fact_has_words(fact: Any) -> None:
    _, what = phrases.of_fact(fact, {})
    assert what


def test_two_calls_of_one_tool_are_told_apart_and_a_single_one_bears_no_id() -> None:
    first = StepEvent("order-1", "1" * 32, "p1:1", 0, StepStatus.SUCCEEDED, "payments.charge")
    second = StepEvent("order-1", "2" * 32, "p1:2", 0, StepStatus.SUCCEEDED, "payments.charge")
    other = StepEvent("order-1", "3" * 32, "p1:3", 0, StepStatus.SUCCEEDED, "shipping.label")
    begun = UndoEvent("order-1", "2" * 32, 0, 0, UndoStatus.STARTED, "d1", tool_name="payments.charge")
    assert [moment.what for moment in story(STARTED, first, second, other, begun).moments[1:]] == [
        "payments.charge (11111111) succeeded",
        "payments.charge (22222222) succeeded",
        "shipping.label succeeded",
        "undo of payments.charge (22222222): begins, attempt 1",
    ]


def test_a_story_names_parent_and_children_and_what_those_answered() -> None:
    told = story(
        workflow(WorkflowStatus.STARTED, parent_workflow_id="cart-9"),
        workflow(WorkflowStatus.CHILD_STARTED, child_workflow_id="shipping-1"),
        workflow(WorkflowStatus.CHILD_STARTED, child_workflow_id="label-1"),
        workflow(WorkflowStatus.CHILD_STARTED, child_workflow_id="newsletter-1", detached=True),
        workflow(
            WorkflowStatus.CHILD_CLOSED,
            child_workflow_id="label-1",
            closed_as="TURNED",
            attributes={"child_started_offset": "2"},
        ),
    )
    assert told.parent == "cart-9"
    assert [(c.workflow_id, c.started_offset, c.closed_as) for c in told.children] == [
        ("shipping-1", 1, ""),
        ("label-1", 2, "TURNED"),
    ]
    assert told.moments[0].what == "the workflow starts, as a child of cart-9"
    assert told.moments[-1].what == "a child workflow answers (label-1): what is left of it waits for people"
