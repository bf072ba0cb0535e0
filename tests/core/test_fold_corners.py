"""Corners of the fold that random schedules seldom reach: rulings that can't be carried out, what comes to light after
a close, old keys, clocks that jump, and those who only look on."""

from __future__ import annotations

import dataclasses
from itertools import count
from typing import cast

import pytest
from tests.core.ledger import LEASE_MS, Entry, Ledger, contract_of

from amends.processors.partition import Partition
from amends.processors.records import PARTITION_KEY
from amends.processors.state import UndoState
from amends.processors.tenure import Tenure
from amends.processors.terms import Terms
from amends.processors.timers import Silences
from amends.schemas.codec import decode, encode
from amends.schemas.commands import UndoCommand
from amends.schemas.contract import Contract, Effect, Idempotency
from amends.schemas.facts import (
    Decision,
    Fact,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    Timeout,
    TimeoutKind,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)

BASE = contract_of("base")
IMPOSSIBLE = {
    "irreversible": contract_of("x", effect=Effect.IRREVERSIBLE, undo=None),
    "unclassified": contract_of("x", effect=Effect.UNCLASSIFIED, undo=None),
    "no_undo": contract_of("x", undo=None),
    "arguments_missing": contract_of("x"),
    "unknown": contract_of("x"),
}
NATURAL = contract_of("x", undo=Idempotency.NATURAL)


def state_of_undo(ledger: Ledger) -> UndoState | None:
    undo = ledger.step("x").undo
    return None if undo is None else undo.state


def open_kinds(ledger: Ledger) -> list[str]:
    return [trouble.kind for _, trouble in ledger.workflow.open_troubles()]


def left_unknown(ledger: Ledger, contract: Contract) -> None:
    ledger.start()
    ledger.started("x", contract)
    ledger.ended("x", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(10_000)


# --- rulings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", [Decision.RETRY, Decision.REPLAY_PLAN])
@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_retrying_what_no_machine_can_undo_leaves_the_incident_open(kind: str, decision: Decision) -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("base", BASE)
    ledger.started("x", IMPOSSIBLE[kind], undo_arguments=None)
    ledger.ended("x", StepStatus.UNKNOWN if kind == "unknown" else StepStatus.SUCCEEDED)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(20_000)
    ledger.undone("base")
    step_id = "x" if decision is Decision.RETRY else None
    ledger.append(Resolution("w", decision, Party.PERSON, "someone", step_id=step_id))
    ledger.wait(20_000)
    assert open_kinds(ledger) == [kind]
    ledger.append(Resolution("w", Decision.ACCEPT_LOSS, Party.PERSON, "someone", step_id="x"))
    assert ledger.phase == "CLOSED_WITH_LOSS"


# --- what comes to light after a close --------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [StepStatus.SUCCEEDED, StepStatus.UNKNOWN])
def test_an_effect_that_shows_after_its_failed_undo_was_ruled_needless_is_an_incident_again(late: StepStatus) -> None:
    ledger = Ledger()
    left_unknown(ledger, NATURAL)
    ledger.undo("x", UndoStatus.STARTED)
    ledger.undo("x", UndoStatus.FAILED, retryable=False)
    ledger.resolve("x", Decision.MARK_ABSENT, "p1", writer=Party.PERSON)
    assert (ledger.phase, open_kinds(ledger)) == ("COMPENSATED", [])
    attempt = "p1" if late is StepStatus.SUCCEEDED else "p2"
    ledger.ended("x", late, attempt=attempt)
    assert (ledger.phase, open_kinds(ledger)) == ("TURNED", ["undo_failed"])


def test_a_keyed_call_is_undone_though_an_idempotent_undo_ran_before_it_ever_arrived() -> None:
    ledger = Ledger()
    keyed = contract_of("x", call=Idempotency.KEY, undo=Idempotency.NATURAL)
    left_unknown(ledger, dataclasses.replace(keyed, attributes={"no_resend": "1"}))
    ledger.undone("x")
    assert ledger.phase == "COMPENSATED"
    ledger.started("x", keyed, attempt="p2")
    ledger.ended("x", StepStatus.SUCCEEDED, attempt="p2")
    assert (ledger.phase, ledger.commanded()[-1]) == ("TURNED", [("x", 1, 0)])


def undone_and_then_sent_again(ledger: Ledger) -> None:
    """A step is undone; a late attempt of it, and all re-sends, come to nobody knows what."""
    contract = contract_of("x", call=Idempotency.NATURAL)
    ledger.start()
    ledger.did("x", contract)
    ledger.said(WorkflowStatus.FAILED)
    ledger.undone("x")
    ledger.started("x", contract, attempt="p2")
    ledger.ended("x", StepStatus.UNKNOWN, attempt="p2")
    for name in ("r0", "r1", "r2"):
        ledger.wait(5_000)
        ledger.started("x", contract, attempt=name, writer=Party.COMPENSATOR)
        ledger.ended("x", StepStatus.UNKNOWN, attempt=name, writer=Party.COMPENSATOR)
    ledger.wait(60_000)


def test_an_effect_that_was_undone_is_no_sign_that_a_later_attempt_had_one() -> None:
    ledger = Ledger()
    undone_and_then_sent_again(ledger)
    assert ledger.commanded() == [[("x", 0, 0)]]
    assert (ledger.phase, open_kinds(ledger)) == ("TURNED", ["unknown"])


def test_a_later_attempt_that_is_proven_absent_does_not_bring_the_undone_one_back() -> None:
    ledger = Ledger()
    undone_and_then_sent_again(ledger)
    ledger.resolve("x", Decision.MARK_ABSENT, "p2", "r0", "r1", "r2", writer=Party.PERSON)
    ledger.wait(60_000)
    assert ledger.commanded() == [[("x", 0, 0)]]
    assert (ledger.phase, open_kinds(ledger)) == ("COMPENSATED", [])


@pytest.mark.parametrize("is_told", ["by the agent", "by the probe"])
def test_an_attempt_behind_an_undone_one_is_asked_for_until_it_is_known(is_told: str) -> None:
    """Seen by the simulation (seed 8050363): a sleeper called behind the undo and died. Of a step that was present
    nobody asked again, and the workflow was TURNED for ever."""
    ledger, contract = Ledger(), contract_of("x", call=Idempotency.NATURAL, undo=Idempotency.NATURAL, probe=True)
    ledger.start()
    ledger.started("x", contract)
    ledger.ended("x", StepStatus.SUCCEEDED if is_told == "by the agent" else StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.FAILED)
    if is_told == "by the probe":
        ledger.resolve("x", Decision.PRESENT, "p1")
    ledger.undone("x")
    assert ledger.phase == "COMPENSATED"
    asked = len(ledger.probes())
    ledger.started("x", contract, attempt="late")
    ledger.wait(120_000)
    assert len(ledger.probes()) > asked
    ledger.resolve("x", Decision.PRESENT, "late")
    ledger.wait(10_000)
    assert ledger.commanded()[-1] == [("x", 1, 0)]


def test_nothing_is_closed_while_an_undo_is_open_even_if_it_is_needless() -> None:
    ledger = Ledger()
    left_unknown(ledger, NATURAL)
    ledger.undo("x", UndoStatus.STARTED)
    ledger.ended("x", StepStatus.NOT_EXECUTED)
    assert ledger.phase == "TURNED"
    ledger.undo("x", UndoStatus.NOTHING_TO_UNDO)
    assert ledger.phase == "COMPENSATED"


def test_a_needless_undo_that_is_lost_does_not_keep_its_workflow_open() -> None:
    ledger = Ledger()
    left_unknown(ledger, NATURAL)
    ledger.undo("x", UndoStatus.STARTED, lease_ms=5_000)
    ledger.ended("x", StepStatus.NOT_EXECUTED)
    ledger.wait(20_000)
    assert (ledger.phase, open_kinds(ledger)) == ("COMPENSATED", [])
    assert state_of_undo(ledger) is UndoState.NOTHING


def test_an_undo_of_what_turns_out_not_to_be_there_is_granted_no_longer() -> None:
    ledger = Ledger()
    left_unknown(ledger, NATURAL)
    ledger.ended("x", StepStatus.NOT_EXECUTED)
    assert (state_of_undo(ledger), ledger.phase) == (UndoState.NOTHING, "COMPENSATED")
    ledger.undo("x", UndoStatus.STARTED, lease_ms=5_000)  # a command that was on its way
    ledger.wait(20_000)
    assert (state_of_undo(ledger), ledger.phase) == (UndoState.NOTHING, "COMPENSATED")


@pytest.mark.parametrize("status", [WorkflowStatus.FAILED, WorkflowStatus.SUCCEEDED])
def test_the_last_unreadable_record_read_after_all_closes_the_workflow(status: WorkflowStatus) -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("x", contract_of("x"))
    offset = ledger.append(None, raw=b"garbage", key=b"w")
    ledger.said(status)
    if status is WorkflowStatus.FAILED:
        ledger.undone("x")
    assert ledger.phase in ("TURNED", "FINISHING")
    redriven = encode(StepEvent("w", "x", "p1", 0, StepStatus.HEARTBEAT, "x"))
    headers = [("amends-original-offset", str(offset).encode())]
    entry = Entry(len(ledger.entries), ledger.now_ms, b"w", redriven, headers)
    ledger.entries.append(entry)
    ledger.partition.fold(entry)
    assert ledger.phase in ("COMPENSATED", "SUCCEEDED")


# --- keys that are forgotten ------------------------------------------------------------------------------------------


def in_doubt(ledger: Ledger, *, verify: bool = False) -> None:
    """Its first attempt may have taken; the second is granted, and no compensator is there for longer than the remote
    remembers keys."""
    contract = contract_of("x", verify=verify)
    assert contract.undo is not None
    ledger.start()
    ledger.did("x", dataclasses.replace(contract, undo=dataclasses.replace(contract.undo, key_ttl_ms=60_000)))
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("x", UndoStatus.STARTED)
    ledger.undo("x", UndoStatus.UNKNOWN)
    ledger.wait(100_000)
    ledger.wait(20_000, until=lambda: bool(open_kinds(ledger)))


def test_an_undo_that_may_have_taken_is_not_commanded_once_its_key_is_forgotten() -> None:
    ledger = Ledger()
    in_doubt(ledger)
    assert open_kinds(ledger) == ["undo_failed"]
    before = len(ledger.commanded())
    assert max(c.timestamp_ms for c in ledger.of(UndoCommand)) < 1_000_000 + 60_000
    ledger.crash()
    ledger.wait(60_000)
    assert len(ledger.commanded()) == before


def test_an_undo_that_may_have_taken_and_can_be_verified_outlives_its_key() -> None:
    ledger = Ledger()
    in_doubt(ledger, verify=True)
    assert open_kinds(ledger) == []
    last = ledger.of(UndoCommand)[-1]
    assert last.timestamp_ms > 1_000_000 + 60_000
    assert last.entries[0].verify_first


def test_a_person_may_retry_an_undo_whose_key_is_forgotten() -> None:
    ledger = Ledger()
    in_doubt(ledger)
    ledger.resolve("x", Decision.RETRY, writer=Party.PERSON)
    ledger.wait(10_000)
    assert ledger.commanded()[-1] == [("x", 0, 2)]
    ledger.undone("x", attempt=2)
    assert ledger.phase == "COMPENSATED"


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_deadline_holds_after_a_restart_in_the_middle_of_a_long_silence() -> None:
    ledger = Ledger()
    start = WorkflowEvent("w", 0, WorkflowStatus.STARTED, agent_id="a", lease_ms=3 * 86_400_000, deadline_ms=600_000)
    ledger.append(start)
    ledger.crash()
    ledger.wait(1_000_000, step_ms=5_000)
    assert "deadline" in ledger.workflow.header.turned_reason


@pytest.mark.parametrize("kind", [TimeoutKind.DEADLINE, TimeoutKind.HEARTBEAT])
def test_a_timeout_proposed_before_a_success_and_appended_behind_it_turns_nothing(kind: TimeoutKind) -> None:
    ledger = Ledger()
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.STARTED, agent_id="a", lease_ms=LEASE_MS, deadline_ms=LEASE_MS))
    ledger.did("x", contract_of("x"))
    armed_offset = ledger.workflow.header.armed_offset
    ledger.now_ms += 2 * LEASE_MS
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.append(Timeout("w", kind, 0, armed_offset, ledger.now_ms))
    assert ledger.phase == "SUCCEEDED"
    assert ledger.commanded() == []


def test_a_record_from_the_future_does_not_keep_silent_agents_alive_for_ever() -> None:
    ledger = Ledger()
    ledger.start()
    then_ms = ledger.now_ms
    ledger.now_ms += 10**12
    ledger.append(WorkflowEvent("other", 0, WorkflowStatus.STARTED, agent_id="a", lease_ms=LEASE_MS))
    ledger.now_ms = then_ms + 10
    ledger.said(WorkflowStatus.HEARTBEAT)
    ledger.wait(4 * LEASE_MS)
    assert "silent" in ledger.workflow.header.turned_reason


def test_a_clock_that_goes_back_takes_its_jump_from_a_silence_and_no_more() -> None:
    silences = Silences()
    for at_ms in (1_000, 11_000, 9_000, 9_100):  # ten seconds of outage, then a leader that is two behind
        silences.record(at_ms)
    assert silences.gaps == [(9_000, 8_000)]
    silences.record(20_000)
    assert silences.gaps == [(9_000, 8_000), (20_000, 10_900)]


def test_a_clock_that_jumped_an_hour_ahead_and_back_stops_no_timer() -> None:
    tenure = Tenure(0, Partition(0, Terms()), 0)
    then_ms, offsets = 1_000_000, count()

    def append(fact: Fact, at_ms: int) -> None:
        tenure.take(Entry(next(offsets), at_ms, fact.workflow_id.encode(), encode(fact)))

    proposals = 0
    append(WorkflowEvent("w", 0, WorkflowStatus.STARTED, lease_ms=LEASE_MS), then_ms)
    append(WorkflowEvent("other", 0, WorkflowStatus.STARTED, lease_ms=LEASE_MS), then_ms + 3_600_000)
    for passed_ms in range(1_000, 4 * LEASE_MS, 1_000):
        if passed_ms == 5_000:
            append(WorkflowEvent("other", 0, WorkflowStatus.SUCCEEDED), then_ms + passed_ms)
        tenure.saw_time(then_ms + passed_ms)
        for number, emission in tenure.emissions(then_ms + passed_ms, timers=True):
            tenure.confirm(number)
            found = decode(emission.value)
            if isinstance(found, Timeout):
                proposals += 1
                append(found, then_ms + passed_ms)
    workflow = cast("Partition", tenure.fold).workflow("w")
    assert workflow is not None
    assert "silent" in workflow.header.turned_reason
    assert proposals < 20


def rolled_back(workflow_id: str, offset: int) -> WorkflowEvent:
    status = WorkflowStatus.ROLLBACK_REQUESTED
    return WorkflowEvent(workflow_id, 0, status, workflow_offset=offset, writer=Party.PERSON, by="ann")


def test_a_tenure_knows_when_its_fold_is_due_after_all_that_moves_it() -> None:
    tenure, offsets, then_ms = Tenure(0, Partition(0, Terms(grace_ms=300_000)), 0), count(), 1_000_000
    entries: list[Entry] = []
    seen: list[int | None] = []

    def append(fact: Fact, at_ms: int) -> None:
        entries.append(Entry(next(offsets), at_ms, fact.workflow_id.encode(), encode(fact)))
        tenure.take(entries[-1])

    def look() -> None:
        assert tenure.next_due_ms() == tenure.fold.next_due_ms()
        seen.append(tenure.next_due_ms())

    late_ms = then_ms + 400_000
    look()
    for fact, at_ms in (
        (WorkflowEvent("w", 0, WorkflowStatus.STARTED, lease_ms=LEASE_MS), then_ms),
        (WorkflowEvent("w", 0, WorkflowStatus.SUCCEEDED), then_ms + 1),
        (WorkflowEvent("v", 0, WorkflowStatus.STARTED, lease_ms=LEASE_MS), then_ms + 2),
        (WorkflowEvent("v", 0, WorkflowStatus.SUCCEEDED), then_ms + 3),
        (WorkflowEvent("other", 0, WorkflowStatus.STARTED, lease_ms=LEASE_MS), late_ms),
        (rolled_back("w", 0), late_ms + 1),  # of one that was forgotten
    ):
        append(fact, at_ms)
        look()
        tenure.emissions(at_ms, timers=True)
        look()
    assert seen[-1] == 0, "it wants something read again"
    stretch = tenure.refolding()
    look()
    assert stretch is not None
    if stretch.from_ms is not None:
        stretch.located(0)
    stretch.begins_at(0)
    for entry in entries[stretch.from_offset : stretch.to_offset + 1]:
        stretch.take(entry)
    append(rolled_back("v", 2), late_ms + 2)  # the next to be read again, once this is done
    look()
    tenure.refolded(stretch)
    look()
    assert seen[-1] == 0 != seen[-2]


# --- who only looks on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probe", [False, True])
@pytest.mark.parametrize("end", [None, StepStatus.UNKNOWN])
def test_a_claim_over_an_unknown_step_is_an_incident_where_amends_only_looks_on(
    end: StepStatus | None, probe: bool
) -> None:
    ledger = Ledger()
    ledger.start(mode="observe")
    ledger.started("x", contract_of("x", probe=probe))
    if end is not None:
        ledger.ended("x", end)
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.wait(200_000)
    assert (ledger.phase, open_kinds(ledger)) == ("FINISHING", ["unknown"])
    assert ledger.probes() == []
    ledger.resolve("x", Decision.PRESENT, "p1", writer=Party.PERSON)
    assert (ledger.phase, open_kinds(ledger)) == ("SUCCEEDED", [])


# --- what strangers write ---------------------------------------------------------------------------------------------

HUGE = "k" * 900_000


@pytest.mark.parametrize("raw", [b"garbage", encode(WorkflowEvent(HUGE, 0, WorkflowStatus.STARTED))])
def test_a_key_of_a_megabyte_is_nobodys_workflow_and_is_not_said_again(raw: bytes) -> None:
    ledger = Ledger()
    ledger.append(None, raw=raw, key=HUGE.encode())
    ledger.checkpoint()
    assert ledger.incidents() == {"unreadable": "OPEN"}
    assert set(ledger.changelog) <= {PARTITION_KEY}
    assert {emission.topic for emission in ledger.raw} == {"dlq.amends.ledger", "amends.incidents"}
    for emission in ledger.raw:
        if emission.topic == "amends.incidents":
            assert len(emission.value or b"") + len(emission.key or b"") < 10_000


@pytest.mark.parametrize("name", ["step_id", "attempt", "traceparent"])
def test_names_of_a_megabyte_are_not_kept_and_not_sent(name: str) -> None:
    ledger = Ledger()
    ledger.start()
    good = StepEvent("w", "x", "p1", 0, StepStatus.STARTED, "x")
    ledger.append(dataclasses.replace(good, **{name: HUGE}))  # type: ignore[arg-type]
    ledger.checkpoint()
    assert ledger.incidents() == {"unreadable": "OPEN"}
    assert ledger.workflow.steps == []
    assert max(map(len, ledger.changelog.values())) < 10_000


def test_an_outcome_that_came_before_its_intent_is_undone_once_the_contract_is_known() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.said(WorkflowStatus.FAILED)
    ledger.ended("pay", StepStatus.SUCCEEDED, undo_arguments=b"{}")
    assert ledger.incidents() == {"unclassified": "OPEN"}
    ledger.started("pay", contract_of("pay"))
    assert ledger.incidents() == {"unclassified": "CLOSED"}
    assert ledger.commanded() == [[("pay", 0, 0)]]


# --- what cannot be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [UndoStatus.UNDONE, UndoStatus.NOTHING_TO_UNDO])
def test_an_undo_whose_started_could_not_be_read_is_not_done_again(end: UndoStatus) -> None:
    ledger = Ledger()
    ledger.start()
    ledger.did("x", contract_of("x"))
    ledger.said(WorkflowStatus.FAILED)
    unread = ledger.append(None, raw=b"?", key=b"w")
    ledger.undo("x", end)
    ledger.append(Resolution("w", Decision.MARK_ABSENT, Party.PERSON, "alice", unread_offset=unread))
    ledger.wait(20_000)
    assert {entry for command in ledger.commanded() for entry in command} == {("x", 0, 0)}
    assert ledger.phase == "COMPENSATED"


def test_an_effect_that_landed_since_is_undone_though_the_started_of_the_undo_could_not_be_read() -> None:
    ledger = Ledger()
    contract = contract_of("x", call=Idempotency.NATURAL)
    ledger.start()
    ledger.did("x", contract)
    ledger.said(WorkflowStatus.FAILED)
    ledger.started("x", contract, attempt="p2")
    ledger.ended("x", StepStatus.SUCCEEDED, attempt="p2")
    ledger.undo("x", UndoStatus.UNDONE)
    ledger.wait(1_000)
    assert ledger.commanded()[-1] == [("x", 1, 0)]
