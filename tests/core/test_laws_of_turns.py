"""Laws of turns, over any facts in any order: what is condemned stays so, is what the protocol says, and nothing else
is undone."""

from __future__ import annotations

from hypothesis import given
from tests.core.fact_samples import Appended, Said, ledger_of, partition, returning_stories
from tests.core.test_laws import after, decided, looked_at, restored, state_of

from amends.processors.partition import Partition
from amends.processors.state import NOWHERE, Attempt, AttemptState
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase, UndoCommand


def held(fold: Partition) -> Workflow:
    found = fold.workflow("w")
    assert found is not None
    return found


def stands_at(attempt: Attempt) -> int:
    if attempt.started_offset == NOWHERE and attempt.state is not AttemptState.NOT_EXECUTED:
        return attempt.ended_offset
    return attempt.started_offset


def condemned(workflow: Workflow) -> set[str]:
    return {step.step_id for step in workflow.steps if step.number in workflow.condemned}


@given(returning_stories())
def test_no_sequence_of_facts_makes_the_fold_raise(said: list[Said]) -> None:
    fold, _ = after(ledger_of(said))
    fold.changes()
    assert [t.reason for t in held(fold).header.troubles if t.kind == "poisoned"] == []


@given(returning_stories())
def test_what_is_condemned_stays_condemned(said: list[Said]) -> None:
    fold, before = partition(), set[str]()
    for record in ledger_of(said):
        fold.fold(record)
        now = condemned(held(fold))
        assert before <= now
        before = now


@given(returning_stories())
def test_condemned_is_what_was_started_in_an_ended_epoch_behind_its_savepoint(said: list[Said]) -> None:
    """Told anew from every turn there ever was, and where each attempt stands."""
    fold, turns, epoch = partition(), list[tuple[int, int, bool]](), 0
    for record in ledger_of(said):
        fold.fold(record)
        header = held(fold).header
        if header.epoch > epoch:
            turns.append((epoch, header.turns[-1].offset, header.turns[-1].final))
            epoch = header.epoch
    workflow = held(fold)
    for step in workflow.steps:
        places = [(a.epoch, stands_at(a)) for a in step.attempts if not a.repeats]
        expected = any(
            (turn_offset == NOWHERE and final)
            or any(offset > turn_offset and (final or epoch <= turn_epoch) for epoch, offset in places)
            for turn_epoch, turn_offset, final in turns
        )
        assert (step.number in workflow.condemned) is expected


@given(returning_stories())
def test_only_what_is_condemned_is_undone(said: list[Said]) -> None:
    fold = partition()
    for record in ledger_of(said):
        fold.fold(record)
        for sent in looked_at(fold, record.appended_at_ms):
            if isinstance(sent, UndoCommand):
                assert {entry.step_id for entry in sent.entries} <= condemned(held(fold))


@given(returning_stories())
def test_nothing_is_closed_while_something_condemned_is_owed(said: list[Said]) -> None:
    fold, phase = partition(), Phase.NONE
    for record in ledger_of(said):
        fold.fold(record)
        workflow = held(fold)
        now = workflow.header.phase
        if now in (Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS) or (now is Phase.SUCCEEDED and phase is not now):
            assert not workflow.is_unwinding
        phase = now


@given(returning_stories())
def test_state_survives_its_own_bytes(said: list[Said]) -> None:
    fold = partition()
    for record in ledger_of(said):
        fold.fold(record)
    again = restored(dict(fold.changes()), fold.folded_to)
    assert state_of(again) == state_of(fold)


@given(returning_stories())
def test_a_crash_in_the_middle_decides_nothing_else(said: list[Said]) -> None:
    records: list[Appended] = ledger_of(said)
    lived, sent = after(records)
    died, sent_by_both = after(records, restored_before=len(records) // 2)
    assert state_of(lived) == state_of(died)
    assert decided(sent) == decided(sent_by_both)
