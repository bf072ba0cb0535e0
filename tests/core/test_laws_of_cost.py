"""What is left out because it would come to nothing comes to nothing: over any facts in any order."""

from __future__ import annotations

from hypothesis import given
from tests.core.fact_samples import Said, ledger_of, partition, returning_stories, stories

from amends.processors.outbox import command_name
from amends.processors.partition import Partition
from amends.processors.plan import plan
from amends.processors.timeouts import armed, soonest_ms
from amends.processors.timers import Silences
from amends.processors.workflow import Workflow
from amends.schemas.commands import Command, UndoCommand

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
