"""What is left out because it would come to nothing comes to nothing: over any facts in any order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.counting import Calls
from tests.core.fact_samples import CONTRACTS, START, Said, ledger_of, partition, returning_stories, stories
from tests.core.ledger import Ledger, contract_of

from amends.processors.emission import LedgerRecord
from amends.processors.outbox import command_name
from amends.processors.partition import Partition
from amends.processors.plan import plan
from amends.processors.timeouts import armed, soonest_ms
from amends.processors.timers import Silences
from amends.processors.workflow import Workflow
from amends.schemas.codec import encode
from amends.schemas.commands import Command, UndoCommand
from amends.schemas.contract import Contract
from amends.schemas.facts import Fact, StepEvent, StepStatus, TimeoutKind, WorkflowEvent, WorkflowStatus

REPEAT_MS = 1_000


def held(fold: Partition) -> Workflow:
    found = fold.workflow("w")
    assert found is not None
    return found


def names_of(command: Command) -> list[tuple[object, ...]]:
    """What is remembered of a command that was sent, as the outbox does."""
    if isinstance(command, UndoCommand):
        return [(entry.step_id, entry.generation, entry.attempt) for entry in command.entries]
    return [command_name(command)]


def check_plans(said: list[Said]) -> None:
    fold, fresh = partition(), dict[tuple[object, ...], int]()
    for record in ledger_of(said):
        fold.fold(record)
        workflow, now_ms = held(fold), record.appended_at_ms
        whole = plan(workflow, record.offset, now_ms).commands
        due = [command for command in whole if fresh.get(command_name(command), 0) <= now_ms]
        found = plan(workflow, record.offset, now_ms, fresh=fresh)
        assert [c for c in found.commands if fresh.get(command_name(c), 0) <= now_ms] == due
        for command in due:
            fresh |= dict.fromkeys(names_of(command), now_ms + REPEAT_MS)


@given(stories())
def test_a_plan_that_knows_what_was_commanded_leaves_out_nothing_else(said: list[Said]) -> None:
    check_plans(said)


@given(returning_stories())
def test_nor_does_it_where_agents_go_back_to_savepoints(said: list[Said]) -> None:
    check_plans(said)


@given(returning_stories())
def test_the_next_timeout_is_the_soonest_of_all_that_are_armed(said: list[Said]) -> None:
    fold, silences = partition(), Silences()
    for record in ledger_of(said):
        fold.fold(record)
        silences.record(record.appended_at_ms)
        workflow, now_ms = held(fold), record.appended_at_ms
        timers = list(armed(workflow, silences, now_ms))
        assert soonest_ms(workflow, silences, now_ms, {}) == min((timer.due_ms for timer in timers), default=None)
        again: dict[tuple[object, ...], int] = {timer.name: timer.due_ms + 500 for timer in timers[:1]}
        proposed = min((again.get(timer.name, timer.due_ms) for timer in timers), default=None)
        assert soonest_ms(workflow, silences, now_ms, again) == proposed


def built_anew(workflow: Workflow) -> Workflow:
    made = Workflow(workflow.header, workflow.contracts)
    made.steps = list(workflow.steps)
    made.reindex()
    return made


@given(returning_stories(), st.lists(st.integers(-9_000, 40_000), min_size=1))
def test_what_is_kept_from_fact_to_fact_is_what_is_found_anew_whatever_the_clocks_say(
    said: list[Said], clocks: list[int]
) -> None:
    fold, silences, fresh = partition(), Silences(), dict[tuple[object, ...], int]()
    for record, ahead_ms in zip(ledger_of(said), itertools.cycle(clocks), strict=False):
        fold.fold(record)
        silences.record(record.appended_at_ms)
        workflow, now_ms = held(fold), record.appended_at_ms + ahead_ms
        anew = built_anew(workflow)
        kept, found = (plan(w, record.offset, now_ms, fresh=fresh) for w in (workflow, anew))
        assert (kept.commands, kept.wake_at_ms) == (found.commands, found.wake_at_ms)
        for at_ms in (record.appended_at_ms, now_ms):  # the ledger's time, and the processor's
            assert set(armed(workflow, silences, at_ms)) == set(armed(anew, silences, at_ms))
            assert soonest_ms(workflow, silences, at_ms, {}) == soonest_ms(built_anew(anew), silences, at_ms, {})
        for command in kept.commands:
            if fresh.get(command_name(command), 0) <= now_ms:
                fresh |= dict.fromkeys(names_of(command), now_ms + REPEAT_MS)


def calls_of_a_fact(contract: Contract, unknown: int) -> float:
    """Return how many functions are called for a fact of a turned workflow of `unknown` unknown steps, on average."""

    def event(number: int, status: StepStatus) -> StepEvent:
        started = status is StepStatus.STARTED
        return StepEvent(
            "w",
            f"s{number}",
            "p1",
            0,
            status,
            contract.tool_name,
            side_effect_classification=contract.effect,
            contract=encode(contract) if started else None,
        )

    facts: list[Fact] = [START]
    for number in range(unknown):
        facts += [event(number, StepStatus.STARTED), event(number, StepStatus.UNKNOWN)]
    facts.append(WorkflowEvent("w", 0, WorkflowStatus.FAILED))
    facts += [event(number % unknown, StepStatus.UNKNOWN) for number in range(40)]
    records = ledger_of([Said(fact, 1) for fact in facts])
    fold, calls, late_ms = partition(), Calls(), 20_000  # by then all have settled

    def serve(record: LedgerRecord) -> None:
        fold.fold(record)
        fold.outputs(record.appended_at_ms + late_ms)
        fold.timeouts(record.appended_at_ms + late_ms)

    for record in records[:-20]:
        fold.fold(record)
    for record in records[-20:-10]:
        serve(record)
    with calls.counted():
        for record in records[-10:]:
            serve(record)
    return calls.made / 10


@pytest.mark.parametrize("contract", CONTRACTS[:4], ids=lambda contract: contract.tool_name)
def test_a_fact_costs_the_same_beside_ten_unknown_steps_and_beside_a_thousand(contract: Contract) -> None:
    few, many = calls_of_a_fact(contract, 10), calls_of_a_fact(contract, 1_000)
    assert many < few * 1.5 + 50, f"{few:g} calls a fact, then {many:g}"


def test_a_step_that_left_the_ladder_unnoticed_costs_a_look_and_not_the_partition() -> None:
    """Found by review: it was asserted, where nothing turns what is raised into an incident."""
    ledger = Ledger()
    ledger.start()
    ledger.started("x", contract_of("x"))
    ledger.ended("x", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.SUCCEEDED)
    workflow, silences, now_ms = held(ledger.partition), Silences(), ledger.now_ms
    assert [timer.name[0] for timer in armed(workflow, silences, now_ms)] == [TimeoutKind.LADDER]
    workflow.unsure.clear()
    assert not list(armed(workflow, silences, now_ms))
    assert soonest_ms(workflow, silences, now_ms, {}) is None
