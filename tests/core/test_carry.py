"""Carry: the state of an open workflow goes on in the ledger when its start is gone."""

from __future__ import annotations

import dataclasses

import pytest
from tests.core.ledger import LEASE_MS, Ledger, contract_of

from amends.processors.partition import Partition
from amends.processors.state import Header, Step
from amends.processors.terms import Terms
from amends.processors.workflow import Workflow
from amends.schemas.codec import decode
from amends.schemas.facts import Carry, Party, StepStatus, Timeout, UndoStatus, WorkflowEvent, WorkflowStatus

HOUR_MS = 3_600_000
TERMS = Terms(grace_ms=60_000, carry_after_ms=HOUR_MS)
PAY = contract_of("pay")
LABEL = contract_of("label", probe=True)


def open_for_long(steps: int = 3) -> Ledger:
    """A workflow that has been at work for an hour, beside another one."""
    ledger = Ledger(TERMS)
    ledger.append(WorkflowEvent("other", 0, WorkflowStatus.STARTED, lease_ms=100 * HOUR_MS))
    start = ledger.start(lease_ms=100 * HOUR_MS)
    for number in range(steps):
        ledger.did(f"pay{number}", PAY, workflow_offset=start)
    ledger.started("label", LABEL, undo_arguments=None, workflow_offset=start, lease_ms=100 * HOUR_MS)
    ledger.wait(HOUR_MS, step_ms=HOUR_MS // 4)
    return ledger


def carried(ledger: Ledger) -> list[Carry]:
    found = [decode(entry.value) for entry in ledger.entries]
    return [fact for fact in found if isinstance(fact, Carry) and fact.workflow_id == "w"]


def content(workflow: Workflow) -> tuple[Header, list[Step]]:
    """All of the state but that it is carried."""
    header = workflow.header
    return dataclasses.replace(header, carried_at_ms=0, carried_to=-1, folded_to=-1), workflow.steps


def rebuilt(ledger: Ledger) -> Ledger:
    """The state built anew from what the ledger still holds."""
    anew = Ledger(TERMS, ledger.now_ms, ledger_start=ledger.ledger_start)
    anew.entries = list(ledger.entries)
    anew.partition = Partition(0, TERMS)
    for entry in anew.entries[anew.ledger_start :]:
        anew.partition.fold(entry)
        anew.look()
    return anew


def test_a_workflow_that_is_open_for_long_is_carried_once_each_time() -> None:
    ledger = open_for_long()
    assert len(carried(ledger)) == 1
    ledger.wait(HOUR_MS - 1, step_ms=HOUR_MS // 4)
    assert len(carried(ledger)) == 1
    ledger.wait(HOUR_MS, step_ms=HOUR_MS // 4)
    assert len(carried(ledger)) == 2


def test_a_carry_over_a_live_state_changes_nothing_of_it() -> None:
    ledger = open_for_long()
    before = content(ledger.workflow)
    [carry] = carried(ledger)
    ledger.append(carry)
    assert content(ledger.workflow) == before
    assert ledger.workflow.header.carried_to == carry.folded_to


def test_a_closed_workflow_is_not_carried() -> None:
    ledger = Ledger(TERMS)
    start = ledger.start()
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.SUCCEEDED, workflow_offset=start))
    ledger.wait(3 * HOUR_MS, step_ms=HOUR_MS // 4)
    assert carried(ledger) == []


def test_the_state_from_a_carry_and_the_facts_behind_it_is_the_state_from_the_start() -> None:
    ledger = open_for_long()
    start = ledger.workflow.header.started_offset
    ledger.ended("label", StepStatus.UNKNOWN, workflow_offset=start)
    ledger.did("stock", contract_of("stock"), workflow_offset=start)
    ledger.ledger_start = carried(ledger)[0].folded_to + 1
    anew = rebuilt(ledger)
    assert content(anew.workflow) == content(ledger.workflow)
    assert anew.incidents().get("start_gone", "CLOSED") == "CLOSED"
    request = WorkflowEvent(
        "w", 0, WorkflowStatus.ROLLBACK_REQUESTED, workflow_offset=start, writer=Party.PERSON, by="ann"
    )
    for each in (ledger, anew):
        each.append(request)
        each.wait(2_000)
    assert anew.commanded() == ledger.commanded()
    assert anew.probes() == ledger.probes()


def test_facts_between_the_carried_state_and_its_carry_are_folded() -> None:
    """A Carry is as of the moment it was made; what others wrote before it stood on the ledger is behind it."""
    ledger = open_for_long()
    start = ledger.workflow.header.started_offset
    [carry] = carried(ledger)
    ledger.ended("label", StepStatus.UNKNOWN, workflow_offset=start)
    late = ledger.append(dataclasses.replace(carry, timestamp_ms=1))
    ledger.ledger_start = carry.folded_to + 1
    ledger.entries[late - 2] = dataclasses.replace(ledger.entries[late - 2], value=b"", key=None)  # the first Carry
    anew = rebuilt(ledger)
    assert content(anew.workflow) == content(ledger.workflow)


def test_a_carry_whose_own_moment_is_gone_is_not_taken() -> None:
    ledger = open_for_long()
    [carry] = carried(ledger)
    ledger.ledger_start = carry.folded_to + 2
    anew = rebuilt(ledger)
    assert anew.incidents() == {"start_gone": "OPEN"}


def test_a_long_workflow_is_carried_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amends.processors.carrying.PART_BYTES_MAX", 200)
    ledger = open_for_long(steps=20)
    assert len(carried(ledger)) > 3
    ledger.ledger_start = carried(ledger)[0].folded_to + 1
    anew = rebuilt(ledger)
    assert content(anew.workflow) == content(ledger.workflow)


def test_two_thousand_steps_with_their_arguments_fit_into_a_few_records() -> None:
    ledger = Ledger(TERMS)
    start = ledger.start(lease_ms=100 * HOUR_MS)
    for number in range(2_000):
        ledger.did(f"pay{number}", PAY, workflow_offset=start, undo_arguments=b'{"id": "pi_%032d"}' % number)
    ledger.wait(HOUR_MS, step_ms=HOUR_MS)
    sizes = [len(carry.state) for carry in carried(ledger)]
    assert len(sizes) == 1
    assert max(sizes) < 600_000


def test_a_silence_before_the_carry_still_counts_behind_it() -> None:
    ledger = Ledger(TERMS)
    ledger.append(WorkflowEvent("other", 0, WorkflowStatus.STARTED, lease_ms=100 * HOUR_MS))
    start = ledger.start()
    ledger.did("pay", PAY, workflow_offset=start)
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.HEARTBEAT, workflow_offset=start, lease_ms=4 * HOUR_MS))
    ledger.now_ms += 3 * HOUR_MS  # an outage
    ledger.wait(HOUR_MS // 2, step_ms=HOUR_MS // 4)
    ledger.ledger_start = carried(ledger)[0].folded_to + 1
    ledger.wait(HOUR_MS, step_ms=HOUR_MS // 4)
    anew = rebuilt(ledger)
    assert anew.phase == ledger.phase == "RUNNING"
    assert content(anew.workflow) == content(ledger.workflow)


def test_what_is_undone_is_not_undone_again_after_a_carry() -> None:
    ledger = open_for_long(steps=1)
    start = ledger.workflow.header.started_offset
    ledger.ended("label", StepStatus.FAILED, workflow_offset=start)
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.FAILED, workflow_offset=start))
    ledger.undo("pay0", UndoStatus.STARTED, workflow_offset=start, lease_ms=100 * HOUR_MS)
    ledger.wait(HOUR_MS, step_ms=HOUR_MS // 4)
    ledger.ledger_start = carried(ledger)[-1].folded_to + 1
    ledger.undo("pay0", UndoStatus.UNDONE, workflow_offset=start)
    anew = rebuilt(ledger)
    assert anew.phase == ledger.phase == "COMPENSATED"
    assert anew.commanded() == []


def test_a_forgotten_workflow_that_was_carried_is_folded_again_from_there() -> None:
    ledger = open_for_long()
    start = ledger.workflow.header.started_offset
    ledger.ended("label", StepStatus.FAILED, workflow_offset=start)
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.SUCCEEDED, workflow_offset=start))
    ledger.now_ms += 10 * LEASE_MS
    ledger.append(WorkflowEvent("other", 0, WorkflowStatus.HEARTBEAT))
    assert ledger.partition.workflow("w") is None
    ledger.ledger_start = carried(ledger)[0].folded_to + 1
    ledger.append(
        WorkflowEvent("w", 0, WorkflowStatus.ROLLBACK_REQUESTED, workflow_offset=start, writer=Party.PERSON, by="ann")
    )
    assert [[e[0] for e in command] for command in ledger.commanded()] == [["pay2", "pay1", "pay0"]]


def test_no_fact_is_lost_that_waited_while_a_start_was_looked_for_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amends.processors.parked.WAITING_MAX", 2)
    ledger = Ledger(TERMS)
    for _ in range(4):
        ledger.append(WorkflowEvent("other", 0, WorkflowStatus.STARTED, lease_ms=100 * HOUR_MS))
    ledger.ledger_start = 2
    ledger.refolds = False
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.HEARTBEAT, workflow_offset=1))
    start = ledger.start()
    ledger.did("pay0", PAY, workflow_offset=start)
    ledger.did("pay1", PAY, workflow_offset=start)
    ledger.refolds = True
    ledger.look()
    assert [step.step_id for step in ledger.workflow.steps] == ["pay0", "pay1"]


def recalled(ledger: Ledger) -> Ledger:
    """The state built anew from what the ledger still holds, as an engine builds it: it recalls what is carried."""
    anew = Ledger(TERMS, ledger.now_ms, ledger_start=ledger.ledger_start)
    anew.entries = list(ledger.entries)
    for entry in anew.entries[anew.ledger_start :]:
        anew.partition.recall(entry)
    anew.partition.restored(anew.ledger_start - 1)
    for entry in anew.entries[anew.ledger_start :]:
        anew.partition.fold(entry)
        anew.look()
    return anew


def proposed(ledger: Ledger) -> list[object]:
    return [decode(emission.value) for emission in ledger.partition.timeouts(ledger.now_ms)]


def resumed_between_its_start_and_a_carry() -> Ledger:
    """The ledger no longer holds the start of `w`, but where another process resumed it."""
    ledger = Ledger(TERMS)
    ledger.append(WorkflowEvent("other", 0, WorkflowStatus.STARTED, lease_ms=100 * HOUR_MS))
    start = ledger.start(lease_ms=100 * HOUR_MS)
    ledger.did("pay0", PAY, workflow_offset=start)
    ledger.ledger_start = ledger.start(lease_ms=100 * HOUR_MS)
    ledger.did("pay1", PAY, workflow_offset=start)
    ledger.wait(HOUR_MS, step_ms=HOUR_MS // 4)
    assert len(carried(ledger)) == 1
    ledger.did("pay2", PAY, workflow_offset=start)
    return ledger


def test_a_start_that_resumed_begins_nothing_where_the_ledger_has_forgotten_what_it_resumed() -> None:
    ledger = resumed_between_its_start_and_a_carry()
    start = ledger.workflow.header.started_offset
    anew = recalled(ledger)
    assert content(anew.workflow) == content(ledger.workflow)
    assert anew.workflow.header.started_offset == start < ledger.ledger_start
    assert anew.incidents() == {}
    for each in (ledger, anew):
        each.append(WorkflowEvent("w", 0, WorkflowStatus.FAILED, workflow_offset=start))
    assert anew.commanded() == ledger.commanded() == [[("pay2", 0, 0), ("pay1", 0, 0), ("pay0", 0, 0)]]


def test_nothing_is_sent_of_a_state_before_the_ledger_was_folded_up_to_it() -> None:
    ledger = resumed_between_its_start_and_a_carry()
    [carry] = carried(ledger)
    anew = Ledger(TERMS, ledger.now_ms)
    for entry in ledger.entries[ledger.ledger_start :]:
        anew.partition.recall(entry)
    anew.partition.restored(ledger.ledger_start - 1)
    for entry in ledger.entries[ledger.ledger_start : carry.folded_to]:
        anew.partition.fold(entry)
        anew.look()
    said = [*anew.sent, *proposed(anew)]
    assert [record for record in said if getattr(record, "workflow_id", "w") == "w"] == []


def test_what_was_recalled_is_kept_and_goes_on_with_a_new_owner_before_its_carry_came() -> None:
    ledger = resumed_between_its_start_and_a_carry()
    anew = Ledger(TERMS, ledger.now_ms)
    for entry in ledger.entries[ledger.ledger_start :]:
        anew.partition.recall(entry)
    anew.partition.restored(ledger.ledger_start - 1)
    anew.partition.fold(ledger.entries[ledger.ledger_start])
    anew.entries = ledger.entries
    anew.crash()
    assert content(anew.workflow) == content(ledger.workflow)


def test_the_silence_between_a_carried_state_and_the_ledgers_first_record_counts() -> None:
    ledger = Ledger(TERMS)
    ledger.append(WorkflowEvent("other", 0, WorkflowStatus.STARTED, lease_ms=100 * HOUR_MS))
    start = ledger.start(lease_ms=HOUR_MS + LEASE_MS)
    ledger.did("pay", PAY, workflow_offset=start)
    ledger.wait(HOUR_MS, step_ms=HOUR_MS // 4)
    [carry] = carried(ledger)
    late = Ledger(TERMS, ledger.now_ms + 3 * HOUR_MS, [*ledger.entries[:-1]])
    late.ledger_start = carry.folded_to + 1
    late.append(carry)
    anew = recalled(late)
    anew.look()
    assert [fact for fact in proposed(anew) if isinstance(fact, Timeout)] == []
    assert anew.phase == "RUNNING"
