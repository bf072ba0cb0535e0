"""A workflow's scope, effect by effect: opened, resumed, claimed, failed, left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.flows import RUNNING, TERMS, World

from amends.producers.effects import Acknowledged, Standing, Uncertain, Unwritten, Write
from amends.producers.scope_flow import (
    Failed,
    LeftOpen,
    OnExisting,
    Opening,
    Succeeded,
    Turned,
    Unconfirmed,
    admissible,
    claim_flow,
    fail_flow,
    leave_flow,
    observed_end_flow,
    open_flow,
)
from amends.schemas.commands import Phase
from amends.schemas.facts import WorkflowEvent
from amends.tools.errors import AlreadyRunning, AmendsError, LedgerUnavailable, LedgerUncertain, WorkflowTurned

OPENING = Opening(TERMS, "instance-1")
RESUMING = replace(OPENING, on_existing=OnExisting.RESUME)
OK = Acknowledged(8)


def test_the_echo_is_followed_before_the_start_is_written() -> None:
    world = World()
    assert world.drive(open_flow(OPENING)) == 8
    assert world.kinds() == ["Follow", "ReadClock", "WriteFact"]
    started = world.facts()[0]
    assert isinstance(started, WorkflowEvent)
    assert (started.instance, started.lease_ms, started.epoch) == ("instance-1", 30_000, 0)


@pytest.mark.parametrize(
    ("write", "error"), [(Unwritten("down"), LedgerUnavailable), (Uncertain("?"), LedgerUncertain)]
)
def test_a_start_that_is_not_acknowledged_opens_nothing(write: Write, error: type[AmendsError]) -> None:
    with pytest.raises(error):
        World(writes=[write]).drive(open_flow(OPENING))


def test_to_resume_is_to_wait_for_the_answer_and_to_read_what_was_done() -> None:
    world = World(standing=RUNNING, writes=[OK])
    world.drive(open_flow(RESUMING))
    assert world.kinds() == [
        "Follow", "ReadClock", "WriteFact", "AwaitStanding", "ReadHistory", "Remember", "QueueFact",
    ]  # fmt: skip
    assert world.written() == ["STARTED", "HEARTBEAT*"]  # its lease may have been that of a wait for a person


def test_to_resume_what_is_not_there_is_to_begin_it() -> None:
    world = World(standing=replace(RUNNING, workflow_offset=8), writes=[OK])
    world.drive(open_flow(RESUMING))
    assert world.written() == ["STARTED"]
    assert "ReadHistory" not in world.kinds()


def test_a_turned_workflow_is_not_resumed() -> None:
    with pytest.raises(WorkflowTurned):
        World(standing=replace(RUNNING, phase=Phase.TURNED, epoch=1)).drive(open_flow(RESUMING))
    with pytest.raises(LedgerUnavailable):
        World(standing=None).drive(open_flow(RESUMING))


def test_an_id_in_use_is_refused_unless_it_is_resumed() -> None:
    admissible(OPENING, 7, RUNNING)
    admissible(RESUMING, 8, RUNNING)
    with pytest.raises(AlreadyRunning, match="on_existing='resume'"):
        admissible(OPENING, 8, RUNNING)


def test_a_claim_waits_for_what_is_owed_and_for_the_word_of_the_fold() -> None:
    world = World(end=replace(RUNNING, phase=Phase.SUCCEEDED))
    assert world.drive(claim_flow(TERMS)) == Succeeded()
    assert world.kinds() == ["AwaitStanding", "ReadClock", "AwaitOwed", "WriteFact", "AwaitEnd"]


@pytest.mark.parametrize("phase", [Phase.TURNED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS])
def test_a_claim_that_comes_after_the_turn_is_answered_with_the_turn(phase: Phase) -> None:
    end = Standing(7, 1, phase)
    assert World(end=end).drive(claim_flow(TERMS)) == Turned(end)
    assert World(standing=end).drive(claim_flow(TERMS)) == Turned(end)


def test_a_new_epoch_is_no_success() -> None:
    end = replace(RUNNING, epoch=1)
    assert World(end=end).drive(claim_flow(TERMS)) == Turned(end)


def test_without_the_word_of_the_fold_a_success_is_not_confirmed() -> None:
    for world, written in (
        (World(standing=None), []),
        (World(end=None), ["SUCCEEDED"]),
        (World(owed=False), ["SUCCEEDED*"]),
        (World(writes=[Uncertain("?")]), ["SUCCEEDED", "SUCCEEDED*"]),
        (World(writes=[Unwritten("down")]), ["SUCCEEDED", "SUCCEEDED*"]),
    ):
        assert isinstance(world.drive(claim_flow(TERMS)), Unconfirmed)
        assert world.written() == written


def test_an_agent_that_failed_says_so_for_its_epoch() -> None:
    world = World(standing=replace(RUNNING, epoch=2))
    assert world.drive(fail_flow(TERMS, ValueError("no stock"))) == Failed("ValueError: no stock")
    fact = world.facts()[0]
    assert (fact.status, fact.epoch, fact.workflow_offset) == ("FAILED", 2, 7)
    assert fact.error is not None
    assert fact.error.type == "builtins.ValueError"


def test_a_failure_that_cannot_be_written_is_owed() -> None:
    world = World(writes=[Uncertain("?")])
    world.drive(fail_flow(TERMS, ValueError()))
    assert world.written() == ["FAILED", "FAILED*"]


def test_a_failure_of_what_has_turned_or_was_never_answered_needs_no_word() -> None:
    turned = Standing(7, 1, Phase.TURNED)
    world = World(standing=turned)
    assert world.drive(fail_flow(TERMS, ValueError())) == Turned(turned)
    assert not world.written()
    unanswered = World(standing=None)
    assert isinstance(unanswered.drive(fail_flow(TERMS, ValueError())), LeftOpen)
    assert not unanswered.written()


def test_a_workflow_left_open_gets_the_lease_it_is_left_with() -> None:
    world = World()
    assert world.drive(leave_flow(TERMS, 259_200_000, "a person is asked")) == LeftOpen("a person is asked")
    fact = world.facts()[0]
    assert isinstance(fact, WorkflowEvent)
    assert (fact.status, fact.lease_ms) == ("HEARTBEAT", 259_200_000)


def test_an_observed_end_waits_for_nothing() -> None:
    for error in (None, ValueError()):
        world = World(writes=[Unwritten("down")])
        world.drive(observed_end_flow(TERMS, error))
        assert world.kinds() == ["LookAtEcho", "ReadClock", "QueueFact"]


@pytest.mark.parametrize("point", range(5))
def test_a_scope_killed_at_any_point_of_its_claim_tries_nothing_more(point: int) -> None:
    world = World(end=replace(RUNNING, phase=Phase.SUCCEEDED))
    flow = claim_flow(TERMS)
    answer = None
    for _ in range(point):
        answer = world.perform(flow.send(answer))
    flow.close()


@pytest.mark.parametrize("point", range(5))
def test_an_interrupted_claim_passes_the_interruption_on(point: int) -> None:
    world = World(end=replace(RUNNING, phase=Phase.SUCCEEDED), interrupt_at=point)
    with pytest.raises(KeyboardInterrupt):
        world.drive(claim_flow(TERMS))
    assert len(world.effects) == point + 1
