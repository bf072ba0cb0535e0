"""Laws of the fold, over any facts in any order: it is total, a function of the ledger, and decides nothing twice."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.fact_samples import Appended, Said, facts, ledger_of, partition, stories

from amends.processors.outbox import command_name
from amends.processors.partition import Partition
from amends.schemas.codec import decode
from amends.schemas.commands import DeadLetter, Incident, ProbeCommand, ResendCommand, UndoCommand, WorkflowEcho

LATER_MS = 3_000


def looked_at(fold: Partition, now_ms: int) -> list[object]:
    """Return what the fold sends now, timers included."""
    emissions = [*fold.timeouts(now_ms), *fold.outputs(now_ms)]
    return [decode(e.value or b"") for e in emissions if not e.topic.startswith("dlq.amends.ledger")]


def after(records: list[Appended], restored_before: int | None = None) -> tuple[Partition, list[object]]:
    """Fold all records, looking after each; before that number, a crash right after a checkpoint."""
    fold, kept, sent = partition(), dict[bytes, bytes | None](), list[object]()
    for number, record in enumerate(records):
        if number == restored_before:
            kept.update(fold.changes())
            fold = restored(kept, fold.folded_to)
        fold.fold(record)
        sent.extend(looked_at(fold, record.appended_at_ms))
    for round_ in range(1, 4):
        sent.extend(looked_at(fold, records[-1].appended_at_ms + round_ * LATER_MS))
    return fold, sent


def restored(kept: dict[bytes, bytes | None], folded_to: int) -> Partition:
    fold = partition()
    for key, value in kept.items():
        fold.restore(key, value)
    fold.restored(folded_to)
    return fold


def state_of(fold: Partition) -> tuple[object, ...]:
    workflow = fold.workflow("w")
    return () if workflow is None else (workflow.header, tuple(workflow.steps))


def decided(sent: list[object]) -> set[object]:
    """Return what was sent, less when and as of what: a command may be repeated and refreshed."""
    names: set[object] = set()
    for record in sent:
        match record:
            case UndoCommand():
                names.update(("undo", e.step_id, e.generation, e.attempt, e.key, e.arguments) for e in record.entries)
            case ProbeCommand() | ResendCommand():
                names.add(command_name(record))
            case WorkflowEcho():
                names.add(("echo", record.phase, record.epoch, record.answers_offset))
            case Incident():
                names.add(("incident", record.incident_id, record.state, record.version))
            case DeadLetter():
                names.add(("dead", record.step_id, record.generation, record.attempt))
            case _:
                pass
    return names


@given(stories())
def test_no_sequence_of_facts_makes_the_fold_raise(said: list[Said]) -> None:
    fold, _ = after(ledger_of(said))
    fold.changes()
    workflow = fold.workflow("w")
    assert workflow is not None
    assert [t.reason for t in workflow.header.troubles if t.kind == "poisoned"] == []


@given(st.lists(st.builds(Said, facts(), st.just(10)), min_size=1, max_size=8))
def test_facts_of_a_workflow_that_never_started_undo_nothing(said: list[Said]) -> None:
    without_start = [
        one for one in said if getattr(one.fact, "status", None) != "STARTED" or hasattr(one.fact, "step_id")
    ]
    if without_start:
        _, sent = after(ledger_of(without_start))
        assert not [record for record in sent if isinstance(record, UndoCommand | ProbeCommand | ResendCommand)]


@given(stories())
def test_a_fact_folded_twice_changes_nothing(said: list[Said]) -> None:
    once, twice = partition(), partition()
    for record in ledger_of(said):
        once.fold(record)
        twice.fold(record)
        twice.fold(record)
        assert state_of(once) == state_of(twice)
        assert looked_at(once, record.appended_at_ms) == looked_at(twice, record.appended_at_ms)
    assert once.changes() == twice.changes()


@given(stories(), st.data())
def test_a_restore_at_any_point_leaves_the_same_state(said: list[Said], data: st.DataObject) -> None:
    records = ledger_of(said)
    at = data.draw(st.integers(0, len(records) - 1), label="restored before")
    lived, sent = after(records)
    died, sent_by_both = after(records, restored_before=at)
    assert state_of(lived) == state_of(died)
    assert decided(sent) == decided(sent_by_both)


@given(stories(), st.data())
def test_a_fold_that_lost_its_memory_writes_the_same_changelog(said: list[Said], data: st.DataObject) -> None:
    """Whatever was checkpointed and when: the ledger alone decides."""
    records = ledger_of(said)
    fold, kept = partition(), dict[bytes, bytes | None]()
    for record in records:
        fold.fold(record)
        if data.draw(st.booleans(), label="checkpoint"):
            kept.update(fold.changes())
            if data.draw(st.booleans(), label="crash"):
                fold = restored(kept, record.offset)
    kept.update(fold.changes())
    straight = partition()
    for record in records:
        straight.fold(record)
    assert kept == dict(straight.changes())


@settings(max_examples=200)
@given(stories(), st.data())
def test_nothing_is_decided_twice(said: list[Said], data: st.DataObject) -> None:
    """An attempt of an undo has one key and one set of arguments, whoever commands it and how often."""
    at = data.draw(st.integers(0, len(said) - 1), label="restored before")
    _, sent = after(ledger_of(said), restored_before=at)
    known: dict[tuple[str, int, int], tuple[str, bytes]] = {}
    for command in sent:
        if isinstance(command, UndoCommand):
            for entry in command.entries:
                what = (entry.key, entry.arguments)
                assert known.setdefault((entry.step_id, entry.generation, entry.attempt), what) == what


@given(stories())
def test_state_survives_its_own_bytes(said: list[Said]) -> None:
    fold = partition()
    for record in ledger_of(said):
        fold.fold(record)
    again = restored(dict(fold.changes()), fold.folded_to)
    assert state_of(again) == state_of(fold)
