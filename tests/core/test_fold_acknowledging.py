"""Incidents that people close by knowing of them; what a claim takes for done again, and whose claim it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.ledger import Ledger, contract_of

from amends.processors.saga import UNREAD_MAX
from amends.processors.terms import Terms
from amends.schemas.commands import Incident
from amends.schemas.contract import Idempotency
from amends.schemas.decisions import ACKNOWLEDGED, KIND
from amends.schemas.facts import (
    Decision,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    WorkflowEvent,
    WorkflowStatus,
)

X = contract_of("x")


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def incident_of(ledger: Ledger, kind: str) -> Incident:
    return [i for i in ledger.of(Incident) if i.kind == kind][-1]


def acknowledge(ledger: Ledger, kind: str, *, decision: Decision = Decision.ACCEPT_LOSS, older: int = 0) -> None:
    seen = incident_of(ledger, kind)
    ledger.append(
        Resolution(
            seen.workflow_id,
            decision,
            Party.PERSON,
            "ann",
            step_id=seen.step_id,
            workflow_offset=seen.workflow_offset,
            version=seen.version - older,
            attributes={KIND: kind},
        )
    )


def led_to(kind: str) -> Ledger:
    """A ledger on which an incident of this kind is open."""
    ledger = Ledger()
    if kind == "stray":
        ledger.append(WorkflowEvent("w", 0, WorkflowStatus.SUCCEEDED, workflow_offset=77))
        return ledger
    ledger.start()
    ledger.did("x", X)
    match kind:
        case "contradiction":
            ledger.ended("x", StepStatus.FAILED)
        case "effect_after_success":
            ledger.said(WorkflowStatus.SUCCEEDED)
            ledger.did("late", X)
        case "failed_after_success":
            ledger.said(WorkflowStatus.SUCCEEDED)
            ledger.said(WorkflowStatus.FAILED)
        case "savepoint_unknown":
            ledger.undo_to("nowhere", writer=Party.PERSON)
    assert incident_of(ledger, kind)
    return ledger


KINDS = ["contradiction", "effect_after_success", "failed_after_success", "savepoint_unknown", "stray"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decision", [Decision.ACCEPT_LOSS, Decision.MARK_UNDONE])
def test_a_person_closes_what_nothing_waits_for(kind: str, decision: Decision) -> None:
    ledger = led_to(kind)
    acknowledge(ledger, kind, decision=decision)
    assert ledger.incidents()[kind] == "CLOSED"
    assert incident_of(ledger, kind).closed_by == "ann"


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledgement_of_another_version_or_kind_closes_nothing(kind: str) -> None:
    ledger = led_to(kind)
    acknowledge(ledger, kind, older=1)
    acknowledge(ledger, kind, decision=Decision.RETRY)
    ledger.append(Resolution("w", Decision.ACCEPT_LOSS, Party.PERSON, "ann", attributes={KIND: "unknown"}))
    assert ledger.incidents()[kind] == "OPEN"


def test_a_call_behind_a_success_is_an_incident_until_it_is_known_not_to_have_been_made() -> None:
    keyed = contract_of("x", call=Idempotency.KEY)
    for status, state in (
        (StepStatus.UNKNOWN, "OPEN"),
        (StepStatus.FAILED, "CLOSED"),
        (StepStatus.NOT_EXECUTED, "CLOSED"),
    ):
        ledger = Ledger()
        ledger.start()
        ledger.started("x", keyed)
        ledger.ended("x", StepStatus.FAILED)
        ledger.said(WorkflowStatus.SUCCEEDED)
        ledger.started("x", keyed, attempt="q1")  # a sleeper sends a step again that others have finished with
        assert ledger.incidents() == {"effect_after_success": "OPEN"}
        ledger.ended("x", status, attempt="q1")
        assert ledger.incidents() == {"effect_after_success": state}, status
        ledger.resolve("x", Decision.MARK_ABSENT, "q1", writer=Party.PERSON)
        assert ledger.incidents() == {"effect_after_success": "CLOSED"}


def test_a_call_behind_a_success_that_its_remote_takes_for_the_one_before_is_no_incident() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("x", contract_of("x", call=Idempotency.KEY))
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.started("x", contract_of("x", call=Idempotency.KEY), attempt="q1")
    ledger.wait(120_000)
    assert ledger.incidents() == {}


def test_kinds_that_something_waits_for_are_not_acknowledged() -> None:
    assert not ACKNOWLEDGED & {"undo_failed", "unknown", "irreversible", "unreadable", "lane_missing"}


# --- records nobody can read ------------------------------------------------------------------------------------------


def test_records_that_could_not_be_read_are_bounded_and_none_is_forgotten(ledger: Ledger) -> None:
    ledger.start()
    offsets = [ledger.append(None, raw=b"junk", key=b"w") for _ in range(UNREAD_MAX + 3)]
    header = ledger.workflow.header
    assert (len(header.unread), header.unread_beyond) == (UNREAD_MAX, 3)
    for number, offset in enumerate(offsets):
        assert ledger.incidents() == {"unreadable": "OPEN"}, number
        ledger.append(Resolution("w", Decision.MARK_ABSENT, Party.PERSON, "ann", unread_offset=offset))
    assert ledger.incidents() == {"unreadable": "CLOSED"}
    assert ledger.workflow.header.unread_beyond == 0


# --- a lane that is missing -------------------------------------------------------------------------------------------


def test_the_incident_of_a_missing_lane_closes_with_its_workflow() -> None:
    ledger = Ledger(Terms(lanes=frozenset({"default"})))
    ledger.start()
    ledger.did("x", contract_of("x", lane="elsewhere"))
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.incidents() == {"lane_missing": "OPEN"}
    ledger.resolve("x", Decision.ACCEPT_LOSS, writer=Party.PERSON)
    assert ledger.phase == "CLOSED_WITH_LOSS"
    assert ledger.incidents() == {"lane_missing": "CLOSED"}


# --- whether a call was done again ------------------------------------------------------------------------------------


def called(ledger: Ledger, step: str, digest: str, end: StepStatus) -> None:
    ledger.started(step, contract_of("probed", probe=True), call_digest=digest)
    ledger.append(StepEvent("w", step, "p1", 0, end, "probed"))


@pytest.mark.parametrize(
    ("digests", "phase"), [(("a", "a"), "SUCCEEDED"), (("a", "b"), "COMPENSATED"), (("", "b"), "SUCCEEDED")]
)
def test_a_denied_call_was_done_again_if_the_same_tool_had_the_same_arguments(
    ledger: Ledger, digests: tuple[str, str], phase: str
) -> None:
    ledger.start()
    called(ledger, "first", digests[0], StepStatus.UNKNOWN)
    called(ledger, "second", digests[1], StepStatus.SUCCEEDED)
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.resolve("first", Decision.ABSENT, "p1")
    if phase == "COMPENSATED":
        assert ledger.commanded() == [[("second", 0, 0)]]
        ledger.undone("second")
    assert ledger.phase == phase


# --- two agents in one workflow ---------------------------------------------------------------------------------------


def said_by(ledger: Ledger, instance: str, status: WorkflowStatus) -> None:
    ledger.append(WorkflowEvent("w", 0, status, instance=instance))


def begun_by(ledger: Ledger, instance: str, **attributes: str) -> None:
    started = WorkflowEvent("w", 0, WorkflowStatus.STARTED, instance=instance, lease_ms=30_000)
    ledger.append(replace(started, attributes=attributes))


@pytest.mark.parametrize("status", [WorkflowStatus.SUCCEEDED, WorkflowStatus.FAILED])
def test_only_the_owner_claims_success_or_failure(ledger: Ledger, status: WorkflowStatus) -> None:
    begun_by(ledger, "a")
    ledger.did("x", X)
    said_by(ledger, "helper", status)
    assert ledger.phase == "RUNNING"
    said_by(ledger, "a", status)
    assert ledger.phase != "RUNNING"


def test_who_resumes_is_the_owner_from_then_on(ledger: Ledger) -> None:
    begun_by(ledger, "a")
    begun_by(ledger, "b", on_existing="resume")
    said_by(ledger, "a", WorkflowStatus.FAILED)
    assert ledger.phase == "RUNNING"
    said_by(ledger, "b", WorkflowStatus.SUCCEEDED)
    assert ledger.phase == "SUCCEEDED"


def test_a_helper_may_ask_for_undoing(ledger: Ledger) -> None:
    begun_by(ledger, "a")
    ledger.did("x", X)
    said_by(ledger, "helper", WorkflowStatus.ROLLBACK_REQUESTED)
    assert ledger.phase == "TURNED"


def test_of_two_claims_the_first_in_the_order_of_the_ledger_counts(ledger: Ledger) -> None:
    ledger.start()
    ledger.did("x", X)
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.phase == "SUCCEEDED"
    assert ledger.incidents() == {"failed_after_success": "OPEN"}
    ledger.said(WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON)
    assert ledger.phase == "TURNED"
