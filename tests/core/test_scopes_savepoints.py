"""Agents that take savepoints and undo back to them, with the real fold behind their ledger."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.core.agent_tools import GATE, WORLD, Declined, charge, reserve, slow, wait_for
from tests.core.folded import Folded, folded_runtime

from amends.processors.echoing import echo_of
from amends.producers import Story, Succeeded, clock, workflow
from amends.schemas.commands import Phase
from amends.schemas.facts import Party, StepEvent, StepStatus, WorkflowEvent, WorkflowStatus
from amends.schemas.policy import Policy
from amends.tools.errors import EpochEnded, NotConfirmed, Rejected, WorkflowTurned


@pytest.fixture
def folded() -> Iterator[Folded]:
    WORLD.clear()
    GATE.clear()
    with folded_runtime() as found:
        yield found
    GATE.set()


def names_undone(folded: Folded) -> list[str]:
    """What was undone, as the arguments of the calls."""
    workflow = folded.ledger.partition.workflow("w")
    assert workflow is not None
    steps = [workflow.find(step_id) for step_id in folded.ledger.undone]
    return [step.tool_name for step in steps if step is not None]


def test_an_agent_undoes_to_a_savepoint_goes_on_and_succeeds(folded: Folded) -> None:
    with workflow("w") as wf:
        charge("cus_1", 1)
        wf.savepoint("paid")
        charge("cus_1", 2)
        story = wf.undo_to("paid", reason="sold out")
        charge("cus_1", 3)
    assert isinstance(wf.outcome, Succeeded)
    assert len(folded.ledger.undone) == 1
    assert isinstance(story, Story)
    assert (story.savepoint, story.epoch) == ("paid", 1)
    assert [(s.tool_name, s.fate, s.is_open) for s in story.steps] == [("shop.charge", "undone", False)]
    assert story.open == ()


def test_a_savepoint_that_comes_again_keeps_nothing_that_was_called_since(folded: Folded) -> None:
    with workflow("w") as wf:
        for name in ("begun", "paid", "begun"):  # taken again where nothing was called, it is where it is taken last
            wf.savepoint(name)
        charge("cus_1", 1)
        wf.savepoint("paid")
        charge("cus_1", 2)
        for fact in folded.ledger.facts("w"):
            if isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.SAVEPOINT:
                folded.ledger.add(fact)
        wf.undo_to("paid")
        assert len(folded.ledger.undone) == 1
        wf.undo_to("begun")
        assert len(folded.ledger.undone) == 2


def test_what_a_second_undoing_took_back_is_made_again(folded: Folded) -> None:
    with workflow("w") as wf:
        wf.savepoint("begun")
        charge("cus_1", 1)
        wf.undo_to("begun")
        for _ in range(2):
            charge.options(call_id="the charge")("cus_1", 2)
            wf.undo_to("begun")
    assert names_undone(folded) == ["shop.charge"] * 3


async def test_a_task_undoes_to_a_savepoint(folded: Folded) -> None:
    async with workflow("w") as wf:
        await wf.savepoint_async("begun")
        await reserve("chair")
        story = await wf.undo_to_async("begun")
        await reserve("table")
    assert isinstance(wf.outcome, Succeeded)
    assert "- shop.reserve: undone" in str(story)


def test_the_story_of_a_prompt_says_what_was_undone_and_what_was_not(folded: Folded) -> None:
    with workflow("w") as wf:
        wf.savepoint("begun")
        charge("cus_1", 1)
        story = wf.undo_to("begun")
        assert str(story) == (
            "What was done since savepoint 'begun' has been undone, and the work goes on from there.\n"
            "- shop.charge: undone"
        )
        assert "Nothing had been done since." in str(wf.undo_to("begun"))


def test_an_agent_waits_until_the_plan_is_closed(folded: Folded) -> None:
    folded.ledger.undoing = False
    with workflow("w") as wf:
        wf.savepoint("begun")
        charge("cus_1", 1)
        with pytest.raises(NotConfirmed, match="Wait for it again"):
            wf.undo_to("begun", within="50ms")
        with pytest.raises(EpochEnded):
            charge("cus_1", 2)
        threading.Timer(0.1, folded.ledger.compensate).start()
        story = wf.undo_to("begun")
        assert [s.fate for s in story.steps] in ([], ["undone"])
        charge("cus_1", 3)
    assert isinstance(wf.outcome, Succeeded)
    assert WORLD == ["charge cus_1 1", "charge cus_1 3"]


def test_an_echo_from_before_it_asked_does_not_tell_an_agent_that_all_is_undone(folded: Folded) -> None:
    """Another process went back to the savepoint before; what this one called in between is condemned, too."""
    with workflow("w") as wf:
        wf.savepoint("begun")
        folded.ledger.answering = folded.ledger.undoing = False
        asked = WorkflowEvent("w", 0, WorkflowStatus.ROLLBACK_REQUESTED, savepoint="begun", instance="another's")
        folded.ledger.add(asked)
        before = folded.ledger.partition.workflow("w")
        assert before is not None
        told = echo_of(before, clock.wall_ms())
        charge("cus_1", 1)
        threading.Timer(0.05, folded.ledger.echo, [told]).start()
        with pytest.raises(NotConfirmed):
            wf.undo_to("begun", within="200ms")
        folded.ledger.answering = True
        folded.ledger.compensate()
        assert wf.undo_to("begun").open == ()
    assert names_undone(folded) == ["shop.charge"]


def test_a_call_in_flight_in_another_thread_is_undone_when_it_lands(folded: Folded) -> None:
    with workflow("w") as wf:
        wf.savepoint("begun")
        inside = threading.Thread(target=wf.bind(slow))
        inside.start()
        wait_for(lambda: any(isinstance(f, StepEvent) for f in folded.ledger.all_facts()))
        stories: list[Story] = []
        undoing = threading.Thread(target=lambda: stories.append(wf.undo_to("begun")))
        undoing.start()
        wait_for(lambda: wf.status() is Phase.RUNNING and folded_epoch(folded) == 1)
        assert not stories  # the call is open
        GATE.set()
        inside.join()
        undoing.join()
        assert len(folded.ledger.undone) == 1
    assert isinstance(wf.outcome, Succeeded)


def folded_epoch(folded: Folded) -> int:
    found = folded.ledger.partition.workflow("w")
    assert found is not None
    return found.header.epoch


def test_a_savepoint_nobody_took_is_refused_and_nothing_is_asked_for(folded: Folded) -> None:
    with workflow("w") as wf:
        wf.savepoint("paid")
        with pytest.raises(Rejected, match="It has: 'paid'"):
            wf.undo_to("piad")
    assert isinstance(wf.outcome, Succeeded)


def test_a_savepoint_that_was_undone_can_not_be_undone_to(folded: Folded) -> None:
    with workflow("w") as wf:
        wf.savepoint("first")
        wf.savepoint("second")
        wf.undo_to("first")
        with pytest.raises(Rejected, match="It has: 'first'"):
            wf.undo_to("second")


def test_a_resumed_agent_takes_nothing_from_an_older_instance_whose_facts_came_late(folded: Folded) -> None:
    with pytest.raises(KeyboardInterrupt), workflow("w"):  # noqa: PT012
        charge("cus_1", 1)
        raise KeyboardInterrupt
    made = [fact for fact in folded.ledger.all_facts() if isinstance(fact, StepEvent)]
    for fact in made:
        folded.ledger.add(replace(fact, workflow_offset=999, step_id="old", call_id="old"))
    folded.ledger.add(WorkflowEvent("w", 0, WorkflowStatus.SAVEPOINT, workflow_offset=999, savepoint="old"))
    with workflow("w", on_existing="resume") as wf:
        with pytest.raises(Rejected, match="no savepoint"):
            wf.undo_to("old")
        charge.options(call_id="old")("cus_1", 1)
    assert isinstance(wf.outcome, Succeeded)
    assert WORLD == ["charge cus_1 1", "charge cus_1 1"]
    assert folded.ledger.undone == []


def asked(savepoint: str | None) -> WorkflowEvent:
    status = WorkflowStatus.ROLLBACK_REQUESTED
    return WorkflowEvent("w", 0, status, writer=Party.PERSON, by="alice", savepoint=savepoint)


def test_an_agent_undone_to_a_savepoint_by_a_person_is_refused_until_it_knows(folded: Folded) -> None:
    with workflow("w") as wf:
        wf.savepoint("begun")
        charge("cus_1", 1)
        folded.ledger.add(asked("begun"))
        with pytest.raises(EpochEnded, match=r"without its agent.*asked for by alice; back to savepoint 'begun'"):
            charge("cus_1", 2)
        with pytest.raises(EpochEnded):
            wf.savepoint("another")
        wf.undo_to("begun")
        charge("cus_1", 3)
    assert isinstance(wf.outcome, Succeeded)
    assert WORLD == ["charge cus_1 1", "charge cus_1 3"]


def test_a_claim_over_what_a_person_undid_does_not_stand(folded: Folded) -> None:
    with pytest.raises(WorkflowTurned, match="its success does not stand"), workflow("w") as wf:  # noqa: PT012
        wf.savepoint("begun")
        charge("cus_1", 1)
        folded.ledger.add(asked("begun"))
    assert folded.ledger.phase("w") is Phase.RUNNING  # till its lease finds that nobody goes on


def test_an_agent_that_fails_after_an_undoing_is_undone_wholly(folded: Folded) -> None:
    with pytest.raises(KeyError), workflow("w") as wf:  # noqa: PT012
        charge("cus_1", 1)
        wf.savepoint("paid")
        charge("cus_1", 2)
        wf.undo_to("paid")
        charge("cus_1", 3)
        raise KeyError
    assert folded.ledger.phase("w") is Phase.COMPENSATED
    assert len(folded.ledger.undone) == 3


def test_an_agent_may_ask_for_the_undoing_of_everything(folded: Folded) -> None:
    with pytest.raises(WorkflowTurned), workflow("w") as wf:  # noqa: PT012
        charge("cus_1", 1)
        wf.undo_all("never mind")
        charge("cus_1", 2)
    assert WORLD == ["charge cus_1 1"]
    assert folded.ledger.phase("w") is Phase.COMPENSATED


def shop(wf: workflow, cents: int) -> None:
    """What an agent in plain code does from the top each time it is run."""
    charge("cus_1", 1)
    wf.savepoint("paid")
    charge("cus_1", cents)


def test_an_agent_resumed_after_an_undoing_meets_what_was_kept_and_not_what_was_undone(folded: Folded) -> None:
    with workflow("w") as wf:
        shop(wf, 2)
        wf.undo_to("paid")
        charge("cus_1", 2)
        wf.leave_open("1h")
    with workflow("w", on_existing="resume") as wf:
        shop(wf, 2)  # both are there
    assert WORLD == ["charge cus_1 1", "charge cus_1 2", "charge cus_1 2"]
    assert isinstance(wf.outcome, Succeeded)


def test_a_call_that_was_undone_is_made_again_by_a_resumed_agent(folded: Folded) -> None:
    with workflow("w") as wf:
        shop(wf, 2)
        wf.undo_to("paid")
        wf.leave_open("1h")
    with workflow("w", on_existing="resume") as wf:
        shop(wf, 2)
    assert WORLD == ["charge cus_1 1", "charge cus_1 2", "charge cus_1 2"]
    ids = [f.step_id for f in folded.ledger.steps("w") if f.status is StepStatus.STARTED]
    assert len(set(ids)) == 3


def test_a_savepoint_of_an_earlier_instance_is_met_and_not_taken_anew(folded: Folded) -> None:
    with workflow("w") as wf:
        shop(wf, 2)
        wf.leave_open("1h")
    with workflow("w", on_existing="resume") as wf:
        shop(wf, 2)
        wf.undo_to("paid")
    assert len(folded.ledger.undone) == 1  # the second charge, though the first instance made it
    taken = [f for f in folded.ledger.all_facts() if isinstance(f, WorkflowEvent) and f.savepoint]
    assert [f.status.value for f in taken] == ["SAVEPOINT", "ROLLBACK_REQUESTED"]


def test_who_resumes_beside_another_takes_its_own_savepoints_for_its_own(folded: Folded) -> None:
    """It reads what others wrote, and there its own savepoint stands too."""
    with workflow("w") as first:
        first.leave_open("1h")
    with workflow("w", on_existing="resume") as wf:
        wf.savepoint("paid")
        charge.options(tool_call_id="a")("cus_1", 1)  # looks for others
        wf.savepoint("paid")  # of the same name, further on
        charge("cus_1", 2)
        wf.undo_to("paid")
    assert len(folded.ledger.undone) == 1


def test_a_savepoint_over_an_open_call_is_void_and_the_story_says_so(folded: Folded) -> None:
    with workflow("w") as wf:
        wf.savepoint("begun")
        inside = threading.Thread(target=wf.bind(slow))
        inside.start()
        wait_for(lambda: any(isinstance(f, StepEvent) for f in folded.ledger.all_facts()))
        wf.savepoint("booked")
        GATE.set()
        inside.join()
        story = wf.undo_to("booked")
        assert story.savepoint == "begun"
        assert "Asked for was savepoint 'booked', which does not count" in str(story)
        assert len(folded.ledger.undone) == 1
    assert isinstance(wf.outcome, Succeeded)


def test_where_nothing_is_recorded_savepoints_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with folded_runtime(mode="off"), workflow("w") as wf:  # type: ignore[arg-type]
        wf.savepoint("begun")
        assert "Nothing was undone" in str(wf.undo_to("begun"))


def test_an_agent_that_is_only_looked_on_is_never_held_up_by_a_savepoint() -> None:
    with folded_runtime(mode="observe") as folded, workflow("w") as wf:  # type: ignore[arg-type]
        wf.savepoint("begun")
        charge("cus_1", 1)
        assert "Nothing was undone" in str(wf.undo_to("begun"))
        charge("cus_1", 2)
    assert folded.ledger.undone == []
    assert folded.ledger.phase("w") is Phase.SUCCEEDED


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_name_that_can_not_be_one_is_refused_where_it_is_given(folded: Folded, name: str) -> None:
    with workflow("w") as wf, pytest.raises(ValueError, match="1 to 200 characters"):
        wf.savepoint(name)


def test_a_policy_travels_with_the_start_of_a_workflow(folded: Folded) -> None:
    with pytest.raises(WorkflowTurned), workflow("w", policy=Policy(failed_calls_max=0)) as wf:  # noqa: PT012
        with pytest.raises(Declined):
            charge("cus_1", -1)
        assert wf.status() is Phase.COMPENSATED
        charge("cus_1", 1)
    assert WORLD == []
