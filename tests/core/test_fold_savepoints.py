"""Turns to savepoints: what is condemned, for how long, and what goes on beside its plan."""

from __future__ import annotations

import pytest
from tests.core.ledger import LEASE_MS, Ledger, contract_of

from amends.processors.records import decode_header, encode_header
from amends.processors.state import Header, Turn
from amends.schemas.commands import Phase, WorkflowEcho
from amends.schemas.contract import Effect, Idempotency
from amends.schemas.facts import BEHIND, Decision, Party, StepStatus, UndoStatus, WorkflowEvent, WorkflowStatus

CHARGE = contract_of("charge")
BOOK = contract_of("book")
PROBED = contract_of("probed", probe=True)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def paid_then_booked(ledger: Ledger) -> None:
    """A call, a savepoint, and a call after it."""
    ledger.start()
    ledger.did("charge", CHARGE)
    ledger.savepoint("paid")
    ledger.did("book", BOOK)


def test_only_what_came_after_the_savepoint_is_undone(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("paid")
    assert (ledger.phase, ledger.workflow.header.epoch) == ("RUNNING", 1)
    assert ledger.commanded() == [[("book", 0, 0)]]
    ledger.undone("book")
    ledger.wait(5_000)
    assert ledger.phase == "RUNNING"
    assert ledger.step("charge").undo is None
    assert "back to savepoint 'paid'" in ledger.workflow.header.turned_reason


def test_who_asks_for_undoing_in_an_epoch_that_has_ended_is_answered_as_of_there(ledger: Ledger) -> None:
    """Seen by the simulation (seed 6008088): two processes of one workflow went back to one savepoint. The second heard
    an echo of the first one's turn, and was told that its own call had been undone, which came between the two."""
    paid_then_booked(ledger)
    ledger.undo_to("paid")
    ledger.undone("book")
    ledger.did("late", BOOK)
    asked_at = ledger.undo_to("paid")
    told = ledger.of(WorkflowEcho)[-1]
    assert (told.epoch, told.folded_to, told.open_undos) == (1, asked_at, 1)


def test_a_workflow_undone_to_a_savepoint_goes_on_and_succeeds(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("paid")
    ledger.undone("book")
    ledger.did("book-again", BOOK, epoch=1)
    ledger.said(WorkflowStatus.SUCCEEDED, epoch=1)
    assert ledger.phase == "SUCCEEDED"
    assert len(ledger.commanded()) == 1


def test_a_savepoint_that_is_written_again_behind_calls_stays_where_it_was(ledger: Ledger) -> None:
    """Facts come at least once: what was called between the two would stand, and its agent believe it undone."""
    ledger.start()
    ledger.did("charge", CHARGE)
    taken = WorkflowEvent("w", 0, WorkflowStatus.SAVEPOINT, savepoint="paid", attributes={BEHIND: "2"})
    for _ in range(2):  # a client that recovers: nothing stands between
        ledger.append(taken)
    ledger.did("book", BOOK)
    ledger.append(taken)
    ledger.undo_to("paid")
    assert ledger.commanded() == [[("book", 0, 0)]]


def test_a_savepoint_that_is_taken_again_is_where_it_was_taken_last(ledger: Ledger) -> None:
    ledger.start()
    at = ledger.append(WorkflowEvent("w", 0, WorkflowStatus.SAVEPOINT, savepoint="paid", attributes={BEHIND: "0"}))
    ledger.did("charge", CHARGE)
    again = {BEHIND: str(at + 2)}
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.SAVEPOINT, savepoint="paid", attributes=again))
    ledger.did("book", BOOK)
    ledger.undo_to("paid")
    assert ledger.commanded() == [[("book", 0, 0)]]


def beats_for(ledger: Ledger, instance: str, ms: int, *, epoch: int) -> None:
    for _ in range(ms * 4 // LEASE_MS):
        beat = WorkflowEvent("w", epoch, WorkflowStatus.HEARTBEAT, instance=instance, lease_ms=LEASE_MS)
        ledger.append(beat)
        ledger.wait(LEASE_MS // 4)


def test_an_agent_that_has_not_heard_of_its_new_epoch_is_alive(ledger: Ledger) -> None:
    """It has asked for the undoing, and the fold, which was down, tells it late."""
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.STARTED, agent_id="a", instance="p1", lease_ms=LEASE_MS))
    ledger.did("charge", CHARGE)
    ledger.savepoint("paid")
    ledger.undo_to("paid")
    beats_for(ledger, "p1", 3 * LEASE_MS, epoch=0)
    assert ledger.phase == "RUNNING"


def test_who_does_not_own_a_workflow_keeps_it_alive_in_no_ended_epoch(ledger: Ledger) -> None:
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.STARTED, agent_id="a", instance="p1", lease_ms=LEASE_MS))
    ledger.savepoint("begun")
    ledger.undo_to("begun")
    beats_for(ledger, "p0", 3 * LEASE_MS, epoch=0)
    assert ledger.phase == "COMPENSATED"


@pytest.mark.parametrize("sent", [True, False])
def test_a_zombie_that_repeats_a_call_from_before_the_savepoint_has_it_not_undone(ledger: Ledger, sent: bool) -> None:
    keyed = contract_of("charge", call=Idempotency.KEY)
    ledger.start()
    ledger.did("charge", keyed)
    ledger.savepoint("paid")
    ledger.did("book", BOOK)
    ledger.undo_to("paid")
    ledger.undone("book")
    if sent:
        ledger.started("charge", keyed, attempt="zombie")
    ledger.ended("charge", StepStatus.NOT_EXECUTED, attempt="zombie")
    ledger.said(WorkflowStatus.SUCCEEDED, epoch=1)
    assert ledger.phase == "SUCCEEDED"
    assert ledger.step("charge").undo is None


def test_each_effect_of_two_tries_is_undone_once(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("paid")
    ledger.undone("book")
    ledger.did("book-again", BOOK, epoch=1)
    ledger.undo_to("paid", epoch=1)
    ledger.undone("book-again")
    ledger.said(WorkflowStatus.FAILED, epoch=2)
    ledger.undone("charge")
    assert ledger.phase == "COMPENSATED"
    assert ledger.commanded() == [[("book", 0, 0)], [("book-again", 0, 0)], [("charge", 0, 0)]]


def test_a_call_of_the_ended_epoch_is_condemned_when_it_lands(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("paid")
    ledger.undone("book")
    ledger.did("straggler", BOOK)
    assert ledger.commanded()[-1] == [("straggler", 0, 0)]
    assert ledger.phase == "RUNNING"


def test_a_call_in_flight_at_the_turn_is_undone_once_it_has_ended(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.started("flight", CHARGE)
    ledger.undo_to("paid")
    assert ledger.commanded() == []  # what was built before it waits
    ledger.ended("flight", StepStatus.SUCCEEDED)
    assert ledger.commanded() == [[("flight", 0, 0), ("book", 0, 0)]]


def test_a_later_turn_of_the_whole_condemns_everything_that_is_still_there(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("paid")
    ledger.did("book-again", BOOK, epoch=1)
    ledger.said(WorkflowStatus.FAILED, epoch=1)
    assert ledger.phase == "TURNED"
    assert ledger.commanded()[-1] == [("book-again", 0, 0), ("book", 0, 0), ("charge", 0, 0)]
    ledger.undone("book-again")
    ledger.undone("book")
    ledger.undone("charge")
    assert ledger.phase == "COMPENSATED"


def test_an_attempt_made_after_the_savepoint_condemns_a_step_first_tried_before_it(ledger: Ledger) -> None:
    keyed = contract_of("keyed", call=Idempotency.KEY)
    ledger.start()
    ledger.started("keyed", keyed)
    ledger.ended("keyed", StepStatus.FAILED)
    ledger.savepoint("here")
    ledger.started("keyed", keyed, attempt="p2")
    ledger.ended("keyed", StepStatus.SUCCEEDED, attempt="p2")
    ledger.undo_to("here")
    assert ledger.commanded() == [[("keyed", 0, 0)]]


@pytest.mark.parametrize("status", [None, StepStatus.UNKNOWN])
def test_a_savepoint_over_an_open_or_unknown_call_is_void_and_the_older_one_is_meant(
    ledger: Ledger, status: StepStatus | None
) -> None:
    ledger.start()
    ledger.did("charge", CHARGE)
    ledger.savepoint("paid")
    ledger.started("probed", PROBED)
    if status is not None:
        ledger.ended("probed", status)
    ledger.savepoint("booked")
    ledger.ended("probed", StepStatus.SUCCEEDED)
    ledger.undo_to("booked")
    assert ledger.commanded() == [[("probed", 0, 0)]]
    reason = ledger.workflow.header.turned_reason
    assert "'booked' was taken while a call was open or unknown, so back to savepoint 'paid' before it" in reason


def test_a_void_savepoint_with_none_before_it_means_the_start(ledger: Ledger) -> None:
    ledger.start()
    ledger.did("charge", CHARGE)
    ledger.started("book", BOOK)
    ledger.savepoint("booked")
    ledger.ended("book", StepStatus.SUCCEEDED)
    ledger.undo_to("booked")
    assert ledger.phase == "RUNNING"
    assert ledger.commanded() == [[("book", 0, 0), ("charge", 0, 0)]]
    assert "the start of the workflow" in ledger.workflow.header.turned_reason


def test_a_savepoint_while_a_record_cannot_be_read_is_void(ledger: Ledger) -> None:
    ledger.start()
    ledger.append(None, raw=b"nonsense", key=b"w")
    ledger.savepoint("paid")
    assert ledger.workflow.header.savepoints[-1].void


def test_a_condemned_call_that_is_still_unknown_does_not_void_a_savepoint(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.started("probed", PROBED)
    ledger.ended("probed", StepStatus.UNKNOWN)
    ledger.undo_to("paid")
    ledger.savepoint("again", epoch=1)
    assert not ledger.workflow.header.savepoints[-1].void


def test_a_savepoint_of_an_ended_epoch_is_not_kept(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("paid")
    ledger.savepoint("late", epoch=0)
    assert [s.name for s in ledger.workflow.header.savepoints] == ["paid"]


def test_savepoints_that_were_undone_are_gone(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.savepoint("booked")
    ledger.undo_to("paid")
    assert [s.name for s in ledger.workflow.header.savepoints] == ["paid"]


def test_a_request_of_an_ended_epoch_turns_nothing(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    for writer in (Party.AGENT, Party.PERSON, Party.AGENT, Party.PERSON):
        ledger.undo_to("paid", writer=writer)
    assert ledger.workflow.header.epoch == 1


def test_an_agent_that_names_a_savepoint_nobody_knows_turns_the_whole(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("piad")
    assert ledger.phase == "TURNED"
    assert "no savepoint 'piad' is known" in ledger.workflow.header.turned_reason


def test_a_person_who_names_a_savepoint_nobody_knows_undoes_nothing(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("piad", writer=Party.PERSON)
    assert ledger.phase == "RUNNING"
    assert ledger.commanded() == []
    assert ledger.incidents() == {"savepoint_unknown": "OPEN"}


def test_what_a_plan_of_a_savepoint_cannot_undo_is_an_incident_and_the_agent_lives(ledger: Ledger) -> None:
    ledger.start()
    ledger.savepoint("begun")
    ledger.did("mail", contract_of("mail", effect=Effect.IRREVERSIBLE, undo=None))
    ledger.did("book", BOOK)
    ledger.undo_to("begun")
    ledger.undone("book")
    assert ledger.incidents() == {"irreversible": "OPEN"}
    assert ledger.phase == "RUNNING"


def test_a_claim_waits_for_what_was_condemned_before(ledger: Ledger) -> None:
    ledger.start()
    ledger.savepoint("begun")
    ledger.did("mail", contract_of("mail", effect=Effect.IRREVERSIBLE, undo=None))
    ledger.undo_to("begun")
    ledger.said(WorkflowStatus.SUCCEEDED, epoch=1)
    assert ledger.phase == "FINISHING"
    ledger.resolve("mail", Decision.ACCEPT_LOSS, writer=Party.PERSON)
    assert ledger.phase == "SUCCEEDED"


def test_an_unknown_condemned_call_is_asked_about_while_the_workflow_runs(ledger: Ledger) -> None:
    ledger.start()
    ledger.savepoint("begun")
    ledger.started("probed", PROBED)
    ledger.ended("probed", StepStatus.UNKNOWN)
    ledger.undo_to("begun")
    ledger.wait(1_500)
    assert [p.step_id for p in ledger.probes()] == ["probed"]
    ledger.resolve("probed", Decision.ABSENT, "p1")
    assert not ledger.workflow.is_unwinding


def test_a_claim_is_not_made_false_by_a_condemned_call_that_proved_absent(ledger: Ledger) -> None:
    ledger.start()
    ledger.savepoint("begun")
    ledger.started("probed", PROBED)
    ledger.ended("probed", StepStatus.UNKNOWN)
    ledger.undo_to("begun")
    ledger.resolve("probed", Decision.ABSENT, "p1")
    ledger.said(WorkflowStatus.SUCCEEDED, epoch=1)
    assert ledger.phase == "SUCCEEDED"


def test_an_effect_of_an_ended_epoch_that_lands_after_success_is_undone_and_the_success_stands(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("paid")
    ledger.undone("book")
    ledger.said(WorkflowStatus.SUCCEEDED, epoch=1)
    ledger.did("straggler", BOOK)
    assert ledger.phase == "SUCCEEDED"
    ledger.crash()
    ledger.undo("straggler", UndoStatus.STARTED)
    ledger.wait(LEASE_MS * 3, until=lambda: ledger.step("straggler").undo.attempt == 1)  # type: ignore[union-attr]
    ledger.undone("straggler", attempt=1)
    assert not ledger.workflow.is_unwinding
    assert ledger.phase == "SUCCEEDED"


def test_an_agent_that_dies_while_its_plan_runs_is_found_and_the_whole_is_undone(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("paid")
    ledger.wait(LEASE_MS * 3, until=lambda: ledger.phase == "TURNED")
    ledger.undone("book")
    ledger.undone("charge")
    assert ledger.phase == "COMPENSATED"


def test_the_agent_has_a_whole_lease_from_its_turn(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    at = ledger.undo_to("paid", writer=Party.PERSON)
    assert ledger.workflow.header.armed_offset == at


def test_a_finished_workflow_can_be_contained_back_to_a_savepoint(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.undo_to("paid", writer=Party.PERSON)
    assert ledger.phase == "TURNED"
    ledger.undone("book")
    assert ledger.phase == "COMPENSATED"
    assert ledger.step("charge").undo is None
    ledger.said(WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON)  # and then wholly
    ledger.undone("charge")
    assert ledger.phase == "COMPENSATED"


def test_a_crash_at_any_point_of_a_savepoint_changes_nothing() -> None:
    facts = Ledger()
    paid_then_booked(facts)
    facts.undo_to("paid")
    facts.undo("book", UndoStatus.STARTED)
    facts.undo("book", UndoStatus.UNDONE)
    facts.did("book-again", BOOK, epoch=1)
    facts.savepoint("later", epoch=1)
    straight = (facts.workflow.header, facts.workflow.steps)
    for end in range(1, len(facts.entries)):
        again = Ledger()
        for entry in facts.entries[:end]:
            again.entries.append(entry)
            again.partition.fold(entry)
        again.crash()
        for entry in facts.entries[end:]:
            again.entries.append(entry)
            again.partition.fold(entry)
        assert (again.workflow.header, again.workflow.steps) == straight


def test_turns_are_bounded_and_the_last_is_of_the_whole(ledger: Ledger) -> None:
    ledger.start()
    epoch = 0
    while ledger.phase == "RUNNING":
        ledger.savepoint("try", epoch=epoch)
        ledger.undo_to("try", epoch=epoch)
        epoch += 1
        assert epoch < 100
    assert len(ledger.workflow.header.turns) == 1


def test_a_header_written_before_turns_were_kept_condemns_all() -> None:
    old = Header("w", 3, 1, Phase.TURNED, 1, turned_at_ms=9, turned_reason="the agent failed")
    data = encode_header(old)
    assert decode_header(data).turns == (Turn(0, -1, 9, "the agent failed"),)
    assert decode_header(encode_header(Header("w", 3, 1, Phase.RUNNING))).turns == ()


# --- what the agent is told -------------------------------------------------------------------------------------------


def test_the_echo_says_when_the_plan_of_a_savepoint_is_closed_and_what_became_of_each_step(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("paid")
    first = ledger.of(WorkflowEcho)[-1]
    assert (first.epoch, first.open_undos, first.dead_undos, first.savepoint) == (1, 1, 0, "paid")
    ledger.undone("book")
    last = ledger.of(WorkflowEcho)[-1]
    assert (last.open_undos, last.dead_undos) == (0, 0)
    assert [(s.tool_name, s.fate, s.is_open) for s in last.steps] == [("book", "undone", False)]
    assert "- book: undone" in last.story
    assert "charge" not in last.story


def test_the_echo_says_what_waits_for_a_person(ledger: Ledger) -> None:
    ledger.start()
    ledger.savepoint("begun")
    ledger.did("mail", contract_of("mail", effect=Effect.IRREVERSIBLE, undo=None))
    ledger.undo_to("begun")
    last = ledger.of(WorkflowEcho)[-1]
    assert (last.open_undos, last.dead_undos) == (0, 1)
    assert last.steps[0].is_open
    assert "NOT undone: a person must decide" in last.story


def test_the_echo_names_what_each_turn_condemned(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.undo_to("paid")
    ledger.start(on_existing="resume")
    (turn,) = ledger.of(WorkflowEcho)[-1].turns
    assert (turn.epoch, turn.offset) == (0, ledger.workflow.header.savepoints[0].offset)


def test_the_story_tells_only_what_the_last_turn_condemned(ledger: Ledger) -> None:
    ledger.start()
    ledger.savepoint("a")
    ledger.did("charge", CHARGE)
    ledger.savepoint("b")
    ledger.did("book", BOOK)
    ledger.undo_to("b")
    ledger.undone("book")
    ledger.undo_to("a", epoch=1)
    assert [s.tool_name for s in ledger.of(WorkflowEcho)[-1].steps] == ["charge"]


def test_progress_of_a_whole_turn_costs_no_echoes(ledger: Ledger) -> None:
    paid_then_booked(ledger)
    ledger.said(WorkflowStatus.FAILED)
    ledger.undone("book")
    ledger.undone("charge")
    assert ledger.echoes() == ["RUNNING", "TURNED", "COMPENSATED"]
