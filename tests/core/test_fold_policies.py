"""Policies: what counts as a failure, what it leads to, and what is done past the pivot."""

from __future__ import annotations

import dataclasses

import pytest
from tests.core.ledger import LEASE_MS, Ledger, contract_of

from amends.schemas.contract import Contract, Effect
from amends.schemas.facts import Decision, Party, StepStatus, WorkflowEvent, WorkflowStatus
from amends.schemas.policy import (
    Around,
    FailedBy,
    PastPivot,
    Policy,
    UnreadablePolicy,
    decode_policy,
    encode_policy,
)

CHARGE = contract_of("charge")
BOOK = contract_of("book")
MAIL = contract_of("mail", effect=Effect.IRREVERSIBLE, undo=None)
FINISH = Policy(past_pivot=PastPivot.FINISH, finish_attempts_max=2, finish_within_ms=600_000)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def begun(ledger: Ledger, policy: Policy | bytes, *, deadline_ms: int | None = None) -> None:
    data = policy if isinstance(policy, bytes) else encode_policy(policy)
    ledger.append(
        WorkflowEvent("w", 0, WorkflowStatus.STARTED, lease_ms=LEASE_MS, policy=data, deadline_ms=deadline_ms)
    )


def fails(ledger: Ledger, step: str, contract: Contract = CHARGE, epoch: int = 0) -> None:
    ledger.started(step, contract, epoch=epoch)
    ledger.ended(step, StepStatus.FAILED, epoch=epoch)


# --- as data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        FINISH,
        Policy(failed_calls_max=0, failed_by=frozenset({FailedBy.DEADLINE}), around_waiting=Around.HALT),
    ],
)
def test_a_policy_survives_its_own_bytes(policy: Policy) -> None:
    assert decode_policy(encode_policy(policy)) == policy


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"new":1}', b'{"failed_calls_max":-1}', b'{"past_pivot":"fly"}'])
def test_what_is_no_policy_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(UnreadablePolicy):
        decode_policy(data)


def test_a_policy_that_cannot_be_read_is_an_incident_and_the_default_is_kept(ledger: Ledger) -> None:
    begun(ledger, b'{"newer":true}')
    assert ledger.incidents() == {"policy_unreadable": "OPEN"}
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.phase == "COMPENSATED"


# --- budgets of failure -----------------------------------------------------------------------------------------------


def test_a_workflow_turns_when_one_more_call_fails_than_may(ledger: Ledger) -> None:
    begun(ledger, Policy(failed_calls_max=2))
    fails(ledger, "a")
    fails(ledger, "b", BOOK)
    ledger.ended("b", StepStatus.FAILED)  # a repeat
    assert ledger.phase == "RUNNING"
    fails(ledger, "c")
    assert ledger.phase == "COMPENSATED"
    assert "the budget of 2 failed calls is spent" in ledger.workflow.header.turned_reason


def test_a_tool_has_a_budget_of_its_own(ledger: Ledger) -> None:
    once = dataclasses.replace(CHARGE, failed_calls_max=0)
    ledger.start()
    fails(ledger, "b", BOOK)
    assert ledger.phase == "RUNNING"
    fails(ledger, "c", once)
    assert "the budget of 0 failed calls of charge is spent" in ledger.workflow.header.turned_reason


def test_a_new_epoch_has_a_new_budget(ledger: Ledger) -> None:
    begun(ledger, Policy(failed_calls_max=1))
    ledger.savepoint("here")
    fails(ledger, "a")
    ledger.undo_to("here")
    fails(ledger, "b", epoch=1)
    assert ledger.phase == "RUNNING"


# --- what counts ------------------------------------------------------------------------------------------------------


def test_a_silence_that_is_no_failure_is_an_incident_until_the_agent_speaks(ledger: Ledger) -> None:
    begun(ledger, Policy(failed_by=frozenset({FailedBy.ERROR})))
    ledger.wait(LEASE_MS * 3)
    assert ledger.phase == "RUNNING"
    assert ledger.incidents() == {"agent_silent": "OPEN"}
    before = len(ledger.entries)
    ledger.wait(LEASE_MS * 3)
    assert len(ledger.entries) == before  # and is not found again and again
    ledger.said(WorkflowStatus.HEARTBEAT)
    assert ledger.incidents() == {"agent_silent": "CLOSED"}


def test_an_error_that_is_no_failure_is_an_incident(ledger: Ledger) -> None:
    begun(ledger, Policy(failed_by=frozenset({FailedBy.SILENCE})))
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.phase == "RUNNING"
    assert ledger.incidents() == {"agent_failed": "OPEN"}


def test_a_deadline_that_is_no_failure_is_one_incident(ledger: Ledger) -> None:
    begun(ledger, Policy(failed_by=frozenset()), deadline_ms=5_000)
    ledger.wait(LEASE_MS)
    assert ledger.incidents() == {"deadline_passed": "OPEN"}
    assert ledger.phase == "RUNNING"


# --- around what waits for a person -----------------------------------------------------------------------------------


def mailed_between(ledger: Ledger, policy: Policy) -> None:
    begun(ledger, policy)
    ledger.did("charge", CHARGE)
    ledger.did("mail", MAIL)
    ledger.did("book", BOOK)
    ledger.said(WorkflowStatus.FAILED)


def test_by_default_what_waits_for_a_person_holds_nothing(ledger: Ledger) -> None:
    mailed_between(ledger, Policy())
    ledger.undone("book")
    assert ("charge", 0, 0) in [one for run in ledger.commanded() for one in run]


@pytest.mark.parametrize("policy", [Policy(around_waiting=Around.HALT), Policy(before_irreversible=Around.HALT)])
def test_a_halt_leaves_what_came_before_alone_until_a_person_has_decided(ledger: Ledger, policy: Policy) -> None:
    if policy.before_irreversible is Around.GO_ON:
        begun(ledger, policy)
        ledger.did("charge", CHARGE)
        ledger.did("mail", contract_of("mail", undo=None))
        ledger.did("book", BOOK)
        ledger.said(WorkflowStatus.FAILED)
    else:
        mailed_between(ledger, policy)
    ledger.undone("book")
    assert ledger.commanded() == [[("book", 0, 0)]]
    ledger.resolve("mail", Decision.ACCEPT_LOSS, writer=Party.PERSON)
    assert ledger.commanded()[-1] == [("charge", 0, 0)]


# --- past the pivot ---------------------------------------------------------------------------------------------------


def past_pivot(ledger: Ledger) -> None:
    begun(ledger, FINISH)
    ledger.did("charge", CHARGE)
    ledger.did("mail", MAIL)


def test_before_the_pivot_a_failure_undoes(ledger: Ledger) -> None:
    begun(ledger, FINISH)
    ledger.did("charge", CHARGE)
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.phase == "TURNED"


def test_past_the_pivot_a_failure_undoes_nothing_and_another_agent_finishes(ledger: Ledger) -> None:
    past_pivot(ledger)
    ledger.said(WorkflowStatus.FAILED)
    assert (ledger.phase, ledger.workflow.header.epoch) == ("RUNNING", 1)
    ledger.wait(LEASE_MS * 4)
    assert ledger.phase == "RUNNING"  # nobody is there: nobody is silent
    ledger.start(on_existing="resume")
    ledger.did("book", BOOK, epoch=1)
    ledger.said(WorkflowStatus.SUCCEEDED, epoch=1)
    assert ledger.phase == "SUCCEEDED"
    assert ledger.commanded() == []


def test_what_the_agent_that_failed_still_had_under_way_is_undone(ledger: Ledger) -> None:
    past_pivot(ledger)
    ledger.said(WorkflowStatus.FAILED)
    ledger.did("straggler", BOOK)
    assert ledger.commanded() == [[("straggler", 0, 0)]]


def test_a_dead_successor_is_found_and_counts_as_an_attempt(ledger: Ledger) -> None:
    past_pivot(ledger)
    ledger.said(WorkflowStatus.FAILED)
    ledger.start(on_existing="resume")
    ledger.wait(LEASE_MS * 3, until=lambda: ledger.workflow.header.is_vacant)
    assert ledger.workflow.header.finish_attempts == 2
    assert ledger.incidents() == {}
    ledger.start(on_existing="resume")
    ledger.said(WorkflowStatus.FAILED, epoch=2)
    assert ledger.incidents() == {"unfinished": "OPEN"}
    ledger.start(on_existing="resume")  # a person brought one more
    assert ledger.incidents() == {"unfinished": "CLOSED"}


def test_a_workflow_nobody_finishes_is_an_incident_in_time(ledger: Ledger) -> None:
    past_pivot(ledger)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(FINISH.finish_within_ms + LEASE_MS, step_ms=5_000)
    assert ledger.incidents() == {"unfinished": "OPEN"}
    assert ledger.phase == "RUNNING"
    before = len(ledger.entries)
    ledger.wait(LEASE_MS * 2)
    assert len(ledger.entries) == before


def test_who_asks_for_undoing_past_the_pivot_is_obeyed(ledger: Ledger) -> None:
    past_pivot(ledger)
    ledger.said(WorkflowStatus.FAILED)
    ledger.said(WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON)
    assert ledger.phase == "TURNED"
    assert ledger.incidents() == {"irreversible": "OPEN"}


def test_a_deadline_past_the_pivot_gives_way_to_the_time_to_finish(ledger: Ledger) -> None:
    begun(ledger, FINISH, deadline_ms=5_000)
    ledger.did("mail", MAIL)
    ledger.wait(6_000)
    assert ledger.workflow.header.is_vacant
    epoch = ledger.workflow.header.epoch
    ledger.wait(LEASE_MS)
    assert ledger.workflow.header.epoch == epoch == 1


def test_a_vacant_workflow_survives_a_crash(ledger: Ledger) -> None:
    past_pivot(ledger)
    ledger.said(WorkflowStatus.FAILED)
    before = ledger.workflow.header
    ledger.crash()
    assert ledger.workflow.header == before
    ledger.wait(FINISH.finish_within_ms + LEASE_MS, step_ms=5_000)
    assert ledger.incidents() == {"unfinished": "OPEN"}
