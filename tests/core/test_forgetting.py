"""Instances, the grace, forgetting and folding again: whose fact it is follows from the ledger alone."""

from __future__ import annotations

import dataclasses

import pytest
from tests.core.ledger import LEASE_MS, Entry, Ledger, contract_of

from amends.processors import records
from amends.processors.parked import Parked
from amends.processors.partition import Partition
from amends.processors.state import Header
from amends.processors.terms import Terms
from amends.processors.workflow import Workflow
from amends.schemas.codec import encode
from amends.schemas.commands import Incident, UndoCommand, WorkflowEcho
from amends.schemas.facts import Party, StepEvent, StepStatus, UndoStatus, WorkflowEvent, WorkflowStatus

GRACE_MS = 60_000
TERMS = Terms(grace_ms=GRACE_MS)
PAY = contract_of("pay")


def succeeded(ledger: Ledger | None = None, step: str = "pay") -> Ledger:
    ledger = ledger or Ledger(TERMS)
    start = ledger.start()
    ledger.did(step, PAY, workflow_offset=start)
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.SUCCEEDED, workflow_offset=start))
    return ledger


def other_fact(ledger: Ledger) -> None:
    """A fact of somebody else: it is the ledger's time that passes."""
    ledger.append(WorkflowEvent("other", 0, WorkflowStatus.STARTED, lease_ms=10 * GRACE_MS))


def forgotten(ledger: Ledger | None = None) -> Ledger:
    ledger = succeeded(ledger)
    ledger.now_ms += GRACE_MS + 1
    other_fact(ledger)
    return ledger


def rolled_back(offset: int) -> WorkflowEvent:
    return WorkflowEvent(
        "w", 0, WorkflowStatus.ROLLBACK_REQUESTED, workflow_offset=offset, writer=Party.PERSON, by="ann"
    )


def content(workflow: Workflow) -> tuple[Header, dict[int, object]]:
    return workflow.header, dict(enumerate(workflow.steps))


# --- instances --------------------------------------------------------------------------------------------------------


def test_a_start_within_the_grace_is_told_of_the_workflow_that_is_there() -> None:
    ledger = succeeded()
    ledger.now_ms += GRACE_MS
    asked = ledger.start()
    echo = ledger.of(WorkflowEcho)[-1]
    assert (echo.workflow_offset, echo.answers_offset, echo.phase) == (0, asked, "SUCCEEDED")


@pytest.mark.parametrize("dropped", [False, True])
def test_a_start_after_the_grace_begins_an_instance_of_its_own(dropped: bool) -> None:
    ledger = succeeded()
    ledger.now_ms += GRACE_MS + 1
    if dropped:
        other_fact(ledger)
        assert ledger.partition.workflow("w") is None
    start = ledger.start()
    assert (ledger.workflow.header.started_offset, ledger.phase, ledger.workflow.steps) == (start, "RUNNING", [])
    echo = ledger.of(WorkflowEcho)[-1]
    assert (echo.workflow_offset, echo.phase) == (start, "RUNNING")


def test_a_fact_belongs_to_the_instance_it_names() -> None:
    ledger = succeeded()
    ledger.now_ms += GRACE_MS + 1
    second = ledger.start()
    ledger.did("stock", PAY, workflow_offset=second)
    ledger.append(rolled_back(0))
    assert [[e.step_id for e in c.entries] for c in ledger.of(UndoCommand)] == [["pay"]]
    assert ledger.workflow.header.phase == "RUNNING"
    assert [step.step_id for step in ledger.workflow.steps] == ["stock"]


def test_a_fact_that_names_none_belongs_to_the_newest_and_after_the_grace_to_none() -> None:
    ledger = succeeded()
    ledger.now_ms += GRACE_MS
    ledger.ended("late", StepStatus.FAILED)
    assert [step.step_id for step in ledger.workflow.steps] == ["pay", "late"]
    assert ledger.incidents() == {}
    ledger = forgotten()
    ledger.ended("late", StepStatus.FAILED)
    assert ledger.incidents() == {"stray": "OPEN"}


def test_the_grace_counts_the_same_whether_the_state_was_dropped_or_not() -> None:
    held, dropped = succeeded(), succeeded()
    for ledger in (held, dropped):
        ledger.now_ms += GRACE_MS + 1
    other_fact(dropped)
    for ledger in (held, dropped):
        ledger.ended("late", StepStatus.UNKNOWN)
        ledger.start()
        ledger.ended("pay", StepStatus.UNKNOWN)
        assert ledger.incidents() == {"stray": "OPEN"}
        assert [step.step_id for step in ledger.workflow.steps] == ["pay"]


def test_the_echo_of_an_id_is_that_of_its_newest_instance() -> None:
    ledger = succeeded()
    ledger.now_ms += GRACE_MS + 1
    second = ledger.start()
    ledger.append(rolled_back(0))
    ledger.undo("pay", UndoStatus.STARTED, workflow_offset=0)
    ledger.undo("pay", UndoStatus.UNDONE, workflow_offset=0)
    assert ledger.of(WorkflowEcho)[-1].workflow_offset == second


# --- forgetting -------------------------------------------------------------------------------------------------------


def test_a_closed_workflow_is_dropped_after_its_grace_with_tombstones() -> None:
    ledger = succeeded()
    ledger.checkpoint()
    assert [key for key in ledger.changelog if key.startswith(b"w")]
    ledger.now_ms += GRACE_MS + 1
    other_fact(ledger)
    ledger.checkpoint()
    assert [key for key in ledger.changelog if key.startswith(b"w")] == []
    assert ledger.partition.held() == 1
    tombstone = ledger.raw[-1]
    assert (tombstone.topic, tombstone.key, tombstone.value) == ("amends.workflows", b"w", None)


def test_a_workflow_with_an_open_incident_is_not_dropped() -> None:
    ledger = succeeded()
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.FAILED, workflow_offset=0))
    assert ledger.incidents() == {"failed_after_success": "OPEN"}
    ledger.now_ms += 10 * GRACE_MS
    other_fact(ledger)
    assert ledger.partition.workflow("w") is not None


def test_an_open_workflow_is_not_dropped() -> None:
    ledger = Ledger(TERMS)
    ledger.start(lease_ms=100 * GRACE_MS)
    ledger.now_ms += 10 * GRACE_MS
    other_fact(ledger)
    assert ledger.phase == "RUNNING"


def test_what_is_restored_is_dropped_too() -> None:
    ledger = succeeded()
    ledger.crash()
    ledger.now_ms += GRACE_MS + 1
    other_fact(ledger)
    ledger.checkpoint()
    assert [key for key in ledger.changelog if key.startswith(b"w")] == []


def test_slots_stay_few_while_workflows_pass_by() -> None:
    ledger = Ledger(Terms(grace_ms=1_000))
    most = 0
    for number in range(500):
        ledger.workflow_id = f"w{number}"
        ledger.now_ms += 10
        start = ledger.start()
        ledger.append(WorkflowEvent(ledger.workflow_id, 0, WorkflowStatus.SUCCEEDED, workflow_offset=start))
        most = max(most, ledger.partition.held())
        if number % 100 == 0:
            ledger.checkpoint()
    assert most <= 103
    ledger.checkpoint()
    assert len(ledger.changelog) <= 104


def test_what_is_held_stays_flat_over_a_hundred_thousand_facts() -> None:
    """Of 50,000 short workflows, one each 10 ms, with a grace of a second."""
    partition, most, kept = Partition(0, Terms(grace_ms=1_000)), 0, set[bytes]()
    for number in range(50_000):
        name, start, at_ms = f"w{number}", 2 * number, 1_000_000 + 10 * number
        for offset, fact in enumerate(
            (
                WorkflowEvent(name, 0, WorkflowStatus.STARTED),
                WorkflowEvent(name, 0, WorkflowStatus.SUCCEEDED, workflow_offset=start),
            ),
            start,
        ):
            partition.fold(Entry(offset, at_ms, name.encode(), encode(fact)))
        if number % 50 == 0:
            partition.outputs(at_ms)
            for key, value in partition.changes():
                (kept.discard if value is None else kept.add)(key)
            most = max(most, partition.held(), len(kept))
    assert most <= 2 * 50 + 101


# --- folding again ----------------------------------------------------------------------------------------------------


def test_a_person_undoes_an_old_success_that_was_forgotten() -> None:
    ledger = forgotten()
    ledger.append(rolled_back(0))
    assert ledger.commanded() == [[("pay", 0, 0)]]
    assert ledger.of(UndoCommand)[0].workflow_offset == 0
    ledger.undo("pay", UndoStatus.STARTED, workflow_offset=0)
    ledger.undo("pay", UndoStatus.UNDONE, workflow_offset=0)
    assert ledger.phase == "COMPENSATED"
    assert ledger.of(WorkflowEcho)[-1].phase == "COMPENSATED"
    ledger.now_ms += GRACE_MS + 1
    other_fact(ledger)
    assert ledger.partition.workflow("w") is None


def test_what_is_folded_again_is_what_was_dropped() -> None:
    ledger = succeeded()
    before = content(ledger.workflow)
    ledger.now_ms += GRACE_MS + 1
    other_fact(ledger)
    duplicate = StepEvent("w", "pay", "p1", 0, StepStatus.SUCCEEDED, "pay", workflow_offset=0)
    offset = ledger.append(duplicate)
    assert ledger.incidents() == {}
    # Known again, and forgotten again at once: nothing of it is open.
    assert ledger.partition.workflow("w") is None
    ledger.crash()
    ledger.refolds = False
    ledger.append(duplicate)
    stretch = ledger.partition.refolding()
    assert stretch is not None
    for entry in ledger.entries[: offset + 2]:
        stretch.take(entry)
    ledger.partition.refolded(stretch)
    again = content(ledger.workflow)
    assert dataclasses.replace(again[0], folded_to=before[0].folded_to) == before[0]
    assert again[1] == before[1]


def test_facts_that_come_while_it_is_folded_again_wait_and_keep_their_order() -> None:
    ledger = forgotten()
    ledger.refolds = False
    ledger.append(rolled_back(0))
    ledger.undo("pay", UndoStatus.STARTED, workflow_offset=0)
    ledger.undo("pay", UndoStatus.UNDONE, workflow_offset=0)
    start = ledger.append(WorkflowEvent("x", 0, WorkflowStatus.STARTED))
    found = ledger.partition.workflow("x")
    assert found is not None, "the fold goes on with other keys"
    assert found.header.started_offset == start
    assert ledger.partition.workflow("w") is None
    ledger.refolds = True
    ledger.look()
    assert ledger.phase == "COMPENSATED"


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_new_owner_begins_anew_what_was_being_folded_again(checkpoint: bool) -> None:
    ledger = forgotten()
    ledger.checkpoint()
    ledger._committed = ledger.partition.folded_to
    ledger.refolds = False
    ledger.append(rolled_back(0))
    ledger.undo("pay", UndoStatus.STARTED, workflow_offset=0)
    second = ledger.start()
    ledger.crash(checkpoint=checkpoint)
    ledger.undo("pay", UndoStatus.UNDONE, workflow_offset=0)
    ledger.refolds = True
    ledger.look()
    # The STARTED came while the first was being undone: a refusal to be, and no instance.
    assert (ledger.workflow.header.started_offset, ledger.phase) == (0, "COMPENSATED")
    assert ledger.of(WorkflowEcho)[-1].answers_offset == second


@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_instance_that_begins_while_an_older_one_is_folded_again_is_not_lost(checkpoint: bool) -> None:
    ledger = forgotten()
    ledger.checkpoint()
    ledger._committed = ledger.partition.folded_to
    ledger.refolds = False
    ledger.append(StepEvent("w", "pay", "p1", 0, StepStatus.SUCCEEDED, "pay", workflow_offset=0))
    second = ledger.start()
    ledger.did("stock", PAY, workflow_offset=second)
    ledger.crash(checkpoint=checkpoint)
    ledger.refolds = True
    ledger.look()
    assert (ledger.workflow.header.started_offset, ledger.phase) == (second, "RUNNING")
    assert [step.step_id for step in ledger.workflow.steps] == ["stock"]
    assert ledger.of(WorkflowEcho)[-1].workflow_offset == second


def test_two_forgotten_instances_of_one_id_are_folded_again_one_after_the_other() -> None:
    ledger = forgotten()
    second = ledger.start()
    ledger.did("stock", PAY, workflow_offset=second)
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.SUCCEEDED, workflow_offset=second))
    ledger.now_ms += GRACE_MS + 1
    other_fact(ledger)
    assert ledger.partition.workflow("w") is None
    ledger.refolds = False
    ledger.append(rolled_back(second))
    ledger.append(rolled_back(0))
    ledger.crash()
    ledger.refolds = True
    ledger.look()
    assert sorted(e.step_id for c in ledger.of(UndoCommand) for e in c.entries) == ["pay", "stock"]


def test_a_start_that_the_ledger_no_longer_holds_is_an_incident_and_nothing_is_folded() -> None:
    ledger = forgotten()
    ledger.ledger_start = 1
    ledger.append(rolled_back(0))
    assert ledger.commanded() == []
    assert ledger.incidents() == {"start_gone": "OPEN"}
    assert ledger.of(Incident)[-1].workflow_offset == 0
    ledger.crash()
    ledger.append(rolled_back(0))
    assert len(ledger.of(Incident)) == 1


def test_a_start_that_is_none_is_a_stray_and_no_workflow() -> None:
    ledger = forgotten()
    ledger.append(rolled_back(1))
    assert ledger.incidents() == {"stray": "OPEN"}
    ledger.checkpoint()
    assert [key for key in ledger.changelog if b"@1" in key and key.startswith(b"w")] == []


def test_a_timeout_that_a_silence_refused_stays_refused_when_it_is_folded_again() -> None:
    ledger = Ledger(TERMS)
    start = ledger.start()
    ledger.did("pay", PAY, workflow_offset=start)
    ledger.now_ms += LEASE_MS * 2  # an outage: nobody wrote
    ledger.wait(LEASE_MS // 2)  # proposals that are refused, because of the silence
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.SUCCEEDED, workflow_offset=start))
    assert ledger.phase == "SUCCEEDED"
    ledger.now_ms += GRACE_MS + 1
    other_fact(ledger)
    ledger.append(StepEvent("w", "pay", "p1", 0, StepStatus.SUCCEEDED, "pay", workflow_offset=0))
    assert ledger.commanded() == []
    assert ledger.echoes()[-1] == "SUCCEEDED"


# --- state of 0.1.0 ---------------------------------------------------------------------------------------------------


def test_state_that_0_1_0_kept_is_restored_and_dropped_in_its_time() -> None:
    ledger = succeeded()
    ledger.checkpoint()
    key = records.header_key(b"w", 0)
    ledger.changelog[b"w"] = ledger.changelog.pop(key)
    ledger.changelog[records.step_key(b"w", 0)] = ledger.changelog.pop(records.step_key(key, 0))
    ledger._committed = ledger.partition.folded_to
    ledger.crash(checkpoint=False)
    assert [step.step_id for step in ledger.workflow.steps] == ["pay"]
    ledger.append(StepEvent("w", "late", "p1", 0, StepStatus.FAILED, "late", workflow_offset=0))
    ledger.crash()
    assert [step.step_id for step in ledger.workflow.steps] == ["pay", "late"]
    ledger.now_ms += GRACE_MS + 1
    other_fact(ledger)
    ledger.checkpoint()
    assert [key for key in ledger.changelog if key.startswith(b"w")] == []


def test_a_new_owner_keeps_anew_what_is_being_folded_again_with_its_first_checkpoint() -> None:
    """How far that has come no offset tells: what another owner is at must not count beside it (0030)."""
    key, partition = records.header_key(b"w", 3), Partition(0, TERMS)
    parked = records.encode_parked(Parked(3, 9))
    partition.restore(key, parked)
    partition.restored(9)
    assert (key, parked) in partition.changes()
    assert partition.changes() == []
