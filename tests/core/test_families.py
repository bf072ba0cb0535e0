"""Nested workflows: a child's plan is part of its parent's, across partitions and processors."""

from __future__ import annotations

import pytest
from tests.core.families import BOOK, PAY, SHIP, TOPICS, Families

from amends.processors.terms import Terms
from amends.schemas.codec import encode
from amends.schemas.facts import Decision, Party, Resolution, WorkflowEvent, WorkflowStatus
from amends.schemas.family import CHILD_STARTED_OFFSET
from amends.schemas.policy import Around, Policy, encode_policy

GRACE_MS = 60_000
TERMS = Terms(grace_ms=GRACE_MS)


def family(child: str = "d") -> tuple[Families, int]:
    """A parent that booked, had a child ship, which has succeeded, and paid."""
    made = Families(TERMS)
    made.start("p")
    made.did("p", "book", BOOK)
    announced = made.child("p", child)
    made.did(child, "ship", SHIP)
    made.succeeded(child)
    made.did("p", "pay", PAY)
    made.settle()
    assert (made.phase("p"), made.phase(child)) == ("RUNNING", "SUCCEEDED")
    return made, announced


def time_passes(made: Families, ms: int) -> None:
    """Facts of somebody else on every partition: it is the ledger's time that passes."""
    made.now_ms += ms
    for number in range(made.partitions):
        made.start(made.other_id(number))
    made.settle()


# --- a parent's failure -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("child", ["d", "c"], ids=["across processors", "on one partition"])
def test_a_finished_child_is_undone_for_its_parent_in_the_order_of_the_parent(child: str) -> None:
    made, _ = family(child)
    made.failed("p")
    made.settle()
    assert made.undone == ["pay", "ship", "book"]
    assert (made.phase("p"), made.phase(child)) == ("COMPENSATED", "COMPENSATED")
    assert made.answers("p") == ["COMPENSATED"]
    assert len(made.requests(child)) == 1


def test_a_running_child_is_turned_and_its_late_effects_are_undone() -> None:
    made = Families()
    made.start("p")
    made.child("p", "d")
    made.did("d", "ship", SHIP)
    made.failed("p")
    made.settle()
    assert made.phase("d") == "COMPENSATED"
    made.did("d", "pay", PAY)  # it was in flight
    made.settle()
    assert made.undone == ["ship", "pay"]
    assert (made.phase("p"), made.phase("d")) == ("COMPENSATED", "COMPENSATED")


def test_the_undoing_goes_through_every_generation() -> None:
    made = Families()
    made.start("p")
    made.did("p", "book", BOOK)
    made.child("p", "d")
    made.did("d", "pay", PAY)
    made.child("d", "g")
    made.did("g", "ship", SHIP)
    made.succeeded("g")
    made.succeeded("d")
    made.settle()
    made.failed("p")
    made.settle()
    assert made.undone == ["ship", "pay", "book"]
    assert {made.phase(id) for id in ("p", "d", "g")} == {"COMPENSATED"}


def test_a_child_that_failed_is_its_own_matter_and_the_parent_goes_on() -> None:
    made = Families()
    made.start("p")
    made.did("p", "book", BOOK)
    made.child("p", "d")
    made.did("d", "ship", SHIP)
    made.failed("d")
    made.settle()
    assert (made.phase("d"), made.phase("p")) == ("COMPENSATED", "RUNNING")
    assert made.answers("p") == []
    made.failed("p")
    made.settle()
    assert made.undone == ["ship", "book"]
    assert made.phase("p") == "COMPENSATED"


def test_a_parents_success_waits_for_no_child() -> None:
    made = Families()
    made.start("p")
    made.child("p", "d")
    made.succeeded("p")
    made.settle()
    assert (made.phase("p"), made.phase("d")) == ("SUCCEEDED", "RUNNING")


def test_a_succeeded_parent_that_a_person_has_undone_takes_its_children_with_it() -> None:
    made, _ = family()
    made.succeeded("p")
    made.settle()
    made.said("p", WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON, by="ann")
    made.settle()
    assert made.undone == ["pay", "ship", "book"]


def test_a_detached_child_stands_alone() -> None:
    made = Families()
    made.start("p")
    made.announce("p", "d", detached=True)
    made.start("d")
    made.did("d", "ship", SHIP)
    made.failed("p")
    made.settle()
    assert (made.phase("p"), made.phase("d"), made.undone) == ("COMPENSATED", "RUNNING", [])


def test_a_turn_to_a_savepoint_undoes_the_children_begun_after_it() -> None:
    made = Families()
    made.start("p")
    made.child("p", "d")
    made.did("d", "ship", SHIP)
    made.said("p", WorkflowStatus.SAVEPOINT, savepoint="s")
    made.child("p", "g")
    made.did("g", "pay", PAY)
    made.settle()
    made.said("p", WorkflowStatus.ROLLBACK_REQUESTED, savepoint="s")
    made.settle()
    assert made.undone == ["pay"]
    assert (made.phase("p"), made.phase("d"), made.phase("g")) == ("RUNNING", "RUNNING", "COMPENSATED")
    assert made.echo("p").open_undos == 0


# --- requests and answers -----------------------------------------------------------------------------------------


def test_a_request_is_repeated_until_the_answer_is_there_and_each_is_answered() -> None:
    made, _ = family()
    made.failed("p")
    theirs = made.partition_of("d")
    made.settle(only=lambda partition: partition != theirs)
    for _ in range(12):
        made.now_ms += 1_000
        made.settle(only=lambda partition: partition != theirs)
    asked = len(made.requests("d"))
    assert asked == 3
    assert made.undone == ["pay"]  # what came before the child waits for it
    made.settle()
    assert made.phase("p") == "COMPENSATED"
    assert made.answers("p")  # the last request at least
    made.wait(20_000)
    assert len(made.requests("d")) == asked


@pytest.mark.parametrize("killed", [0, 1], ids=["the parent's", "the child's"])
def test_a_processor_that_died_before_its_checkpoint_asks_and_answers_again(killed: int) -> None:
    made, _ = family()
    made.failed("p")
    engine = made.engines[killed]
    for each in made.engines:
        if each is not engine:
            made.settle(only=lambda partition, mine=each: partition in mine.partitions)  # type: ignore[misc]
    for partition in engine.partitions:
        while engine.fold_next(partition):
            while engine.send_next(partition):
                pass
    made.crash(killed)
    made.settle()
    made.wait(6_000)
    assert sorted(made.undone) == ["book", "pay", "ship"]
    assert (made.phase("p"), made.phase("d")) == ("COMPENSATED", "COMPENSATED")


def test_both_processors_restored_from_their_checkpoints_know_the_family_as_before() -> None:
    made, _ = family()
    before = made.record_of("p", "d"), made.held("d").header.family  # type: ignore[union-attr]
    made.crash(0)
    made.crash(1)
    assert (made.record_of("p", "d"), made.held("d").header.family) == before  # type: ignore[union-attr]
    made.failed("p")
    made.settle()
    assert made.undone == ["pay", "ship", "book"]
    made.crash(0)
    made.crash(1)
    made.settle()
    assert len(made.requests("d")) == 1
    assert made.answers("p") == ["COMPENSATED"]


def test_an_answer_for_an_earlier_use_of_the_id_is_not_taken_for_this_one() -> None:
    made, announced = family()
    made.failed("p")
    made.settle(only=lambda partition: partition != made.partition_of("d"))
    stray = WorkflowEvent(
        "p",
        0,
        WorkflowStatus.CHILD_CLOSED,
        workflow_offset=made.starts["p"],
        writer=Party.PROCESSOR,
        child_workflow_id="d",
        closed_as="COMPENSATED",
        attributes={CHILD_STARTED_OFFSET: str(announced + 1), "as_of": "99"},
    )
    made.add(stray)
    made.settle(only=lambda partition: partition != made.partition_of("d"))
    assert made.undone == ["pay"]
    made.settle()
    assert made.undone == ["pay", "ship", "book"]


def test_an_answer_older_than_what_is_known_says_nothing() -> None:
    made, announced = family()
    made.failing.add("ship")
    made.failed("p")
    made.settle()
    assert made.answers("p") == ["TURNED"]
    zombie = WorkflowEvent(
        "p",
        0,
        WorkflowStatus.CHILD_CLOSED,
        workflow_offset=made.starts["p"],
        writer=Party.PROCESSOR,
        child_workflow_id="d",
        closed_as="COMPENSATED",
        attributes={CHILD_STARTED_OFFSET: str(announced), "as_of": "2"},
    )
    made.add(zombie)
    made.settle()
    assert made.phase("p") == "TURNED"


def test_a_request_of_somebody_who_is_not_its_parent_turns_nobody() -> None:
    made, announced = family()
    made.start("parent")
    made.add(
        WorkflowEvent(
            "d",
            0,
            WorkflowStatus.ROLLBACK_REQUESTED,
            writer=Party.PARENT,
            parent_workflow_id="parent",
            parent_workflow_offset=made.starts["parent"],
            child_started_at_ms=made.now_ms,
            attributes={CHILD_STARTED_OFFSET: str(announced)},
        )
    )
    made.settle()
    assert made.phase("d") == "SUCCEEDED"
    assert made.undone == []


# --- what waits for people ----------------------------------------------------------------------------------------


def test_a_child_whose_rest_waits_for_people_holds_nothing_up_and_keeps_its_parent_open() -> None:
    made, _ = family()
    made.failing.add("ship")
    made.failed("p")
    made.settle()
    assert made.undone == ["pay", "book"]
    assert (made.phase("p"), made.phase("d")) == ("TURNED", "TURNED")
    assert made.incidents("d") == {"undo_failed": "OPEN"}
    assert made.incidents("p") == {"child_waits": "OPEN"}
    made.wait(20_000)
    assert len(made.requests("d")) == 1


@pytest.mark.parametrize(
    ("decision", "phase"),
    [(Decision.MARK_UNDONE, "COMPENSATED"), (Decision.ACCEPT_LOSS, "CLOSED_WITH_LOSS")],
)
def test_what_people_decide_on_a_child_closes_its_parent_too(decision: Decision, phase: str) -> None:
    made, _ = family()
    made.failing.add("ship")
    made.failed("p")
    made.settle()
    made.add(Resolution("d", decision, Party.PERSON, "ann", step_id="ship", workflow_offset=made.starts["d"]))
    made.settle()
    assert (made.phase("p"), made.phase("d")) == (phase, phase)
    assert made.answers("p") == ["TURNED", phase]
    assert made.incidents("p") == {"child_waits": "CLOSED"}


def test_a_person_may_accept_the_loss_of_a_child_at_its_parent() -> None:
    made, _ = family()
    made.failing.add("ship")
    made.failed("p")
    made.settle()
    record = made.record_of("p", "d")
    made.add(Resolution("p", Decision.ACCEPT_LOSS, Party.PERSON, "ann", step_id=record.step_id))
    made.settle()
    assert (made.phase("p"), made.phase("d")) == ("CLOSED_WITH_LOSS", "TURNED")
    made.add(Resolution("d", Decision.MARK_UNDONE, Party.PERSON, "ann", step_id="ship"))
    made.settle()
    assert (made.phase("p"), made.phase("d")) == ("COMPENSATED", "COMPENSATED")


def test_a_person_may_have_a_child_asked_again() -> None:
    made, _ = family()
    made.failing.add("ship")
    made.failed("p")
    made.settle()
    made.add(Resolution("p", Decision.RETRY, Party.PERSON, "ann", step_id=made.record_of("p", "d").step_id))
    made.settle()
    assert len(made.requests("d")) == 2
    assert made.answers("p") == ["TURNED", "TURNED"]
    assert made.incidents("p") == {"child_waits": "OPEN"}


def test_a_child_whose_policy_halts_answers_when_nothing_moves_any_more() -> None:
    made = Families()
    made.start("p")
    made.did("p", "book", BOOK)
    announced = made.announce("p", "d")
    policy = encode_policy(Policy(around_waiting=Around.HALT))
    made.start("d", parent="p", announced=announced, policy=policy)
    made.did("d", "pay", PAY)
    made.did("d", "ship", SHIP)
    made.failing.add("ship")
    made.settle()
    made.failed("p")
    made.settle()
    assert made.answers("p") == ["TURNED"]
    assert made.undone == ["book"]  # "pay" of the child waits for a person, by the child's policy


def test_a_parent_whose_policy_halts_waits_before_what_came_before_its_child() -> None:
    made = Families()
    made.start("p", policy=encode_policy(Policy(around_waiting=Around.HALT)))
    made.did("p", "book", BOOK)
    made.child("p", "d")
    made.did("d", "ship", SHIP)
    made.failing.add("ship")
    made.failed("p")
    made.settle()
    assert made.undone == []
    made.add(Resolution("d", Decision.MARK_UNDONE, Party.PERSON, "ann", step_id="ship"))
    made.settle()
    assert made.undone == ["book"]
    assert made.phase("p") == "COMPENSATED"


def test_a_late_effect_in_a_closed_child_opens_its_parent_again() -> None:
    made, _ = family()
    made.failed("p")
    made.settle()
    assert made.phase("p") == "COMPENSATED"
    made.failing.add("pay")
    made.did("d", "late", PAY)
    made.settle()
    assert (made.phase("d"), made.phase("p")) == ("TURNED", "TURNED")
    made.add(Resolution("d", Decision.ACCEPT_LOSS, Party.PERSON, "ann", step_id="late"))
    made.settle()
    assert (made.phase("d"), made.phase("p")) == ("CLOSED_WITH_LOSS", "CLOSED_WITH_LOSS")
    assert made.answers("p") == ["COMPENSATED", "TURNED", "CLOSED_WITH_LOSS"]


# --- children that are not held -----------------------------------------------------------------------------------


def test_a_forgotten_child_is_folded_again_and_undone() -> None:
    made, _ = family()
    time_passes(made, GRACE_MS + 1)
    assert made.held("d") is None
    made.failed("p")
    made.settle()
    assert made.undone == ["pay", "ship", "book"]
    assert (made.phase("p"), made.phase("d")) == ("COMPENSATED", "COMPENSATED")


def test_a_child_is_folded_again_by_a_new_owner_that_finds_it_parked() -> None:
    made, _ = family()
    time_passes(made, GRACE_MS + 1)
    made.failed("p")
    made.settle(only=lambda partition: partition != made.partition_of("d"))
    engine, partition = made.engines[1], made.partition_of("d")
    while engine.fold_next(partition):
        pass
    assert engine.checkpoint(partition)
    made.crash(1)
    made.settle()
    made.wait(6_000)
    assert sorted(made.undone) == ["book", "pay", "ship"]
    assert made.phase("p") == "COMPENSATED"


def test_a_child_that_is_asked_for_before_it_begins_is_born_turned() -> None:
    made = Families()
    made.start("p")
    made.did("p", "book", BOOK)
    announced = made.announce("p", "d")
    made.failed("p")
    made.settle()
    assert made.phase("p") == "COMPENSATED"
    assert made.answers("p") == ["COMPENSATED"]
    assert made.held("d") is None  # nothing that an agent or a person would be told of
    asked = made.start("d", parent="p", announced=announced)
    made.settle()
    echo = made.echo("d")
    assert (echo.phase.value, echo.workflow_offset, echo.answers_offset) == ("COMPENSATED", asked, asked)
    made.did("d", "ship", SHIP)  # an agent that did not look
    made.settle()
    assert made.undone == ["book", "ship"]
    assert (made.phase("p"), made.phase("d")) == ("COMPENSATED", "COMPENSATED")


def test_a_start_that_comes_while_the_child_is_looked_for_is_born_turned() -> None:
    made = Families()
    made.start("p")
    announced = made.announce("p", "d")
    made.failed("p")
    made.settle(only=lambda partition: partition != made.partition_of("d"))
    engine, partition = made.engines[1], made.partition_of("d")
    while engine.fold_next(partition):
        pass
    made.start("d", parent="p", announced=announced)
    while engine.fold_next(partition):
        pass
    made.settle()
    assert (made.phase("p"), made.phase("d")) == ("COMPENSATED", "COMPENSATED")


def test_a_resumption_that_comes_while_its_announcement_is_looked_for_is_turned() -> None:
    """Seen by the simulation: the child is held under an earlier announcement, which the turn does not condemn."""
    made = Families()
    made.start("p")
    made.child("p", "d")
    made.did("d", "ship", SHIP)
    begun = made.starts["d"]
    made.said("p", WorkflowStatus.SAVEPOINT, savepoint="s")
    second = made.announce("p", "d")
    made.said("p", WorkflowStatus.ROLLBACK_REQUESTED, savepoint="s")
    made.settle(only=lambda partition: partition != made.partition_of("d"))
    engine, partition = made.engines[1], made.partition_of("d")
    while engine.fold_next(partition):
        pass
    made.start("d", parent="p", announced=second)
    made.starts["d"] = begun
    while engine.fold_next(partition):
        pass
    made.settle()
    assert (made.phase("d"), made.undone) == ("COMPENSATED", ["ship"])


def test_an_id_of_somebody_else_is_left_alone() -> None:
    made = Families()
    made.start("d")
    made.did("d", "ship", SHIP)
    theirs = made.starts["d"]
    made.start("p")
    announced = made.announce("p", "d")
    made.start("d", parent="p", announced=announced)  # refused: the echo says so
    made.failed("p")
    made.settle()
    held = made.held("d")
    assert held is not None
    assert (held.header.started_offset, made.phase("d"), made.phase("p")) == (theirs, "RUNNING", "COMPENSATED")
    assert held.header.family is None
    assert made.undone == []
    made.starts["d"] = theirs
    made.add(WorkflowEvent("d", 0, WorkflowStatus.HEARTBEAT))
    made.settle()
    assert held.header.folded_to > theirs  # facts that name no start are still its own


def test_a_child_resumed_in_its_parent_is_one_child() -> None:
    made, first = family()
    second = made.announce("p", "d")
    begun = made.starts["d"]
    made.start("d", parent="p", announced=second)
    made.starts["d"] = begun
    made.settle()
    held = made.held("d")
    assert held is not None
    assert held.header.family is not None
    assert held.header.family.announced == (first, second)
    made.failed("p")
    made.settle()
    assert made.undone == ["ship", "pay", "book"]
    assert made.answers("p") == ["COMPENSATED", "COMPENSATED"]
    assert made.phase("p") == "COMPENSATED"


def test_a_child_whose_announcement_could_not_be_read_at_first_is_undone_all_the_same() -> None:
    made = Families(TERMS)
    made.start("p")
    unread = made.broker.append(TOPICS.ledger, key=b"p", value=b"junk").offset
    made.start("d", parent="p", announced=unread)
    made.did("d", "ship", SHIP)
    made.succeeded("d")
    made.settle()
    assert made.incidents("p") == {"unreadable": "OPEN"}
    made.now_ms += 2 * GRACE_MS
    mended = WorkflowEvent("p", 0, WorkflowStatus.CHILD_STARTED, workflow_offset=0, child_workflow_id="d")
    headers = [("amends-original-offset", str(unread).encode())]
    made.broker.append(TOPICS.ledger, key=b"p", value=encode(mended), headers=headers)
    time_passes(made, 1)
    assert made.held("d") is None
    made.failed("p")
    made.settle()
    assert made.undone == ["ship"]
    assert (made.phase("p"), made.incidents("p")) == ("COMPENSATED", {"unreadable": "CLOSED"})


def test_two_uses_of_an_id_by_one_parent_are_both_undone() -> None:
    made, _ = family()
    time_passes(made, GRACE_MS + 1)
    made.child("p", "d")
    made.did("d", "ship again", SHIP)
    made.succeeded("d")
    made.settle()
    made.failed("p")
    made.settle()
    assert made.undone == ["ship again", "pay", "ship", "book"]
    assert made.phase("p") == "COMPENSATED"


def test_a_child_whose_facts_the_ledger_no_longer_holds_is_an_incident_and_a_loss() -> None:
    made, _ = family()
    time_passes(made, GRACE_MS + 1)
    partition = made.partition_of("d")
    made.broker.forget("amends.ledger", partition, made.broker.end("amends.ledger", partition) - 1)
    made.failed("p")
    made.settle()
    assert made.undone == ["pay", "book"]
    assert made.phase("p") == "TURNED"
    assert made.incidents("d") == {"child_gone": "OPEN"}
    assert made.incidents("p") == {"child_waits": "OPEN"}
    request = next(f for f in made.facts("d") if isinstance(f, WorkflowEvent) and f.writer is Party.PARENT)
    assert encode(request)
    offset = next(
        r.offset for r in made.broker.read("amends.ledger", partition) if r.key == b"d" and r.value == encode(request)
    )
    ruling = Resolution(
        "d",
        Decision.ACCEPT_LOSS,
        Party.PERSON,
        "ann",
        workflow_offset=offset,
        attributes={"incident_kind": "child_gone"},
    )
    made.add(ruling)
    made.settle()
    assert made.answers("p") == ["TURNED", "CLOSED_WITH_LOSS"]
    assert made.phase("p") == "CLOSED_WITH_LOSS"


def test_a_turned_child_that_was_forgotten_answers_a_request_that_comes_again() -> None:
    made, _ = family()
    made.failed("p")
    theirs = made.partition_of("p")
    made.settle(only=lambda partition: partition == theirs)
    made.settle(only=lambda partition: partition != theirs)  # the child is closed, its parent has not heard
    time_passes_for_all_but(made, theirs)
    assert made.held("d") is None
    request = made.requests("d")[-1]
    made.add(request)
    made.settle()
    assert set(made.answers("p")) == {"COMPENSATED"}
    assert made.phase("p") == "COMPENSATED"
    assert made.undone.count("ship") == 1


def time_passes_for_all_but(made: Families, partition: int) -> None:
    made.now_ms += GRACE_MS + 1
    for number in range(made.partitions):
        made.start(made.other_id(number))
    made.settle(only=lambda each: each != partition)


def test_children_of_a_parent_that_only_looks_on_are_left_alone() -> None:
    made = Families()
    started = WorkflowEvent("p", 0, WorkflowStatus.STARTED, lease_ms=10_000_000, attributes={"mode": "observe"})
    made.starts["p"] = made.add(started)
    made.child("p", "d")
    made.did("d", "ship", SHIP)
    made.failed("p")
    made.settle()
    assert (made.phase("d"), made.undone) == ("RUNNING", [])


def test_an_open_call_of_a_child_is_awaited_before_its_parent_closes() -> None:
    made, _ = family()
    made.failed("p")
    made.begins("d", "late")
    made.settle()
    assert (made.phase("d"), made.phase("p")) == ("TURNED", "TURNED")
    assert made.answers("p") == []
    assert made.undone == ["pay"]
    made.ends("d", "late")
    made.settle()
    assert made.undone == ["pay", "late", "ship", "book"]
    assert (made.phase("d"), made.phase("p")) == ("COMPENSATED", "COMPENSATED")
