"""A remote that answers "accepted, later" (202): UNKNOWN with somebody to ask, for the call and for the undo (C23)."""

from __future__ import annotations

import dataclasses

import pytest
from tests.core.flows import TERMS, World, call
from tests.core.ledger import Ledger, contract_of
from tests.core.stage import Stage, entry, resend, run_of

from amends.compensators.decide import decide
from amends.compensators.effects import CallForward, CallUndo, IsStillThere, LedgerFact, Succeeded, Uncertain
from amends.compensators.invocation import Invocation, invoke
from amends.compensators.ownership import Owned, Released, standing_of_undo
from amends.compensators.verdicts import undo_answer
from amends.processors.state import Undo
from amends.producers.effects import Returned
from amends.producers.flow import call_flow
from amends.schemas.commands import UndoCommand
from amends.schemas.contract import Contract, Idempotency
from amends.schemas.facts import (
    ACCEPTED,
    Decision,
    Failure,
    StepStatus,
    UndoEvent,
    UndoStatus,
    WorkflowStatus,
)
from amends.tools import Accepted, ContractError, HandlerRegistry, Role, RunningStep, compensable, current_step
from amends.tools.resolve import is_accepted
from amends.tools.step import Step

TAKEN = Failure(ACCEPTED, "the remote took it and does it later")
DONE_WITHIN_MS = 60_000
PENDING = "output.status == 'pending'"


def contract(*, undo: Idempotency = Idempotency.KEY, **given: bool) -> Contract:
    made = contract_of("t", undo=undo, **given)  # type: ignore[arg-type]
    assert made.undo is not None
    return dataclasses.replace(
        made,
        call=dataclasses.replace(made.call, accepted_ms=DONE_WITHIN_MS),
        undo=dataclasses.replace(made.undo, accepted_ms=DONE_WITHIN_MS, backoff_cap_ms=5_000),
        accepted_when=PENDING,
    )


def taken(given: Contract, *, finishing: bool = False) -> Ledger:
    ledger = Ledger()
    ledger.start()
    ledger.started("t", given)
    ledger.ended("t", StepStatus.UNKNOWN, error=TAKEN, output_payload=b'{"status":"pending","id":"job_1"}')
    ledger.said(WorkflowStatus.SUCCEEDED if finishing else WorkflowStatus.FAILED)
    return ledger


# --- the call -------------------------------------------------------------------------------------------------------


def test_what_a_remote_still_has_in_hand_holds_the_undo_though_another_send_is_known_to_have_happened() -> None:
    """A repeat that does nothing while the effect is there would do it again behind the undo."""
    natural = dataclasses.replace(
        contract(), call=dataclasses.replace(contract().call, idempotency=Idempotency.NATURAL)
    )
    ledger = Ledger()
    ledger.start()
    for attempt in ("p1", "p2"):
        ledger.started("t", natural, attempt=attempt)
        ledger.ended("t", StepStatus.UNKNOWN, attempt=attempt, error=TAKEN)
    ledger.said(WorkflowStatus.FAILED)
    ledger.resolve("t", Decision.PRESENT, "p1")
    ledger.wait(DONE_WITHIN_MS // 2)
    assert ledger.of(UndoCommand) == []
    ledger.resolve("t", Decision.PRESENT, "p2")
    ledger.wait(1_000)
    assert len(ledger.of(UndoCommand)) == 1


@pytest.mark.parametrize("call", list(Idempotency))
@pytest.mark.parametrize("lost", ["its connection", "its process"])
def test_a_call_whose_answer_was_lost_may_have_been_taken(call: Idempotency, lost: str) -> None:
    """Seen by the simulation: a remote that does later what it takes did, behind the undo, what nobody knew that it had
    taken. Where it takes a key nobody waits: the same call, sent again, brings its answer."""
    given = contract(undo=Idempotency.NATURAL)
    given = dataclasses.replace(given, call=dataclasses.replace(given.call, idempotency=call, lease_ms=5_000))
    ledger = Ledger()
    ledger.start(lease_ms=600_000)
    for attempt in ("p1", "p2"):
        ledger.started("t", given, attempt=attempt)
    if lost == "its connection":
        ledger.ended("t", StepStatus.UNKNOWN)
    ledger.ended("t", StepStatus.SUCCEEDED, attempt="p2")
    ledger.wait(5_000)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(DONE_WITHIN_MS - 10_000, step_ms=1_000)
    assert bool(ledger.commanded()) is (call is Idempotency.KEY)
    ledger.resolve("t", Decision.PRESENT, "p1")
    ledger.wait(1_000)
    assert ledger.commanded()[0] == [("t", 0, 0)]


@pytest.mark.parametrize("said", ["declared", "told"])
def test_a_call_that_was_only_taken_is_unknown_and_its_agent_gets_the_answer(said: str) -> None:
    answer = {"id": "ch_1", "status": "pending"}
    body = Returned(answer) if said == "declared" else Returned(answer, accepted="job 7 of the remote")
    world = World(body=body)
    made = call(accepted_when=PENDING if said == "declared" else "")
    result = world.drive(call_flow(made, TERMS))
    assert isinstance(result, Returned)
    assert result.value == answer
    outcome = world.steps()[-1]
    assert outcome.status is StepStatus.UNKNOWN
    assert outcome.error is not None
    assert outcome.error.type == ACCEPTED
    assert outcome.output_payload == b'{"id":"ch_1","status":"pending"}'
    assert outcome.undo_arguments == b'{"charge":"ch_1"}'


def test_a_call_that_was_done_at_once_is_a_success() -> None:
    world = World(body=Returned({"id": "ch_1", "status": "done"}))
    world.drive(call_flow(call(accepted_when=PENDING), TERMS))
    assert world.steps()[-1].status is StepStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("expression", "output", "accepted"),
    [
        ("", {"status": "pending"}, False),
        (PENDING, {"status": "pending"}, True),
        (PENDING, {"status": "done"}, False),
        (PENDING, None, False),
        (PENDING, [1], False),
        ("output.job", {"job": ""}, False),
        ("output.job", {"job": 0}, True),
        ("contains(output.text, 'x')", {"text": None}, True),  # nobody can tell from it: never rounded
    ],
)
def test_what_an_answer_says_by_its_declaration(expression: str, output: object, accepted: bool) -> None:
    given = dataclasses.replace(contract(), accepted_when=expression)
    assert is_accepted(given, {}, output) is accepted


@pytest.mark.parametrize("wrong", ["output.[", "captured.x", "status == 'pending'", "input.nothing"])
def test_a_declaration_that_can_never_tell_is_refused(wrong: str) -> None:
    @compensable("t.wrong", accepted_when=wrong)
    def tool(customer: str) -> None: ...

    with pytest.raises(ContractError, match="accepted_when"):
        _ = tool.tool.contract


def test_a_taken_call_is_polled_until_the_remote_may_take_no_longer() -> None:
    ledger = taken(contract(probe=True), finishing=True)
    for number in range(6):  # three times the count of a probe whose call is merely unknown
        ledger.wait(5_000, until=lambda number=number: len(ledger.probes()) > number)  # type: ignore[misc]
        probe = ledger.probes()[-1]
        assert (probe.number, probe.outcome_offset) == (number, 2)
        ledger.resolve("t", Decision.UNKNOWN, "p1", probe_number=number)
    assert ledger.phase == "FINISHING"
    ledger.resolve("t", Decision.PRESENT, "p1", output_payload=b'{"id":"ch_1"}')
    assert ledger.phase == "SUCCEEDED"


@pytest.mark.parametrize("probe", [False, True])
def test_a_taken_call_of_which_nothing_is_heard_is_an_incident_in_bounded_time(probe: bool) -> None:
    ledger = taken(contract(probe=probe))
    ledger.wait(DONE_WITHIN_MS - 2_000, step_ms=1_000)
    assert ledger.incidents() == {}
    assert ledger.commanded() == []
    for number in range(2 if probe else 0):
        ledger.resolve("t", Decision.UNKNOWN, "p1", probe_number=number)
    ledger.wait(10_000, step_ms=1_000)
    assert ledger.incidents() == {"unknown": "OPEN"}


def test_a_taken_call_is_not_undone_as_it_is_before_it_may_have_happened() -> None:
    ledger = taken(contract(undo=Idempotency.NATURAL))
    ledger.wait(DONE_WITHIN_MS - 2_000, step_ms=1_000)
    assert ledger.commanded() == []
    ledger.wait(10_000, step_ms=1_000)
    assert ledger.commanded()[0] == [("t", 0, 0)]


def test_a_taken_call_that_came_to_pass_is_undone_without_waiting_on() -> None:
    ledger = taken(contract())
    ledger.resolve("t", Decision.PRESENT, "p1", output_payload=b'{"id":"ch_1"}')
    ledger.wait(2_000)
    assert ledger.commanded() == [[("t", 0, 0)]]


def test_what_was_taken_survives_a_new_owner_of_the_partition() -> None:
    ledger = taken(contract())
    ledger.crash()
    assert ledger.step("t").attempts[0].accepted
    ledger.wait(20_000, step_ms=1_000)
    assert ledger.incidents() == {}


def test_a_resent_call_that_is_only_taken_is_unknown() -> None:
    @compensable("t.resent", idempotency="natural", accepted_when=PENDING)
    def tool(how: str) -> dict[str, str]:
        if how == "told":
            current_step().accepted("job 8")
        return {"status": "pending" if how == "declared" else "done"}

    registry = HandlerRegistry()
    registry.add(tool)
    for how, kind in (("declared", Uncertain), ("told", Uncertain), ("done", Succeeded)):
        step = Step("w", "s", "t.resent", "", "k", {"how": how})
        running = RunningStep("w", "s", "a", "k", "t.resent")
        asked = Invocation(
            Role.FORWARD, "t.resent", running, {"how": how}, step, tool.tool.contract_bytes, 2**60, 2**60
        )
        answer = invoke(registry, asked)
        assert isinstance(answer, kind)
        if isinstance(answer, Uncertain):
            assert answer.error.type == ACCEPTED


# --- the undo -------------------------------------------------------------------------------------------------------


def condemned(given: Contract) -> Ledger:
    ledger = Ledger()
    ledger.start()
    ledger.did("t", given)
    ledger.said(WorkflowStatus.FAILED)
    return ledger


def undo(ledger: Ledger, status: UndoStatus, attempt: int, error: Failure | None = None, owner: str = "o") -> None:
    ledger.append(UndoEvent("w", "t", 0, attempt, status, owner, error=error))


def undo_of(ledger: Ledger) -> Undo:
    found = ledger.step("t").undo
    assert found is not None
    return found


def accepted_undo(given: Contract) -> Ledger:
    ledger = condemned(given)
    undo(ledger, UndoStatus.STARTED, 0)
    undo(ledger, UndoStatus.UNKNOWN, 0, TAKEN)
    return ledger


def test_an_undo_that_was_taken_is_polled_by_verify_and_spends_nothing() -> None:
    ledger = accepted_undo(contract(undo=Idempotency.NEITHER, verify=True))
    for attempt in range(1, 8):  # the budget is three
        ledger.wait(6_000, until=lambda attempt=attempt: len(ledger.commanded()) > attempt)  # type: ignore[misc]
        assert ledger.commanded()[-1] == [("t", 0, attempt)]
        undo(ledger, UndoStatus.STARTED, attempt)
        undo(ledger, UndoStatus.UNKNOWN, attempt, Failure("amends.NotYet", "still there"))
    assert undo_of(ledger).spent == 0
    ledger.wait(6_000, until=lambda: len(ledger.commanded()) > 8)
    undo(ledger, UndoStatus.STARTED, 8)
    undo(ledger, UndoStatus.UNDONE, 8)
    assert ledger.phase == "COMPENSATED"


def test_after_its_time_an_undo_that_was_taken_is_an_attempt_like_any_other() -> None:
    ledger = accepted_undo(contract(undo=Idempotency.NEITHER, verify=True))
    ledger.wait(DONE_WITHIN_MS + 5_000, step_ms=1_000)
    commands = ledger.of(UndoCommand)
    assert commands[-1].entries[0].verify_first
    assert not commands[-1].entries[0].polls
    assert commands[1].entries[0].polls


def test_an_undo_that_is_taken_anew_has_a_time_of_its_own_and_the_budget_bounds_how_often() -> None:
    """Seen by the simulation: it was sent again and again while the remote was at it, and undone three times."""
    ledger = accepted_undo(contract(undo=Idempotency.NEITHER, verify=True))
    for spent in range(1, 4):  # the budget is three
        ledger.wait(DONE_WITHIN_MS + 5_000, step_ms=1_000)
        attempt = ledger.commanded()[-1][0][2]
        undo(ledger, UndoStatus.STARTED, attempt)
        undo(ledger, UndoStatus.UNKNOWN, attempt, TAKEN)
        ledger.wait(6_000, until=lambda attempt=attempt: ledger.commanded()[-1][0][2] > attempt)  # type: ignore[misc]
        assert ledger.of(UndoCommand)[-1].entries[0].polls
        assert undo_of(ledger).spent == spent
    ledger.wait(DONE_WITHIN_MS + 5_000, step_ms=1_000)
    attempt = ledger.commanded()[-1][0][2]
    undo(ledger, UndoStatus.STARTED, attempt)
    undo(ledger, UndoStatus.UNKNOWN, attempt)
    assert ledger.incidents() == {"undo_failed": "OPEN"}


def test_a_remote_that_takes_an_undo_for_ever_ends_in_an_incident() -> None:
    ledger = accepted_undo(contract(undo=Idempotency.NEITHER, verify=True))
    for _ in range(4):  # the budget is three
        ledger.wait(DONE_WITHIN_MS + 5_000, step_ms=1_000)
        attempt = ledger.commanded()[-1][0][2]
        undo(ledger, UndoStatus.STARTED, attempt)
        undo(ledger, UndoStatus.UNKNOWN, attempt, TAKEN)
        ledger.wait(6_000, step_ms=1_000)
    assert ledger.incidents() == {"undo_failed": "OPEN"}


def test_an_undo_that_was_taken_and_that_nobody_can_ask_about_waits_for_word_of_it() -> None:
    ledger = accepted_undo(contract(undo=Idempotency.NEITHER))
    ledger.wait(DONE_WITHIN_MS - 2_000, step_ms=1_000)
    assert len(ledger.commanded()) == 1
    assert ledger.incidents() == {}
    undo(ledger, UndoStatus.UNDONE, 0, owner="callback msg_1")
    assert ledger.phase == "COMPENSATED"


def test_word_that_never_comes_is_an_incident_and_nothing_is_sent_again() -> None:
    ledger = accepted_undo(contract(undo=Idempotency.NEITHER))
    ledger.wait(DONE_WITHIN_MS + 10_000, step_ms=1_000)
    assert len(ledger.commanded()) == 1
    assert ledger.incidents() == {"undo_failed": "OPEN"}


def test_a_remote_that_says_it_will_not_do_what_it_took_is_asked_anew() -> None:
    ledger = accepted_undo(contract(undo=Idempotency.NEITHER))
    ledger.wait(3_000)
    undo(ledger, UndoStatus.FAILED, 0, Failure("Remote", "declined"), owner="callback msg_1")
    ledger.wait(3_000)
    assert ledger.commanded()[-1] == [("t", 0, 1)]
    granted = ledger.of(UndoCommand)[-1].entries[0]
    assert not granted.polls
    assert not granted.verify_first


def test_a_late_failure_of_an_earlier_attempt_says_nothing_of_the_one_that_was_taken() -> None:
    ledger = condemned(contract(undo=Idempotency.NEITHER))
    undo(ledger, UndoStatus.STARTED, 0)
    undo(ledger, UndoStatus.FAILED, 0, Failure("X", "no"))
    undo(ledger, UndoStatus.STARTED, 1)
    undo(ledger, UndoStatus.UNKNOWN, 1, TAKEN)
    before = ledger.step("t").undo
    undo(ledger, UndoStatus.FAILED, 0, Failure("X", "no"))
    assert ledger.step("t").undo == before


@pytest.mark.parametrize("kind", list(Idempotency))
def test_each_attempt_that_a_remote_of_no_key_takes_has_a_time_of_its_own(kind: Idempotency) -> None:
    ledger = condemned(contract(undo=kind, verify=True))
    undo(ledger, UndoStatus.STARTED, 0)
    ledger.wait(40_000, until=lambda: undo_of(ledger).attempt == 1)
    undo(ledger, UndoStatus.STARTED, 1)
    undo(ledger, UndoStatus.UNKNOWN, 0, TAKEN)  # and nobody looked: the next was sent
    before = undo_of(ledger).accepted_until_ms
    ledger.wait(5_000)
    undo(ledger, UndoStatus.UNKNOWN, 1, TAKEN)
    until_ms = undo_of(ledger).accepted_until_ms
    assert (until_ms > before) is (kind is Idempotency.NEITHER)  # the others know it for the one that they have


def test_what_is_heard_to_be_taken_when_its_lease_has_run_out_is_polled_and_not_asked_for_again() -> None:
    """Seen by the simulation (seed 1053965): the remote did the first, and then the second."""
    ledger = condemned(contract(undo=Idempotency.NEITHER, verify=True))
    undo(ledger, UndoStatus.STARTED, 0)
    ledger.wait(40_000, until=lambda: undo_of(ledger).attempt == 1)
    undo(ledger, UndoStatus.UNKNOWN, 0, TAKEN)
    ledger.wait(3_000)
    granted = ledger.of(UndoCommand)[-1].entries[0]
    assert (granted.attempt, granted.verify_first, granted.polls) == (1, True, True)
    before = ledger.step("t").undo
    undo(ledger, UndoStatus.UNKNOWN, 0, TAKEN)  # repeated
    assert ledger.step("t").undo == before


def test_an_undo_is_released_where_an_attempt_before_it_was_taken_meanwhile() -> None:
    meanwhile = UndoEvent("w", "s1", 0, 0, UndoStatus.UNKNOWN, "o", error=TAKEN)
    for polls, kind in ((False, Released), (True, Owned)):
        given = dataclasses.replace(entry("s1", verify="t", verify_first=True, polls=polls), attempt=1)
        command = run_of(given)
        facts = [LedgerFact(command.as_of + 1, meanwhile)]
        assert isinstance(standing_of_undo(command, given, "me", command.as_of + 2, facts), kind)


def test_what_is_heard_to_be_taken_behind_the_word_that_it_came_to_nothing_is_waited_for_no_more() -> None:
    """Seen by the simulation (seed 1326485): the next attempt was to wait for what was over, and was asked to ask first
    about nothing, so it called; its own time was the old one's, and behind that it was called for once more."""
    ledger = condemned(contract(undo=Idempotency.NEITHER, verify=True))
    undo(ledger, UndoStatus.STARTED, 0)
    undo(ledger, UndoStatus.FAILED, 0, Failure("Remote", "dropped"))  # by the callback, in its owner's name
    before = ledger.step("t").undo
    undo(ledger, UndoStatus.UNKNOWN, 0, TAKEN)  # the owner's own word
    assert ledger.step("t").undo == before
    ledger.wait(3_000)
    granted = ledger.of(UndoCommand)[-1].entries[0]
    assert (granted.attempt, granted.verify_first, granted.polls) == (1, False, False)
    undo(ledger, UndoStatus.STARTED, 1)
    undo(ledger, UndoStatus.UNKNOWN, 1, TAKEN)
    ledger.wait(DONE_WITHIN_MS - 5_000, step_ms=1_000)
    assert ledger.of(UndoCommand)[-1].entries[0].polls


def test_a_repeat_of_the_word_that_it_came_to_nothing_spends_nothing() -> None:
    ledger = condemned(contract(undo=Idempotency.NEITHER))
    undo(ledger, UndoStatus.STARTED, 0)
    for _ in range(2):
        undo(ledger, UndoStatus.FAILED, 0, Failure("Remote", "dropped"))
        assert (undo_of(ledger).attempt, undo_of(ledger).spent) == (1, 1)


def test_a_poll_that_was_under_way_when_the_remote_gave_up_does_not_begin_the_wait_anew() -> None:
    ledger = accepted_undo(contract(undo=Idempotency.NEITHER, verify=True))
    ledger.wait(3_000)
    undo(ledger, UndoStatus.FAILED, 0, Failure("Remote", "declined"), owner="callback msg_1")
    undo(ledger, UndoStatus.STARTED, 1)
    undo(ledger, UndoStatus.UNKNOWN, 1, Failure("amends.NotYet", "still there"))
    ledger.wait(5_000)
    granted = ledger.of(UndoCommand)[-1].entries[0]
    assert (granted.attempt, granted.verify_first, granted.polls) == (2, True, False)


def test_a_person_may_rule_while_a_remote_is_still_at_it() -> None:
    ledger = accepted_undo(contract(undo=Idempotency.NEITHER))
    ledger.resolve("t", Decision.ACCEPT_LOSS)
    assert ledger.phase == "CLOSED_WITH_LOSS"


@pytest.mark.parametrize("first", [True, False])
def test_while_a_remote_is_at_it_still_there_is_not_yet_and_the_handler_does_not_run(first: bool) -> None:
    given = entry("s1", verify="t", verify_first=first, polls=True)
    stage = Stage(verifies=[IsStillThere("refund is pending")])
    stage.play(decide(run_of(given), "me", "here"))
    assert not any(isinstance(effect, CallUndo) for effect in stage.effects)
    outcome = stage.written()[-1]
    assert isinstance(outcome, UndoEvent)
    assert outcome.status is UndoStatus.UNKNOWN
    assert outcome.error is not None
    assert outcome.error.type == "amends.NotYet"
    assert "refund is pending" in outcome.evidence


def test_an_undo_that_compares_is_polled_by_the_comparison() -> None:
    given = entry("s1", verify_first=True, polls=True, compares=True)
    stage = Stage()
    stage.play(decide(run_of(given), "me", "here"))
    assert not any(isinstance(effect, CallUndo) for effect in stage.effects)
    outcome = stage.written()[-1]
    assert isinstance(outcome, UndoEvent)
    assert outcome.status is UndoStatus.UNKNOWN


def test_the_answer_accepted_of_a_handler_is_unknown_by_the_name_of_accepted() -> None:
    answer = undo_answer(Accepted("202, refund re_1 is pending"))
    assert answer == Uncertain(Failure(ACCEPTED, "202, refund re_1 is pending"))


# --- keys that are forgotten ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("now_ms", "called"), [(999, True), (1_000, False)])
def test_an_undo_in_doubt_that_comes_after_its_key_is_forgotten_is_not_sent(now_ms: int, called: bool) -> None:
    given = entry("s1", not_after_ms=1_000)
    stage = Stage(now_ms=now_ms)
    stage.play(decide(run_of(given), "me", "here"))
    assert any(isinstance(effect, CallUndo) for effect in stage.effects) is called
    outcome = stage.written()[-1]
    assert isinstance(outcome, UndoEvent)
    assert outcome.status is (UndoStatus.UNDONE if called else UndoStatus.RELEASED)


@pytest.mark.parametrize(("now_ms", "called"), [(999, True), (1_000, False)])
def test_a_call_is_not_sent_again_after_its_key_is_forgotten(now_ms: int, called: bool) -> None:
    stage = Stage(now_ms=now_ms)
    stage.play(decide(dataclasses.replace(resend(), not_after_ms=1_000), "me", "here"))
    assert any(isinstance(effect, CallForward) for effect in stage.effects) is called


def test_a_command_says_until_when_what_is_sent_arrives_while_the_remote_remembers() -> None:
    """Seen by the simulation (seed 6045230): what was sent in time arrived when the key was forgotten: undone twice."""
    given = contract()
    assert given.undo is not None
    terms = dataclasses.replace(given.undo, key_ttl_ms=50_000, lease_ms=10_000)
    given = dataclasses.replace(given, undo=terms)
    ledger = condemned(given)
    assert ledger.of(UndoCommand)[-1].entries[0].not_after_ms is None  # its first use
    opened_at_ms = ledger.now_ms
    undo(ledger, UndoStatus.STARTED, 0)
    undo(ledger, UndoStatus.UNKNOWN, 0, Failure("X", "timeout"))
    ledger.wait(5_000)
    assert ledger.of(UndoCommand)[-1].entries[0].not_after_ms == opened_at_ms + 40_000
