"""Agents that begin workflows inside workflows, with the real fold behind their ledger."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.core.agent_tools import WORLD, charge, reserve
from tests.core.flows import TERMS
from tests.core.folded import Folded, folded_runtime

from amends.producers import ProducerSettings, Succeeded, clock, workflow
from amends.producers.effects import Acknowledged, Follow, Instant, ReadClock, Uncertain, Unwritten, WriteFact
from amends.producers.family import Reference
from amends.producers.runtime import Runtime
from amends.producers.scope_flow import Opening, open_flow
from amends.producers.testing import memory_runtime
from amends.schemas.commands import Phase
from amends.schemas.facts import BEHIND, Party, StepEvent, StepStatus, WorkflowEvent, WorkflowStatus
from amends.schemas.payload import decode_payload
from amends.tools.errors import LedgerUnavailable, LedgerUncertain, Rejected, WorkflowTurned


@pytest.fixture
def folded() -> Iterator[Folded]:
    WORLD.clear()
    with folded_runtime() as found:
        yield found


def undone(folded: Folded) -> list[str]:
    """What was undone, in order, as the amounts of the charges."""
    started = {
        fact.step_id: fact
        for fact in folded.ledger.all_facts()
        if isinstance(fact, StepEvent) and fact.status is StepStatus.STARTED
    }
    return [str(decode_payload(started[id].input_payload or b"")["cents"]) for id in folded.ledger.undone]


def roll_back(folded: Folded, id: str) -> None:
    asked = WorkflowEvent(id, 0, WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON, by="ann")
    folded.ledger.add(asked)


@workflow.run("shipping")
def shipping() -> None:
    """A child for which there is no van."""
    charge("cus_1", 2)
    raise RuntimeError("no van")


# --- what a child is --------------------------------------------------------------------------------------------------


def test_a_workflow_begun_in_another_is_its_child_and_its_finished_work_is_undone_with_it(folded: Folded) -> None:
    @workflow.run("order")
    def order() -> None:
        charge("cus_1", 1)
        with workflow("shipping") as child:
            charge("cus_1", 2)
        assert child.outcome == Succeeded()
        charge("cus_1", 3)
        raise RuntimeError("sold out")

    with pytest.raises(RuntimeError, match="sold out"):
        order()
    assert undone(folded) == ["3", "2", "1"]
    assert folded.ledger.phase("order") == folded.ledger.phase("shipping") == Phase.COMPENSATED


async def test_a_task_begins_a_child_too(folded: Folded) -> None:
    @workflow.run("order")
    async def order() -> None:
        async with workflow("shipping"):
            charge("cus_1", 2)
        raise RuntimeError("sold out")

    with pytest.raises(RuntimeError, match="sold out"):
        await order()
    assert undone(folded) == ["2"]
    assert folded.ledger.phase("order") == folded.ledger.phase("shipping") == Phase.COMPENSATED


def test_a_child_that_fails_is_undone_and_its_parent_decides_for_itself(folded: Folded) -> None:
    with workflow("order") as parent:
        charge("cus_1", 1)
        with pytest.raises(RuntimeError, match="no van"):
            shipping()
        charge("cus_1", 3)
    assert parent.outcome == Succeeded()
    assert undone(folded) == ["2"]


def test_the_error_of_a_child_that_nobody_catches_fails_its_parent(folded: Folded) -> None:
    @workflow.run("order")
    def order() -> None:
        charge("cus_1", 1)
        shipping()

    with pytest.raises(RuntimeError, match="no van"):
        order()
    assert undone(folded) == ["2", "1"]


def test_a_detached_workflow_stands_alone(folded: Folded) -> None:
    @workflow.run("order")
    def order() -> None:
        with workflow("newsletter", detached=True):
            charge("cus_1", 2)
        raise RuntimeError("sold out")

    with pytest.raises(RuntimeError, match="sold out"):
        order()
    assert undone(folded) == []
    assert folded.ledger.phase("newsletter") is Phase.SUCCEEDED


def test_a_child_may_be_begun_in_another_process_by_a_reference(folded: Folded) -> None:
    other = Runtime(ProducerSettings(standing_within_ms=500, confirm_within_ms=500), folded.ledger)
    with workflow("order") as parent:
        reference = parent.reference()
    with workflow("shipping", parent=reference, runtime=other):
        charge("cus_1", 2)
    roll_back(folded, "order")
    assert undone(folded) == ["2"]
    other.close()


async def test_a_task_gives_a_reference(folded: Folded) -> None:
    async with workflow("order: 1") as parent:
        read = Reference.read(await parent.reference_async())
    assert (read.workflow_id, read.workflow_offset, read.epoch) == ("order: 1", 0, 0)


def test_undoing_to_a_savepoint_undoes_the_children_begun_since(folded: Folded) -> None:
    with workflow("order") as parent:
        parent.savepoint("begun")
        with workflow("shipping"):
            charge("cus_1", 2)
        story = parent.undo_to("begun")
        assert [(step.tool_name, step.fate) for step in story.steps] == [("workflow shipping", "undone")]
    assert parent.outcome == Succeeded()
    assert undone(folded) == ["2"]


def test_a_scope_of_the_same_id_is_no_child_of_itself(folded: Folded) -> None:
    with workflow("order"), workflow("order", on_existing="resume"):
        charge("cus_1", 1)
    events = [f for f in folded.ledger.facts("order") if isinstance(f, WorkflowEvent)]
    assert all(event.status is not WorkflowStatus.CHILD_STARTED for event in events)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_parent_that_is_being_undone_begins_no_child(folded: Folded) -> None:
    @workflow.run("order")
    def order() -> None:
        charge("cus_1", 1)
        roll_back(folded, "order")
        shipping()

    with pytest.raises(WorkflowTurned, match="it begins no child"):
        order()
    assert WORLD == ["charge cus_1 1"]
    assert folded.ledger.facts("shipping") == []


def test_a_child_whose_parent_turned_before_it_began_is_refused_before_its_first_effect(folded: Folded) -> None:
    with workflow("order") as parent:
        charge("cus_1", 1)
        reference = parent.reference()
    roll_back(folded, "order")
    with pytest.raises(WorkflowTurned), workflow("shipping", parent=reference):
        charge("cus_1", 2)
    assert WORLD == ["charge cus_1 1"]
    assert folded.ledger.phase("shipping") is Phase.COMPENSATED


def test_a_child_that_could_not_be_announced_is_not_begun(folded: Folded) -> None:
    with workflow("order"):
        charge("cus_1", 1)
        folded.ledger.lose_acknowledgements()
        with pytest.raises(LedgerUncertain, match="child workflow 'shipping'"), workflow("shipping"):
            charge("cus_1", 2)
        folded.ledger.down()
        with pytest.raises(LedgerUnavailable, match="child workflow 'shipping'"), workflow("shipping"):
            charge("cus_1", 2)
        folded.ledger.up()
    assert folded.ledger.facts("shipping") == []
    assert WORLD == ["charge cus_1 1"]


@pytest.mark.parametrize("answer", [Unwritten("down"), Uncertain("no answer")])
def test_no_start_is_written_without_the_acknowledgement_of_the_parent(answer: Unwritten | Uncertain) -> None:
    flow = open_flow(Opening(TERMS, "i"), Reference("order", 3, 0, 30_000))
    assert isinstance(next(flow), Follow)
    assert isinstance(flow.send(None), ReadClock)
    announced = flow.send(Instant(0))
    assert isinstance(announced, WriteFact)
    assert announced.fact.workflow_id == "order"
    with pytest.raises(LedgerUnavailable if isinstance(answer, Unwritten) else LedgerUncertain):
        flow.send(answer)


def test_a_start_that_comes_half_a_lease_after_its_announcement_is_not_written() -> None:
    flow = open_flow(Opening(TERMS, "i"), Reference("order", 3, 0, 30_000))
    next(flow)
    flow.send(None)
    flow.send(Instant(1_000))
    assert isinstance(flow.send(Acknowledged(9, 5)), ReadClock)
    with pytest.raises(LedgerUnavailable, match="does not begin any more"):
        flow.send(Instant(16_000))


def test_a_child_says_where_it_was_announced() -> None:
    flow = open_flow(Opening(TERMS, "i"), Reference("order", 3, 0, 30_000))
    next(flow)
    flow.send(None)
    flow.send(Instant(1_000))
    flow.send(Acknowledged(9, 5))
    started = flow.send(Instant(15_999))
    assert isinstance(started, WriteFact)
    fact = started.fact
    assert isinstance(fact, WorkflowEvent)
    assert (fact.parent_workflow_id, fact.parent_workflow_offset, fact.child_started_at_ms) == ("order", 3, 5)
    assert fact.attributes["child_started_offset"] == "9"


def test_a_workflow_that_has_succeeded_begins_no_child(folded: Folded) -> None:
    with workflow("order") as parent:
        begin = parent.bind(lambda: workflow("shipping").__enter__())
    with pytest.raises(Rejected, match="makes no new calls"):
        begin()


def test_a_child_on_another_runtime_is_refused_and_told_what_to_do(folded: Folded) -> None:
    other = Runtime(ProducerSettings(), folded.ledger)
    with (
        workflow("order"),
        pytest.raises(Rejected, match=r"detached=True.*parent=wf\.reference"),
        workflow("shipping", runtime=other),
    ):
        pass
    other.close()


@pytest.mark.parametrize("text", ["order", "amends-parent:1:2:x", "amends-parent:1:2:3", "amends-parent::::order"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"wf\.reference\(\)"):
        workflow("shipping", parent=text)


def test_a_child_of_a_parent_is_not_detached() -> None:
    with pytest.raises(ValueError, match="give one of the two"):
        workflow("shipping", parent="amends-parent:1:2:3:order", detached=True)


def test_where_agents_are_only_watched_there_are_no_families() -> None:
    with memory_runtime(ProducerSettings(mode="observe")) as memory:
        with workflow("order") as parent:
            assert parent.reference() == ""
            with workflow("shipping", parent=parent.reference()), workflow("label"):
                pass
        facts = memory.ledger.all_facts()
    assert all(f.parent_workflow_id is None for f in facts if isinstance(f, WorkflowEvent))


async def test_a_child_of_an_async_tool_call_is_the_workflows_child(folded: Folded) -> None:
    async with workflow("order"), workflow("shipping"):
        await reserve("chair")
    held = folded.ledger.partition.workflow("shipping")
    assert held is not None
    assert held.header.family is not None
    assert held.header.family.parent_id == "order"


def test_a_childs_savepoint_says_how_far_its_own_facts_were_known_and_not_its_parents(folded: Folded) -> None:
    """Parent and child may be on two partitions, whose offsets do not compare."""

    def as_on_a_longer_partition(fact: WorkflowEvent | StepEvent) -> Acknowledged | None:
        return Acknowledged(5_000, clock.wall_ms()) if fact.status is WorkflowStatus.CHILD_STARTED else None

    folded.ledger.fault = as_on_a_longer_partition
    with workflow("order"), workflow("shipping") as child:
        charge("cus_1", 1)
        child.savepoint("loaded")
    facts = (fact for fact in folded.ledger.all_facts() if isinstance(fact, WorkflowEvent))
    (saved,) = (fact for fact in facts if fact.status is WorkflowStatus.SAVEPOINT)
    assert 0 <= int(saved.attributes[BEHIND]) < 10
