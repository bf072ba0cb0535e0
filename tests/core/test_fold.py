"""The fold, fact by fact: what turns a workflow, what is undone, in which order, and how often."""

from __future__ import annotations

import dataclasses

import pytest
from tests.core.ledger import LEASE_MS, Ledger, contract_of

from amends.processors.terms import Terms
from amends.schemas.commands import DeadLetter, Incident, UndoCommand
from amends.schemas.contract import Effect, Idempotency
from amends.schemas.facts import (
    Decision,
    Failure,
    Party,
    StepEvent,
    StepStatus,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)

PAY, STOCK, LABEL = contract_of("pay"), contract_of("stock"), contract_of("label", probe=True)


def order(ledger: Ledger) -> None:
    ledger.start()
    ledger.did("pay", PAY)
    ledger.did("stock", STOCK)


def test_a_workflow_that_succeeds_undoes_nothing() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.wait(10 * LEASE_MS)
    assert ledger.phase == "SUCCEEDED"
    assert ledger.echoes() == ["RUNNING", "SUCCEEDED"]
    assert ledger.commanded() == []


def test_a_failed_workflow_is_undone_last_step_first_in_one_run() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.commanded() == [[("stock", 0, 0), ("pay", 0, 0)]]
    assert ledger.of(UndoCommand)[0].at_once
    ledger.undone("stock")
    ledger.undone("pay")
    assert ledger.phase == "COMPENSATED"
    assert ledger.echoes() == ["RUNNING", "TURNED", "COMPENSATED"]


def test_a_failed_tool_call_is_not_a_failed_workflow() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.started("label", LABEL)
    ledger.ended("label", StepStatus.FAILED)
    assert ledger.phase == "RUNNING"
    ledger.said(WorkflowStatus.SUCCEEDED)
    assert ledger.phase == "SUCCEEDED"


def test_a_silent_agent_turns_its_workflow_within_two_leases_and_a_quarter() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.wait(LEASE_MS - 1)
    assert ledger.phase == "RUNNING"
    ledger.wait(int(1.3 * LEASE_MS))
    assert ledger.phase == "TURNED"
    assert "silent" in ledger.workflow.header.turned_reason


def test_who_is_refused_an_id_does_not_keep_its_dead_owner_alive() -> None:
    ledger = Ledger()
    order(ledger)
    for _ in range(12):
        ledger.wait(LEASE_MS // 3)
        ledger.start(on_existing="refuse")
    assert ledger.phase == "TURNED"
    ledger = Ledger()
    order(ledger)
    for _ in range(12):
        ledger.wait(LEASE_MS // 3)
        ledger.start(on_existing="resume")
    assert ledger.phase == "RUNNING"


def test_an_agent_that_sends_heartbeats_is_never_failed() -> None:
    ledger = Ledger()
    order(ledger)
    for _ in range(20):
        ledger.wait(LEASE_MS // 3)
        ledger.said(WorkflowStatus.HEARTBEAT)
    assert ledger.phase == "RUNNING"


def test_a_call_open_when_the_agent_died_is_probed_before_anything_is_undone() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.started("label", LABEL, undo_arguments=None)
    ledger.wait(3 * LEASE_MS, until=lambda: bool(ledger.probes()))
    assert ledger.phase == "TURNED"
    assert ledger.commanded() == []
    assert ledger.probes()[0].attempts == ("p1",)
    ledger.resolve("label", Decision.PRESENT, "p1", undo_arguments=b'{"id": 1}', probe_number=0)
    assert ledger.commanded() == [[("label", 0, 0), ("stock", 0, 0), ("pay", 0, 0)]]
    assert ledger.of(UndoCommand)[0].entries[0].arguments == b'{"id": 1}'


def test_a_call_proven_absent_is_not_undone() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.started("label", LABEL)
    ledger.ended("label", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(2_000)
    ledger.resolve("label", Decision.ABSENT, "p1", probe_number=0)
    assert ledger.commanded() == [[("stock", 0, 0), ("pay", 0, 0)]]
    ledger.undone("stock")
    ledger.undone("pay")
    assert ledger.phase == "COMPENSATED"


def test_an_effect_that_lands_after_it_was_proven_absent_is_undone_in_the_end() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.started("label", LABEL)
    ledger.ended("label", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(2_000)
    ledger.resolve("label", Decision.ABSENT, "p1", probe_number=0)
    assert ledger.phase == "COMPENSATED"
    ledger.ended("label", StepStatus.SUCCEEDED)
    assert ledger.phase == "TURNED"
    assert ledger.commanded() == [[("label", 0, 0)]]


def test_unknown_and_then_refused_is_still_unknown() -> None:
    """H1: the first send may have happened, whatever became of the second."""
    ledger = Ledger()
    ledger.start()
    keyed = contract_of("label", call=Idempotency.KEY, probe=True)
    ledger.started("label", keyed, attempt="p1")
    ledger.ended("label", StepStatus.UNKNOWN, attempt="p1")
    ledger.started("label", keyed, attempt="p2")
    ledger.ended("label", StepStatus.FAILED, attempt="p2")
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(2_000)
    assert ledger.phase == "TURNED"
    assert ledger.probes()


def test_without_probe_a_keyed_call_is_sent_again_and_then_undone() -> None:
    keyed = contract_of("label", call=Idempotency.KEY)
    ledger = Ledger()
    ledger.start()
    ledger.started("label", keyed, undo_arguments=None)
    ledger.ended("label", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(2_000)
    assert [r.attempts for r in ledger.resends()] == [("p1",)]
    ledger.append(
        StepEvent("w", "label", "c1", 0, StepStatus.STARTED, "label", writer=Party.COMPENSATOR, contract=None)
    )
    ledger.append(
        StepEvent("w", "label", "c1", 0, StepStatus.SUCCEEDED, "label", writer=Party.COMPENSATOR, undo_arguments=b"{}")
    )
    ledger.wait(2_000)
    assert ledger.commanded() == [[("label", 0, 0)]]


def test_a_re_send_that_was_given_up_before_the_call_spends_nothing_of_the_ladder() -> None:
    keyed = contract_of("label", call=Idempotency.KEY)
    ledger = Ledger()
    ledger.start()
    ledger.started("label", keyed)
    ledger.ended("label", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(2_000)
    for number in range(6):
        resend = StepEvent("w", "label", f"c{number}", 0, StepStatus.STARTED, "label", writer=Party.COMPENSATOR)
        ledger.append(resend)
        ledger.append(dataclasses.replace(resend, status=StepStatus.NOT_EXECUTED))
        ledger.wait(1_100)
        assert len(ledger.resends()) == number + 2
    assert ledger.incidents() == {}


def test_what_nobody_can_find_out_is_an_incident_and_does_not_block_what_came_before() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.started("label", contract_of("label"))
    ledger.ended("label", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(10_000, until=lambda: bool(ledger.incidents()))
    assert ledger.incidents() == {"unknown": "OPEN"}
    assert ledger.commanded() == [[("stock", 0, 0), ("pay", 0, 0)]]
    ledger.undone("stock")
    ledger.undone("pay")
    assert ledger.phase == "TURNED"
    ledger.resolve("label", Decision.MARK_ABSENT, "p1", writer=Party.PERSON)
    assert ledger.phase == "COMPENSATED"
    assert ledger.incidents() == {"unknown": "CLOSED"}


@pytest.mark.parametrize(
    ("contract", "kind"),
    [
        (contract_of("mail", effect=Effect.IRREVERSIBLE), "irreversible"),
        (contract_of("mail", effect=Effect.UNCLASSIFIED), "unclassified"),
        (contract_of("mail", undo=None), "no_undo"),
    ],
)
def test_what_no_machine_may_undo_is_an_incident_and_never_automatic(contract: object, kind: str) -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", PAY)
    ledger.did("mail", contract)  # type: ignore[arg-type]
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.incidents() == {kind: "OPEN"}
    assert ledger.commanded() == [[("pay", 0, 0)]]
    ledger.undone("pay")
    assert ledger.phase == "TURNED"
    ledger.resolve("mail", Decision.ACCEPT_LOSS, writer=Party.PERSON, version=1)
    assert ledger.phase == "CLOSED_WITH_LOSS"


def test_an_undo_that_fails_is_tried_again_until_its_budget_is_spent_and_then_dead_lettered() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", PAY)
    ledger.said(WorkflowStatus.FAILED)
    for attempt in range(3):
        ledger.wait(1_000, until=lambda n=attempt: [("pay", 0, n)] in ledger.commanded())  # type: ignore[misc]
        ledger.undo("pay", UndoStatus.STARTED, attempt=attempt)
        ledger.undo("pay", UndoStatus.FAILED, attempt=attempt)
    (letter,) = ledger.of(DeadLetter)
    assert letter.attempts_spent == 3
    assert ledger.incidents() == {"undo_failed": "OPEN"}
    ledger.wait(100_000)
    assert len(ledger.commanded()) == 3


def test_a_person_s_retry_grants_a_new_budget_once_and_only_on_the_version_decided_on() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", contract_of("pay", attempts_max=1))
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("pay", UndoStatus.STARTED)
    ledger.undo("pay", UndoStatus.FAILED)
    for _ in range(2):
        ledger.resolve("pay", Decision.RETRY, writer=Party.PERSON, version=1)
    assert ledger.commanded() == [[("pay", 0, 0)], [("pay", 1, 0)]]
    ledger.undone("pay", generation=1)
    assert ledger.phase == "COMPENSATED"
    assert ledger.incidents() == {"undo_failed": "CLOSED"}


def test_an_undo_that_may_have_taken_is_asked_about_first_where_it_can_be() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", contract_of("pay", undo=Idempotency.NEITHER, verify=True))
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("pay", UndoStatus.STARTED)
    ledger.undo("pay", UndoStatus.UNKNOWN)
    ledger.wait(2_000)
    assert [e.verify_first for c in ledger.of(UndoCommand) for e in c.entries] == [False, True]


def test_an_undo_that_may_have_taken_is_never_repeated_at_a_remote_that_can_neither_be_asked_nor_told_twice() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", contract_of("pay", undo=Idempotency.NEITHER))
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("pay", UndoStatus.STARTED)
    ledger.wait(200_000)
    assert ledger.commanded() == [[("pay", 0, 0)]]
    assert ledger.incidents() == {"undo_failed": "OPEN"}


def test_an_undo_whose_compensator_died_is_granted_again_after_its_lease() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", PAY)
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("pay", UndoStatus.STARTED)
    ledger.wait(60_000, until=lambda: [("pay", 0, 1)] in ledger.commanded())
    assert ledger.step("pay").undo.spent == 1  # type: ignore[union-attr]


def test_an_end_by_somebody_who_does_not_own_the_attempt_counts_for_nothing() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", PAY)
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("pay", UndoStatus.STARTED, owner="a")
    ledger.undo("pay", UndoStatus.STARTED, owner="b")
    for status in (UndoStatus.DEFERRED, UndoStatus.RELEASED, UndoStatus.FAILED, UndoStatus.UNKNOWN):
        ledger.undo("pay", status, owner="b")
    assert ledger.step("pay").undo.state == "open"  # type: ignore[union-attr]
    ledger.undo("pay", UndoStatus.UNDONE, owner="a")
    assert ledger.phase == "COMPENSATED"


@pytest.mark.parametrize("status", [UndoStatus.RELEASED, UndoStatus.DEFERRED])
def test_released_and_deferred_spend_nothing(status: UndoStatus) -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", PAY)
    ledger.said(WorkflowStatus.FAILED)
    for attempt in range(10):
        ledger.undo("pay", UndoStatus.STARTED, attempt=attempt)
        ledger.undo("pay", status, attempt=attempt)
    ledger.wait(1_000)
    assert ledger.commanded()[-1] == [("pay", 0, 10)]
    assert ledger.incidents() == {}


def test_a_failed_run_goes_on_from_where_it_ended() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("stock", UndoStatus.STARTED)
    ledger.undo("stock", UndoStatus.FAILED)
    ledger.wait(1_000)
    assert ledger.commanded() == [[("stock", 0, 0), ("pay", 0, 0)], [("stock", 0, 1), ("pay", 0, 0)]]


def test_a_command_is_repeated_until_somebody_starts_it() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", PAY)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(ledger.terms.command_repeat_ms * 3)
    assert ledger.commanded() == [[("pay", 0, 0)]] * 4
    ledger.undo("pay", UndoStatus.STARTED)
    ledger.wait(ledger.terms.command_repeat_ms * 3)
    assert len(ledger.commanded()) == 4


def test_a_claim_of_success_over_an_open_call_waits_for_its_outcome() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.started("pay", PAY)
    ledger.said(WorkflowStatus.SUCCEEDED)
    assert ledger.phase == "FINISHING"
    ledger.ended("pay", StepStatus.SUCCEEDED)
    assert ledger.phase == "SUCCEEDED"


def test_a_claim_over_a_call_that_proves_absent_is_false_and_turns() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", PAY)
    ledger.started("label", LABEL)
    ledger.ended("label", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.wait(2_000)
    ledger.resolve("label", Decision.ABSENT, "p1", probe_number=0)
    assert ledger.phase == "TURNED"
    assert ledger.commanded() == [[("pay", 0, 0)]]


def test_a_claim_over_a_call_that_proves_absent_stands_if_the_tool_was_called_again() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.started("label", LABEL)
    ledger.ended("label", StepStatus.UNKNOWN)
    ledger.did("again", LABEL)
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.wait(2_000)
    ledger.resolve("label", Decision.ABSENT, "p1", probe_number=0)
    assert ledger.phase == "SUCCEEDED"


def test_a_claim_over_a_call_nobody_can_find_out_about_is_an_incident_and_no_success() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.started("pay", PAY)
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.wait(200_000)
    assert ledger.phase == "FINISHING"
    assert ledger.incidents() == {"unknown": "OPEN"}
    ledger.ended("pay", StepStatus.SUCCEEDED)
    assert ledger.phase == "SUCCEEDED"
    assert ledger.incidents() == {"unknown": "CLOSED"}


def test_a_trigger_of_another_epoch_does_nothing() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.said(WorkflowStatus.FAILED, epoch=7)
    assert ledger.phase == "RUNNING"


def test_success_is_undone_only_if_somebody_asks_for_it() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.phase == "SUCCEEDED"
    assert ledger.incidents() == {"failed_after_success": "OPEN"}
    ledger.said(WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON, epoch=0)
    assert ledger.phase == "TURNED"
    assert ledger.commanded() == [[("stock", 0, 0), ("pay", 0, 0)]]


def test_a_step_that_lands_after_the_turn_is_condemned_and_goes_first() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.said(WorkflowStatus.FAILED)
    ledger.did("late", contract_of("late"))
    ledger.wait(6_000)
    assert ledger.commanded()[-1] == [("late", 0, 0), ("stock", 0, 0), ("pay", 0, 0)]


def test_fifty_failures_at_once_are_one_turn() -> None:
    ledger = Ledger()
    order(ledger)
    for _ in range(50):
        ledger.said(WorkflowStatus.FAILED)
    assert ledger.workflow.header.epoch == 1
    assert len(ledger.commanded()) == 1


def test_a_ruling_on_an_open_attempt_waits_for_its_end_and_yields_to_undone() -> None:
    ledger = Ledger()
    order(ledger)
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("stock", UndoStatus.STARTED)
    ledger.undo("pay", UndoStatus.STARTED)
    for step in ("stock", "pay"):
        ledger.resolve(step, Decision.ACCEPT_LOSS, writer=Party.PERSON, version=0)
    assert ledger.phase == "TURNED"
    ledger.undo("stock", UndoStatus.UNDONE)
    ledger.undo("pay", UndoStatus.FAILED)
    assert ledger.phase == "CLOSED_WITH_LOSS"
    assert ledger.step("stock").undo.state == "undone"  # type: ignore[union-attr]
    ledger.undo("pay", UndoStatus.UNDONE)
    assert ledger.phase == "COMPENSATED"


def test_an_undo_whose_arguments_were_never_seen_is_an_incident_and_never_guessed() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.started("pay", PAY, undo_arguments=None)
    ledger.ended("pay", StepStatus.SUCCEEDED)
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.incidents() == {"arguments_missing": "OPEN"}
    assert ledger.commanded() == []


def test_what_is_sent_stays_under_the_size_of_a_record_whatever_others_wrote() -> None:
    ledger = Ledger()
    ledger.start()
    for number in range(60):
        ledger.did(f"pay-{number}", contract_of("p" * 10_000), undo_arguments=b'{"a": "' + b"x" * 4_000 + b'"}')
    error = Failure("E", "y" * 500_000)
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.FAILED, error=error))
    ledger.undo("pay-59", UndoStatus.STARTED)
    ledger.append(UndoEvent("w", "pay-59", 0, 0, UndoStatus.FAILED, "o", retryable=False, error=error))
    assert ledger.incidents() == {"undo_failed": "OPEN"}
    assert max(len(emission.value or b"") for emission in ledger.raw) < 900_000


def test_a_lane_that_does_not_exist_is_an_incident_and_other_workflows_go_on() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", contract_of("pay", lane="nowhere"))
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.incidents() == {"lane_missing": "OPEN"}
    assert ledger.commanded() == []


def test_a_start_with_the_lane_closes_its_incident_and_commands_what_waited() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("pay", contract_of("pay", lane="late"))
    ledger.said(WorkflowStatus.FAILED)
    ledger.terms = Terms(lanes=frozenset({"default", "late"}))
    ledger.crash()
    assert ledger.incidents() == {"lane_missing": "CLOSED"}
    assert ledger.commanded() == [[("pay", 0, 0)]]
    ledger.crash()
    assert len(ledger.of(Incident)) == 2


def test_a_fact_of_a_workflow_never_started_is_a_stray_and_no_workflow() -> None:
    ledger = Ledger()
    ledger.started("pay", PAY)
    assert ledger.phase == "NONE"
    assert ledger.incidents() == {"stray": "OPEN"}
    ledger.wait(1_000_000)
    assert ledger.commanded() == []


@pytest.mark.parametrize("junk", [b"", b"junk", b"\xc3\x01" + bytes(40), None])
def test_a_record_nobody_can_read_is_kept_and_its_workflow_stays_open_until_somebody_rules(junk: bytes | None) -> None:
    ledger = Ledger()
    order(ledger)
    offset = ledger.append(None, raw=junk, key=b"w")
    letters = [e for e in ledger.raw if e.topic == "dlq.amends.ledger"]
    assert [e.value for e in letters] == [junk]
    assert dict(letters[0].headers)["__dlq.errors.offset"] == str(offset).encode()
    ledger.said(WorkflowStatus.SUCCEEDED)
    assert ledger.phase == "FINISHING"
    assert ledger.incidents() == {"unreadable": "OPEN"}
    ledger.append(None, raw=junk, key=None)
    ledger.resolve("", Decision.MARK_ABSENT, writer=Party.PERSON, unread_offset=offset)
    assert ledger.phase == "SUCCEEDED"


def test_a_watched_workflow_is_planned_but_never_undone() -> None:
    ledger = Ledger()
    ledger.start(mode="observe")
    ledger.did("pay", PAY)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(100_000)
    assert ledger.phase == "CLOSED_WITH_LOSS"
    assert ledger.commanded() == []
    assert ledger.incidents() == {}


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_new_owner_carries_on_where_the_old_one_died(checkpoint: bool) -> None:
    ledger = Ledger()
    order(ledger)
    ledger.started("label", LABEL, undo_arguments=None)
    ledger.crash(checkpoint=checkpoint)
    ledger.wait(3 * LEASE_MS, until=lambda: bool(ledger.probes()))
    ledger.crash(checkpoint=checkpoint)
    ledger.resolve("label", Decision.ABSENT, "p1", probe_number=0)
    ledger.crash(checkpoint=checkpoint)
    assert ledger.commanded()[-1] == [("stock", 0, 0), ("pay", 0, 0)]
    ledger.undone("stock")
    ledger.crash(checkpoint=checkpoint)
    assert ledger.commanded()[-1] == [("pay", 0, 0)]
    ledger.undone("pay")
    ledger.crash(checkpoint=checkpoint)
    assert ledger.phase == "COMPENSATED"
