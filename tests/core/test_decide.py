"""What a compensator does with a command: the order of things, and every way in which it can go."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from tests.core.stage import AS_OF, LEASE_MS, Stage, entry, probe, resend, run_of

from amends.compensators.decide import decide
from amends.compensators.effects import (
    AskProbe,
    AskVerify,
    AwaitSent,
    CallAnswer,
    CallForward,
    CallUndo,
    Claim,
    Deferred,
    IsStillThere,
    IsUndone,
    NobodyKnows,
    NotBegun,
    NotDeployed,
    ProbeAnswer,
    ReadBack,
    ReadClock,
    Refused,
    Renew,
    Send,
    Settle,
    ShowsBefore,
    ShowsOurs,
    Succeeded,
    Uncertain,
    Unwritten,
    VerifyAnswer,
    Wait,
    Write,
)
from amends.compensators.registry import Busy, ClaimRequest, Closing, Done, Ended, State
from amends.schemas.commands import UndoCommand
from amends.schemas.facts import (
    Decision,
    Fact,
    Failure,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    UndoEvent,
    UndoStatus,
)

ERROR = Failure("RuntimeError", "no")
_ANSWERS: list[tuple[CallAnswer, UndoStatus]] = [
    (Succeeded(), UndoStatus.UNDONE),
    (Succeeded(nothing=True), UndoStatus.NOTHING_TO_UNDO),
    (Refused(ERROR), UndoStatus.FAILED),
    (Refused(ERROR, retryable=True), UndoStatus.FAILED),
    (Uncertain(ERROR), UndoStatus.UNKNOWN),
    (NotBegun("full"), UndoStatus.RELEASED),
    (NotDeployed(ERROR), UndoStatus.FAILED),
    (Deferred("breaker"), UndoStatus.DEFERRED),
]
SETTLED = {
    UndoStatus.UNDONE: State.DONE,
    UndoStatus.NOTHING_TO_UNDO: State.DONE,
    UndoStatus.UNKNOWN: State.IN_DOUBT,
    UndoStatus.FAILED: State.FAILED,
    UndoStatus.RELEASED: State.FAILED,
    UndoStatus.DEFERRED: State.FAILED,
}

BEFORE: dict[str, list[Fact | None]] = {
    "owned": [],
    "lost": [UndoEvent("w", "s1", 0, 1, UndoStatus.STARTED, "other")],
    "closed": [UndoEvent("w", "s1", 0, 1, UndoStatus.UNDONE, "other")],
    "released": [StepEvent("w", "s9", "a", 0, StepStatus.STARTED, "t")],
    "unreadable": [None],
}


def last_undo(stage: Stage) -> UndoEvent:
    fact = stage.written()[-1]
    assert isinstance(fact, UndoEvent)
    return fact


def test_an_undo_is_claimed_started_read_back_timed_done_recorded_settled_in_this_order() -> None:
    stage = Stage()
    report = stage.play(decide(run_of(entry()), "me", "c1"))
    kinds = [type(effect) for effect in stage.effects]
    assert kinds == [Claim, ReadClock, Write, ReadBack, ReadClock, CallUndo, Send, AwaitSent, Settle]
    assert stage.undo_facts() == ["s1 STARTED", "s1 UNDONE"]
    assert stage.effects[3] == ReadBack(AS_OF + 1, AS_OF + 1)
    assert report is not None
    assert report.ends == (("tool.s1", "UNDONE"),)


@pytest.mark.parametrize(("answer", "status"), _ANSWERS, ids=lambda value: str(value)[:24])
def test_each_answer_of_a_handler_is_one_end_of_the_attempt(answer: CallAnswer, status: UndoStatus) -> None:
    stage = Stage(calls=lambda step: answer)
    stage.play(decide(run_of(entry()), "me", "c1"))
    fact = last_undo(stage)
    assert fact.status is status
    if isinstance(answer, Refused):
        assert (fact.retryable, fact.error) == (answer.retryable, ERROR)
    if isinstance(answer, NotDeployed):
        assert fact.retryable, "a deployment under way may bring the handler: the budget decides"
    settle = stage.effects[-1]
    assert isinstance(settle, Settle)
    assert settle.state is SETTLED[status]


@pytest.mark.parametrize(
    ("registry", "before", "clock_ms", "answer", "verify_first"),
    list(
        product(
            ("absent", "busy", "ended", "done", "below", "lease over"),
            BEFORE,
            (0, LEASE_MS // 2 - 1, LEASE_MS // 2),
            (Succeeded(), Uncertain(ERROR)),
            (None, IsUndone(), IsStillThere(), NobodyKnows()),
        )
    ),
)
def test_the_handler_runs_only_for_a_claim_that_goes_an_owned_attempt_and_a_young_lease(
    registry: str, before: str, clock_ms: int, answer: CallAnswer, verify_first: VerifyAnswer | None
) -> None:
    undo = entry(verify=None if verify_first is None else "v", verify_first=verify_first is not None)
    stage = Stage(before=BEFORE[before], calls=lambda step: answer, ms_per_clock=clock_ms)
    stage.verifies = [verify_first or IsUndone(), IsUndone()]
    _prepare(stage, registry)
    stage.play(decide(run_of(undo), "me", "c1"))

    goes = registry != "busy"  # what the registry says of ends may be another ledger's: the read back decides
    young = 2 * clock_ms < LEASE_MS and (not isinstance(verify_first, IsStillThere) or 4 * clock_ms < LEASE_MS)
    asks = goes and before == "owned" and 2 * clock_ms < LEASE_MS
    runs = asks and young and (verify_first is None or isinstance(verify_first, IsStillThere))
    assert bool(stage.called()) == runs
    if not goes:
        assert stage.undo_facts() == []
    elif before in ("lost", "closed", "unreadable"):
        assert stage.undo_facts() == ["s1 STARTED"], "whoever lost writes nothing more"
    elif before == "released" or not asks:
        assert stage.undo_facts() == ["s1 STARTED", "s1 RELEASED"]
    else:
        assert len(stage.undo_facts()) == 2, "an owned attempt has one end"
    for call in (effect for effect in stage.effects if isinstance(effect, CallUndo)):
        assert 0 < call.begin_within_ms <= LEASE_MS // 2
        assert call.end_within_ms - call.begin_within_ms == LEASE_MS // 2


def _prepare(stage: Stage, registry: str) -> None:
    attempt = {"below": 0, "ended": 2}.get(registry, 1)
    if registry == "absent":
        return
    lease_ms = 0 if registry == "lease over" else LEASE_MS
    (go,) = stage.registry.claim_now((ClaimRequest("undo-s1-0", attempt, "other", lease_ms),))
    assert not isinstance(go, Busy | Ended | Done)
    if registry == "done":
        closing = Closing(1, UndoStatus.UNDONE, "other", evidence="re_1")
        stage.registry.settle_now("undo-s1-0", attempt, go.fence, State.DONE, closing)


def test_a_registry_that_remembers_another_ledger_costs_a_start_and_never_an_undo() -> None:
    """Found by a newcomer: a Redis kept while the ledger was made anew answered "done", and nothing was undone."""
    for registry in ("done", "ended"):
        stage = Stage()
        _prepare(stage, registry)
        stage.play(decide(run_of(entry()), "me", "c1"))
        assert stage.called() == ["s1"]
        assert stage.undo_facts() == ["s1 STARTED", "s1 UNDONE"]


def test_what_is_done_by_the_ledger_too_is_not_done_again() -> None:
    stage = Stage(before=BEFORE["closed"])
    _prepare(stage, "done")
    stage.play(decide(run_of(entry()), "me", "c1"))
    assert stage.called() == []


# --- verify ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ([IsUndone("gone")], UndoStatus.UNDONE),
        ([NobodyKnows(ERROR)], UndoStatus.UNKNOWN),
        ([IsStillThere(), IsUndone()], UndoStatus.UNDONE),
        ([IsStillThere(), IsStillThere()], UndoStatus.UNKNOWN),
        ([IsStillThere(), NobodyKnows()], UndoStatus.UNKNOWN),
    ],
)
def test_verify_after_the_handler_decides_and_still_there_is_given_time(
    answers: list[VerifyAnswer], status: UndoStatus
) -> None:
    stage = Stage(verifies=list(answers))
    stage.play(decide(run_of(entry(verify="v")), "me", "c1"))
    fact = last_undo(stage)
    assert (fact.status, fact.verified) == (status, status is UndoStatus.UNDONE)
    waits = [effect for effect in stage.effects if isinstance(effect, Wait | Renew)]
    assert bool(waits) == isinstance(answers[0], IsStillThere)
    assert stage.called() == ["s1"]


def test_nothing_to_undo_is_verified_too() -> None:
    stage = Stage(calls=lambda step: Succeeded(nothing=True), verifies=[IsUndone()])
    stage.play(decide(run_of(entry(verify="v")), "me", "c1"))
    assert (last_undo(stage).status, last_undo(stage).verified) == (UndoStatus.NOTHING_TO_UNDO, True)


@pytest.mark.parametrize(
    ("first", "status", "called"),
    [
        (IsUndone(), UndoStatus.UNDONE, False),
        (NobodyKnows(), UndoStatus.UNKNOWN, False),
        (IsStillThere(), UndoStatus.UNDONE, True),
    ],
)
def test_after_an_unknown_attempt_the_handler_runs_only_on_still_there(
    first: VerifyAnswer, status: UndoStatus, called: bool
) -> None:
    stage = Stage(verifies=[first, IsUndone()])
    stage.play(decide(run_of(entry(verify="v", verify_first=True)), "me", "c1"))
    assert bool(stage.called()) == called
    assert (last_undo(stage).status, last_undo(stage).verified) == (status, status is UndoStatus.UNDONE)


def test_a_failed_handler_is_not_verified() -> None:
    stage = Stage(calls=lambda step: Uncertain(ERROR))
    stage.play(decide(run_of(entry(verify="v")), "me", "c1"))
    assert not any(isinstance(effect, AskVerify) for effect in stage.effects)


# --- the ledger out of reach ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("certain", [True, False])
def test_without_an_acknowledged_started_nothing_is_done(certain: bool) -> None:
    stage = Stage(unwritten={1: Unwritten(certain)})
    stage.play(decide(run_of(entry()), "me", "c1"))
    assert stage.called() == []
    assert stage.written() == []


def test_an_outcome_is_written_until_it_is_acknowledged() -> None:
    stage = Stage(unwritten={2: Unwritten(False), 3: Unwritten(True)})
    stage.play(decide(run_of(entry()), "me", "c1"))
    assert stage.undo_facts() == ["s1 STARTED", "s1 UNDONE"]
    assert isinstance(stage.effects[-1], Settle)


@pytest.mark.parametrize("at_once", [False, True])
def test_what_cannot_be_read_back_is_not_used_and_not_released(at_once: bool) -> None:
    stage = Stage(read_back_fails=True)
    stage.play(decide(run_of(entry("s1"), entry("s2"), at_once=at_once), "me", "c1"))
    assert stage.called() == []
    assert set(stage.undo_facts()) <= {"s1 STARTED", "s2 STARTED"}


# --- runs -----------------------------------------------------------------------------------------------------------

RUN = (entry("s1"), entry("s2"), entry("s3"))


@pytest.mark.parametrize("at_once", [False, True])
def test_a_run_undoes_its_members_in_plan_order(at_once: bool) -> None:
    stage = Stage()
    stage.play(decide(run_of(*RUN, at_once=at_once), "me", "c1"))
    assert stage.called() == ["s1", "s2", "s3"]
    assert sum(isinstance(effect, ReadBack) for effect in stage.effects) == (1 if at_once else 3)


def _waits_between_handlers(run: UndoCommand) -> list[int]:
    """Return how many handlers had been called each time that outcomes were waited for."""
    stage = Stage(compares=[ShowsOurs(), ShowsBefore()])
    stage.play(decide(run, "me", "c1"))
    assert stage.called() == ["s1", "s2", "s3"]
    assert [fact for fact in stage.undo_facts() if fact.endswith("UNDONE")] == ["s1 UNDONE", "s2 UNDONE", "s3 UNDONE"]
    assert sum(isinstance(effect, Settle) for effect in stage.effects) == 3
    kinds = [type(effect) for effect in stage.effects if isinstance(effect, CallUndo | AwaitSent)]
    return [kinds[:place].count(CallUndo) for place, kind in enumerate(kinds) if kind is AwaitSent]


def test_a_run_started_at_once_waits_for_its_outcomes_once() -> None:
    assert _waits_between_handlers(run_of(*RUN, at_once=True)) == [3]
    assert _waits_between_handlers(run_of(*RUN)) == [1, 2, 3]


@pytest.mark.parametrize("looks", [{"verify": "v"}, {"compares": True}], ids=["verifies", "compares"])
def test_no_undo_begins_before_the_outcome_stands_of_one_that_would_look_at_the_world_again(
    looks: dict[str, Any],
) -> None:
    first, second, third = RUN
    run = run_of(first, replace(second, **looks), third, at_once=True)
    assert _waits_between_handlers(run) == [2, 3]


def test_of_outcomes_sent_together_those_that_are_not_acknowledged_are_written_again() -> None:
    stage = Stage(unwritten={5: Unwritten(False), 7: Unwritten(True)})
    stage.play(decide(run_of(*RUN, at_once=True), "me", "c1"))
    assert stage.called() == ["s1", "s2", "s3"]
    assert stage.undo_facts()[3:] == ["s1 UNDONE", "s3 UNDONE", "s2 UNDONE"]
    assert sum(isinstance(effect, Settle) for effect in stage.effects) == 3


@pytest.mark.parametrize("answer", [answer for answer, _ in _ANSWERS[2:]])
def test_the_first_that_does_not_close_ends_the_run(answer: CallAnswer) -> None:
    stage = Stage(calls=lambda step: answer if step == "s2" else Succeeded())
    stage.play(decide(run_of(*RUN), "me", "c1"))
    assert stage.called() == ["s1", "s2"]
    assert not any(fact.startswith("s3") for fact in stage.undo_facts())


@pytest.mark.parametrize("answer", [answer for answer, _ in _ANSWERS[2:]])
def test_of_a_run_started_at_once_what_is_owned_and_not_reached_is_released(answer: CallAnswer) -> None:
    stage = Stage(calls=lambda step: answer if step == "s1" else Succeeded())
    stage.play(decide(run_of(*RUN, at_once=True), "me", "c1"))
    assert stage.called() == ["s1"]
    assert stage.undo_facts()[-2:] == ["s2 RELEASED", "s3 RELEASED"]
    settled = [effect.state for effect in stage.effects if isinstance(effect, Settle)]
    assert settled[-2:] == [State.FAILED, State.FAILED]


@pytest.mark.parametrize(("at_once", "closed"), list(product((False, True), repeat=2)))
def test_a_run_goes_past_a_member_it_lost_only_if_that_one_is_closed(at_once: bool, closed: bool) -> None:
    events: list[Fact | None] = [UndoEvent("w", "s1", 0, 1, UndoStatus.STARTED, "other")]
    if closed:
        events.append(UndoEvent("w", "s1", 0, 1, UndoStatus.UNDONE, "other"))
    stage = Stage(before=events)
    stage.play(decide(run_of(*RUN, at_once=at_once), "me", "c1"))
    assert stage.called() == (["s2", "s3"] if closed else [])
    assert "s1 RELEASED" not in stage.undo_facts(), "it is somebody else's"
    if at_once and not closed:
        assert stage.undo_facts()[-2:] == ["s2 RELEASED", "s3 RELEASED"]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_member_that_is_busy_ends_the_run_before_it_and_leaves_the_rest_unclaimed(at_once: bool) -> None:
    stage = Stage()
    stage.registry.claim_now((ClaimRequest("undo-s2-0", 1, "other", LEASE_MS),))
    stage.play(decide(run_of(*RUN, at_once=at_once), "me", "c1"))
    assert stage.called() == ["s1"]
    (go,) = stage.registry.claim_now((ClaimRequest("undo-s3-0", 1, "x", LEASE_MS),))
    assert not isinstance(go, Busy)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_member_that_is_done_is_passed(at_once: bool) -> None:
    stage = Stage(before=BEFORE["closed"])
    _prepare(stage, "done")
    stage.play(decide(run_of(*RUN, at_once=at_once), "me", "c1"))
    assert stage.called() == ["s2", "s3"]


def test_a_slow_member_of_a_run_started_at_once_costs_the_others_their_lease_not_their_safety() -> None:
    stage = Stage(call_takes_ms=LEASE_MS // 2)
    stage.play(decide(run_of(*RUN, at_once=True), "me", "c1"))
    assert stage.called() == ["s1"]
    assert stage.undo_facts()[-2:] == ["s2 RELEASED", "s3 RELEASED"]


def test_an_unwritten_member_of_a_run_ends_it_and_what_was_started_after_it_is_released() -> None:
    stage = Stage(unwritten={2: Unwritten(False)})
    stage.play(decide(run_of(*RUN, at_once=True), "me", "c1"))
    assert stage.called() == ["s1"]
    assert stage.undo_facts() == ["s1 STARTED", "s3 STARTED", "s1 UNDONE", "s3 RELEASED"]


# --- cut off anywhere, delivered again ------------------------------------------------------------------------------


@pytest.mark.parametrize(("at_once", "flush"), list(product((False, True), repeat=2)))
def test_cut_off_after_any_effect_and_delivered_again_no_handler_runs_twice(at_once: bool, flush: bool) -> None:
    command = run_of(*RUN, at_once=at_once)
    whole = Stage()
    whole.play(decide(command, "first", "c1"))
    for cut in range(1, len(whole.effects)):
        stage = Stage()
        stage.play(decide(command, "first", "c1"), cut_after=cut)
        if flush:
            stage.registry.flush()
        for owner in ("second", "third"):
            stage.now_ms += 2 * LEASE_MS
            stage.play(decide(command, owner, "c2"))
        assert len(stage.called()) == len(set(stage.called())), f"cut after {cut}"


def test_two_deliveries_interleaved_in_every_way_run_the_handler_once_with_no_registry_at_all() -> None:
    command = run_of(entry())
    length = 8
    for pattern in product((0, 1), repeat=length):
        stage = Stage()
        both = [decide(command, "a", "c1"), decide(command, "b", "c2")]
        answers: list[object] = [None, None]
        for turn in (*pattern, *(0,) * length, *(1,) * length):
            stage.registry.flush()
            try:
                effect = both[turn].send(answers[turn])
            except StopIteration:
                continue
            stage.effects.append(effect)
            answers[turn] = stage.do(effect)
        assert len(stage.called()) == 1, pattern


# --- probes and re-sends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", [Decision.PRESENT, Decision.ABSENT, Decision.UNKNOWN])
def test_a_probe_claims_nothing_and_echoes_the_attempts_it_speaks_for(decision: Decision) -> None:
    stage = Stage(probes=ProbeAnswer(decision, output_payload=b"x"), unwritten={1: Unwritten(False)})
    stage.play(decide(probe(), "me", "c1"))
    assert [type(effect) for effect in stage.effects] == [AskProbe, Write, Wait, Write]
    (fact,) = stage.written()
    assert isinstance(fact, Resolution)
    assert (fact.decision, fact.attempts, fact.probe_number) == (decision, ("a1", "a2"), 3)
    assert (fact.writer, fact.by, fact.step_id, fact.output_payload) == (Party.COMPENSATOR, "c1", "s1", b"x")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Succeeded(output_payload=b"out", undo_arguments=b"{}"), StepStatus.SUCCEEDED),
        (Refused(ERROR), StepStatus.FAILED),
        (Uncertain(ERROR), StepStatus.UNKNOWN),
        (NotBegun("full"), StepStatus.NOT_EXECUTED),
        (NotDeployed(ERROR), StepStatus.NOT_EXECUTED),
        (Deferred("breaker"), StepStatus.NOT_EXECUTED),
    ],
)
def test_a_resend_is_an_attempt_of_its_own_with_one_end(answer: CallAnswer, status: StepStatus) -> None:
    stage = Stage(calls=lambda step: answer)
    stage.play(decide(resend(), "me", "c1"))
    assert stage.step_facts() == ["me STARTED", f"me {status.value}"]
    kinds = [type(effect) for effect in stage.effects]
    assert kinds == [ReadClock, Write, ReadBack, ReadClock, CallForward, Write]
    fact = stage.written()[-1]
    assert isinstance(fact, StepEvent)
    assert fact.writer is Party.COMPENSATOR
    if isinstance(answer, Succeeded):
        assert (fact.output_payload, fact.undo_arguments) == (b"out", b"{}")


def test_a_resend_that_lost_its_ground_or_its_time_is_not_executed() -> None:
    moved = StepEvent("w", "s1", "a9", 0, StepStatus.STARTED, "t")
    for stage in (Stage(before=[moved]), Stage(ms_per_clock=LEASE_MS // 2), Stage(read_back_fails=True)):
        stage.play(decide(resend(), "me", "c1"))
        assert not any(isinstance(effect, CallForward) for effect in stage.effects)
        assert stage.step_facts() == ["me STARTED", "me NOT_EXECUTED"]


@pytest.mark.parametrize(("certain", "facts"), [(True, []), (False, ["me NOT_EXECUTED"])])
def test_a_resend_whose_started_is_in_doubt_ends_it_unsent(certain: bool, facts: list[str]) -> None:
    stage = Stage(unwritten={1: Unwritten(certain)})
    stage.play(decide(resend(), "me", "c1"))
    assert stage.step_facts() == facts


def test_every_fact_names_instance_generation_attempt_and_owner() -> None:
    stage = Stage()
    command = replace(run_of(entry(attempt=3, generation=2)), traceparent="00-1-2-01")
    stage.play(decide(command, "me", "c1"))
    for fact in stage.written():
        assert isinstance(fact, UndoEvent)
        assert (fact.generation, fact.attempt, fact.owner, fact.workflow_offset) == (2, 3, "me", 7)
        assert fact.traceparent == "00-1-2-01"
        assert (fact.lease_ms is not None) == (fact.status is UndoStatus.STARTED)
