"""A person approves a call: the law in the fold, and agents that ask, wait, and call or don't."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.core.agent_tools import wait_for
from tests.core.folded import Folded, folded_runtime
from tests.core.guarded_tools import WORLD, order, post, send, wire
from tests.core.ledger import Ledger, contract_of

from amends.processors import records
from amends.processors.state import Step
from amends.producers import LeftOpen, ProducerSettings, Runtime, Succeeded, clock, workflow
from amends.producers.effects import Write
from amends.producers.testing import memory_runtime
from amends.schemas.approvals import ApprovalState
from amends.schemas.codec import encode
from amends.schemas.commands import Incident, IncidentState, Phase, WorkflowEcho
from amends.schemas.contract import Contract, Effect, Idempotency
from amends.schemas.facts import (
    ApprovalTerms,
    Decision,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    WorkflowEvent,
    WorkflowStatus,
)
from amends.tools import options
from amends.tools.errors import EpochEnded, NotApproved, WorkflowTurned

TERMS = ApprovalTerms("d1", "ann", 60_000)
WIRE: Contract = replace(contract_of("bank.wire", effect=Effect.IRREVERSIBLE, undo=None), approval_ms=60_000)
KEYED = replace(WIRE, call=replace(WIRE.call, idempotency=Idempotency.KEY))


# --- the law ----------------------------------------------------------------------------------------------------------


def asked(terms: ApprovalTerms = TERMS) -> Ledger:
    ledger = Ledger()
    ledger.start(lease_ms=600_000)
    request(ledger, terms)
    return ledger


def request(
    ledger: Ledger, terms: ApprovalTerms = TERMS, *, step: str = "s", epoch: int = 0, attempt: str = "p1",
    contract: Contract = WIRE,
) -> None:  # fmt: skip
    ledger.append(
        StepEvent(
            "w", step, attempt, epoch, StepStatus.REQUESTED, "bank.wire", contract=encode(contract),
            side_effect_classification=Effect.IRREVERSIBLE, approval=terms,
        )
    )  # fmt: skip


def ruling(ledger: Ledger, decision: Decision = Decision.APPROVE, **changes: object) -> Resolution:
    fields: dict[str, object] = {
        "by": "bob", "step_id": "s", "step_epoch": 0, "argument_digest": "d1", "version": 1,
        "expires_at_ms": ledger.now_ms + 5_000,
    }  # fmt: skip
    return Resolution("w", decision, Party.PERSON, **(fields | changes))  # type: ignore[arg-type]


def step_of(ledger: Ledger, name: str = "s") -> Step:
    found = ledger.workflow.find(name)
    assert found is not None
    return found


def state_of(ledger: Ledger, name: str = "s") -> str:
    approval = step_of(ledger, name).approval
    assert approval is not None
    return approval.state.value


def started(ledger: Ledger, terms: ApprovalTerms | None = TERMS, *, attempt: str = "p1", epoch: int = 0) -> None:
    ledger.started("s", WIRE, attempt=attempt, epoch=epoch, approval=terms)


def troubles(ledger: Ledger) -> list[str]:
    return [trouble.kind for _, trouble in ledger.workflow.open_troubles()]


def test_a_request_is_an_incident_until_a_person_decides() -> None:
    for decision, state in ((Decision.APPROVE, "granted"), (Decision.REJECT, "rejected")):
        ledger = asked()
        assert troubles(ledger) == ["approval"]
        incident = ledger.of(Incident)[-1]
        assert incident.attributes["argument_digest"] == "d1"
        assert incident.attributes["requested_by"] == "ann"
        assert "amends approvals show" in incident.detail
        ledger.append(ruling(ledger, decision))
        assert state_of(ledger) == state
        assert troubles(ledger) == []
        assert ledger.of(Incident)[-1].state is IncidentState.CLOSED
        told = ledger.of(WorkflowEcho)[-1].approvals
        assert [(t.step_id, t.state, t.by) for t in told] == [("s", state, "bob")]


REFUSED: dict[str, tuple[dict[str, object], int, str]] = {
    "after the request expired": ({}, 60_000, "it expired"),
    "for arguments that changed since": ({"argument_digest": "d0"}, 0, "arguments have changed"),
    "by the requester himself": ({"by": "Ann "}, 0, "who asks can't approve"),
    "by the agent itself": ({"by": "a"}, 0, "who asks can't approve"),
    "for another epoch": ({"step_epoch": 1}, 0, "undone since"),
    "of an older request": ({"version": 0}, 0, "request 1 is open"),
    "with no time to stand": ({"expires_at_ms": None}, 0, "time to stand"),
    "with a time that is over": ({"expires_at_ms": 1}, 0, "time to stand"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_an_approval_is_refused_with_its_reason(how: str) -> None:
    changes, later_ms, words = REFUSED[how]
    ledger = asked()
    ledger.now_ms += later_ms
    ledger.append(ruling(ledger, Decision.APPROVE, **changes))
    approval = step_of(ledger).approval
    assert approval is not None
    assert approval.state is ApprovalState.REQUESTED
    assert words in approval.refused
    started(ledger)
    assert troubles(ledger) == ["approval", "not_approved"]


def test_an_approval_given_twice_counts_once() -> None:
    ledger = asked()
    ledger.append(ruling(ledger))
    first = step_of(ledger).approval
    assert first is not None
    ledger.now_ms += 1_000
    ledger.append(ruling(ledger, by="cid", expires_at_ms=ledger.now_ms + 90_000))
    second = step_of(ledger).approval
    assert second is not None
    assert "approved already, by bob" in second.refused
    assert (second.by, second.until_ms) == (first.by, first.until_ms)


def test_a_grant_is_good_for_one_call() -> None:
    ledger = asked()
    ledger.append(ruling(ledger))
    started(ledger)
    assert state_of(ledger) == "used"
    assert ledger.of(WorkflowEcho)[-1].approvals == ()
    ledger.ended("s", StepStatus.FAILED)
    ledger.append(ruling(ledger))
    approval = step_of(ledger).approval
    assert approval is not None
    assert "the call was made" in approval.refused
    request(ledger)
    assert state_of(ledger) == "requested"


def test_a_grant_whose_call_was_not_sent_is_given_back() -> None:
    ledger = asked()
    ledger.append(ruling(ledger))
    started(ledger)
    ledger.ended("s", StepStatus.NOT_EXECUTED)
    assert state_of(ledger) == "granted"
    started(ledger, attempt="p2")
    assert (state_of(ledger), troubles(ledger)) == ("used", [])


def test_of_two_agents_that_wait_for_one_grant_only_the_first_uses_it() -> None:
    ledger = asked()
    ledger.append(ruling(ledger))
    started(ledger)
    started(ledger, attempt="q1")
    assert troubles(ledger) == ["not_approved"]
    (told,) = ledger.of(WorkflowEcho)[-1].approvals
    assert (told.state, told.by) == ("used", "p1")
    ledger.ended("s", StepStatus.SUCCEEDED)
    assert troubles(ledger) == ["not_approved"], "nobody knows yet that the other did not call"
    ledger.ended("s", StepStatus.NOT_EXECUTED, attempt="q1")
    assert (state_of(ledger), troubles(ledger)) == ("used", [])


def test_a_grant_that_the_first_gives_back_is_not_used_by_whom_it_was_refused_to() -> None:
    ledger = asked()
    ledger.append(ruling(ledger))
    started(ledger)
    started(ledger, attempt="q1")
    ledger.ended("s", StepStatus.NOT_EXECUTED)
    assert (state_of(ledger), troubles(ledger)) == ("granted", ["not_approved"])
    ledger.ended("s", StepStatus.NOT_EXECUTED, attempt="q1")
    assert troubles(ledger) == []
    started(ledger, attempt="q2")
    assert (state_of(ledger), troubles(ledger)) == ("used", [])


@pytest.mark.parametrize(
    ("end", "undone"), [(StepStatus.NOT_EXECUTED, False), (StepStatus.SUCCEEDED, True), (StepStatus.UNKNOWN, True)]
)
def test_what_stands_before_a_savepoint_is_not_undone_for_an_attempt_behind_it_that_was_not_accepted(
    end: StepStatus, undone: bool
) -> None:
    """Seen by the simulation (seed 2200124). Where it was sent all the same it has an effect of its own."""
    booking = replace(contract_of("hall.book"), approval_ms=60_000)
    ledger = Ledger()
    ledger.start(lease_ms=600_000)
    request(ledger, contract=booking)
    ledger.append(ruling(ledger))
    ledger.started("s", booking, approval=TERMS)
    ledger.ended("s", StepStatus.SUCCEEDED, undo_arguments=b"{}")
    ledger.savepoint("booked")
    ledger.undo_to("booked")
    ledger.started("s", booking, attempt="q1", approval=TERMS)
    assert ledger.commanded() == []
    ledger.ended("s", end, attempt="q1")
    ledger.wait(1_000)
    assert (step_of(ledger).undo is not None) is undone


def test_a_remote_that_takes_two_sends_for_one_call_may_be_sent_to_twice_with_one_grant() -> None:
    ledger = Ledger()
    ledger.start(lease_ms=600_000)
    request(ledger, contract=KEYED)
    ledger.append(ruling(ledger))
    for attempt in ("p1", "q1"):
        ledger.started("s", KEYED, attempt=attempt, approval=TERMS)
    assert (state_of(ledger), troubles(ledger)) == ("used", [])


def test_nobody_is_asked_for_a_second_call_in_a_step_that_was_sent() -> None:
    ledger = asked()
    ledger.append(ruling(ledger))
    started(ledger)
    request(ledger, attempt="q1")
    assert (state_of(ledger), troubles(ledger)) == ("used", [])
    assert [(t.state, t.by) for t in ledger.of(WorkflowEcho)[-1].approvals] == [("used", "p1")]


def test_a_start_written_again_behind_its_end_uses_no_grant() -> None:
    ledger = asked()
    ledger.append(ruling(ledger))
    started(ledger)
    ledger.ended("s", StepStatus.NOT_EXECUTED)
    started(ledger)
    assert (state_of(ledger), troubles(ledger)) == ("granted", [])


def test_a_grant_that_expired_before_the_call_does_not_hold() -> None:
    ledger = asked()
    ledger.append(ruling(ledger))
    ledger.now_ms += 5_000
    started(ledger)
    assert (state_of(ledger), troubles(ledger)) == ("granted", ["not_approved"])
    assert "expired" in ledger.of(WorkflowEcho)[-1].approvals[0].reason
    ledger.ended("s", StepStatus.NOT_EXECUTED)
    assert troubles(ledger) == []
    request(ledger)
    assert (state_of(ledger), troubles(ledger)) == ("requested", ["approval"])


def test_other_arguments_than_were_approved_are_an_incident() -> None:
    ledger = asked()
    ledger.append(ruling(ledger))
    started(ledger, replace(TERMS, argument_digest="d2"))
    assert troubles(ledger) == ["not_approved"]


def test_a_call_that_nobody_was_asked_for_is_an_incident_only_where_somebody_must_be() -> None:
    for observe, kinds in ((False, ["not_approved"]), (True, [])):
        ledger = Ledger()
        ledger.start(mode="observe" if observe else "enforce")
        started(ledger, None)
        ledger.ended("s", StepStatus.SUCCEEDED)
        assert troubles(ledger) == kinds


def test_a_person_may_take_a_grant_back_before_it_is_used() -> None:
    ledger = asked()
    ledger.append(ruling(ledger))
    ledger.append(ruling(ledger, Decision.REJECT, by="cid", reason="fraud"))
    assert state_of(ledger) == "rejected"


def test_a_rejected_call_stays_rejected_whichever_step_or_epoch_raises_it_again() -> None:
    ledger = asked()
    ledger.savepoint("here")
    ledger.append(ruling(ledger, Decision.REJECT, reason="too much"))
    request(ledger)
    request(ledger, step="t")
    ledger.append(ruling(ledger))
    assert (state_of(ledger), state_of(ledger, "t"), troubles(ledger)) == ("rejected", "rejected", [])
    ledger.undo_to("here")
    request(ledger, step="u", epoch=1)
    assert state_of(ledger, "u") == "rejected"
    request(ledger, replace(TERMS, argument_digest="d2"), step="v", epoch=1)
    assert (state_of(ledger, "v"), troubles(ledger)) == ("requested", ["approval"])


def test_a_turn_makes_an_unused_grant_void_and_closes_what_is_asked_for() -> None:
    for granted in (True, False):
        ledger = Ledger()
        ledger.start(lease_ms=600_000)
        ledger.savepoint("here")
        request(ledger)
        if granted:
            ledger.append(ruling(ledger))
        ledger.undo_to("here")
        assert troubles(ledger) == []
        assert ledger.of(WorkflowEcho)[-1].approvals == ()
        ledger.append(ruling(ledger))
        started(ledger)
        assert troubles(ledger) == ["not_approved"]


def test_a_turn_leaves_the_outcome_of_a_used_grant_unknown() -> None:
    ledger = asked()
    ledger.append(ruling(ledger))
    started(ledger)
    ledger.ended("s", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(10_000)
    assert troubles(ledger) == ["unknown"]
    assert state_of(ledger) == "used"


def test_a_request_holds_nothing_open() -> None:
    for status, phase in ((WorkflowStatus.SUCCEEDED, Phase.SUCCEEDED), (WorkflowStatus.FAILED, Phase.COMPENSATED)):
        ledger = asked()
        ledger.said(status)
        assert (ledger.workflow.header.phase, troubles(ledger)) == (phase, [])
        ledger.append(ruling(ledger))
        assert state_of(ledger) == "requested"


def test_an_approval_survives_its_own_bytes() -> None:
    ledger = asked()
    ledger.append(ruling(ledger, reason="fine"))
    step = step_of(ledger)
    assert records.decode_step(records.encode_step(step)) == step
    ledger.crash()
    assert step_of(ledger).approval == step.approval
    assert ledger.of(WorkflowEcho)[-1].approvals[0].state == "granted"
    started(ledger)
    assert state_of(ledger) == "used"


# --- agents -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folded() -> Iterator[Folded]:
    WORLD.clear()
    with folded_runtime(approval_within_ms=20) as found:
        yield found


def another_process(folded: Folded, **settings: object) -> Runtime:
    waits = {"standing_within_ms": 500, "owed_within_ms": 500, "confirm_within_ms": 500, "approval_within_ms": 20}
    return Runtime(ProducerSettings(**(waits | settings)), folded.ledger)


def request_of(folded: Folded) -> StepEvent:
    """Return what was asked for last."""
    return [fact for fact in folded.ledger.steps("w") if fact.status is StepStatus.REQUESTED][-1]


def decide(folded: Folded, decision: Decision = Decision.APPROVE, by: str = "bob", **changes: object) -> None:
    fact = request_of(folded)
    assert fact.approval is not None
    fields: dict[str, object] = {
        "step_id": fact.step_id, "step_epoch": fact.epoch, "argument_digest": fact.approval.argument_digest,
        "version": 1, "expires_at_ms": clock.wall_ms() + 60_000,
    }  # fmt: skip
    folded.ledger.add(Resolution("w", decision, Party.PERSON, by, **(fields | changes)))  # type: ignore[arg-type]


def statuses(folded: Folded, tool: str = "bank.wire") -> list[str]:
    return [fact.status.value for fact in folded.ledger.steps("w") if fact.tool_name == tool]


def refused(call: object, *arguments: object) -> NotApproved:
    with pytest.raises(NotApproved) as found:
        call(*arguments)  # type: ignore[operator]
    return found.value


def test_a_call_waits_for_a_person_without_a_lease_and_is_made_when_he_grants_it(folded: Folded) -> None:
    def person() -> None:
        wait_for(lambda: "REQUESTED" in statuses(folded))
        assert not folded.ledger.partition.workflow("w").live  # type: ignore[union-attr]
        decide(folded)

    clerk = threading.Thread(target=person)
    clerk.start()
    with workflow("w", agent="payer", requested_by="ann") as wf:
        assert wire.options(approval_within="10s")("acme", 5) == "wired acme"
    clerk.join()
    assert wf.outcome == Succeeded()
    assert statuses(folded) == ["REQUESTED", "STARTED", "SUCCEEDED"]
    assert WORLD == ["wire acme 5"]


async def test_a_task_waits_too(folded: Folded) -> None:
    async def person() -> None:
        await asyncio.to_thread(wait_for, lambda: "REQUESTED" in statuses(folded, "bank.post"))
        decide(folded)

    async with workflow("w"):
        clerk = asyncio.create_task(person())
        assert await options(post, approval_within="10s")("acme") == "posted acme"
        await clerk
    assert statuses(folded, "bank.post") == ["REQUESTED", "STARTED", "SUCCEEDED"]


def test_who_was_not_answered_calls_again_later_and_meets_the_same_request(folded: Folded) -> None:
    with workflow("w"):
        assert not refused(wire, "acme", 5).rejected
        refused(wire, "acme", 5)
        assert statuses(folded) == ["REQUESTED"], "asked once"
        decide(folded)
        assert wire("acme", 5) == "wired acme"
        refused(wire, "acme", 5)  # a second one, wanted too: asked for by itself
    assert statuses(folded) == ["REQUESTED", "STARTED", "SUCCEEDED", "REQUESTED"]
    assert len({fact.step_id for fact in folded.ledger.steps("w")}) == 2


def test_the_approval_comes_days_later_in_another_process(folded: Folded) -> None:
    with workflow("w") as wf:
        order("cup")
        refused(wire, "acme", 5)
        wf.leave_open("3d")
    assert isinstance(wf.outcome, LeftOpen)
    decide(folded)
    with workflow("w", on_existing="resume", runtime=another_process(folded)) as resumed:
        order("cup")
        assert wire("acme", 5) == "wired acme"
        refused(wire, "acme", 5)
    assert resumed.outcome == Succeeded()
    assert WORLD == ["order cup", "wire acme 5"]
    with workflow("w", on_existing="resume", runtime=another_process(folded)):
        order("cup")
        assert wire("acme", 5) == "wired acme", "the record answers"
    assert WORLD == ["order cup", "wire acme 5"]


def test_a_model_that_plans_it_again_meets_the_same_request(folded: Folded) -> None:
    with workflow("w"):
        refused(wire.options(tool_call_id="1"), "acme", 5)
        decide(folded)
        assert wire.options(tool_call_id="2")("acme", 5) == "wired acme"
        assert wire.options(tool_call_id="3")(cents=5, to="acme") == "wired acme"
    assert statuses(folded) == ["REQUESTED", "STARTED", "SUCCEEDED"]
    assert WORLD == ["wire acme 5"]


def test_a_rejected_call_raised_again_with_the_same_arguments_stays_rejected(folded: Folded) -> None:
    with workflow("w"):
        refused(wire.options(tool_call_id="1"), "acme", 5)
        decide(folded, Decision.REJECT, reason="not this month")
        for call in (wire.options(tool_call_id="1"), wire.options(tool_call_id="2"), wire, wire.options(call_id="x")):
            error = refused(call, "acme", 5)
            assert (error.rejected, error.by, error.reason) == (True, "bob", "not this month")
        assert not refused(wire.options(tool_call_id="3"), "acme", 4).rejected, "other arguments are another question"
    assert not WORLD


@pytest.mark.parametrize("by", ["ann", "payer"])
def test_who_asks_cant_approve(folded: Folded, by: str) -> None:
    with workflow("w", agent="payer", requested_by="ann"):
        refused(wire, "acme", 5)
        decide(folded, by=by)
        refused(wire, "acme", 5)
    assert not WORLD


def test_a_grant_that_expired_on_the_way_is_not_used(folded: Folded, monkeypatch: pytest.MonkeyPatch) -> None:
    with workflow("w"):
        refused(wire, "acme", 5)
        decide(folded, expires_at_ms=clock.wall_ms() + 60_000)
        monkeypatch.setattr(clock, "wall_ms", lambda: time.time_ns() // 1_000_000 + 60_000)
        refused(wire, "acme", 5)
        assert statuses(folded) == ["REQUESTED", "REQUESTED"], "asked anew"
        decide(folded, version=2)
        assert wire("acme", 5) == "wired acme"


def test_a_grant_that_expires_before_its_intent_stands_is_not_used(folded: Folded) -> None:
    with workflow("w"):
        refused(wire, "acme", 5)
        decide(folded, expires_at_ms=clock.wall_ms() + 60_000)
        write = folded.ledger.write

        def late(fact: StepEvent | WorkflowEvent) -> Write:
            now_ms = clock.wall_ms
            clock.wall_ms = lambda: now_ms() + 60_000
            try:
                return write(fact)
            finally:
                clock.wall_ms = now_ms

        folded.ledger.write = late  # type: ignore[method-assign]
        assert "expired" in str(refused(wire, "acme", 5))
        folded.ledger.write = write  # type: ignore[method-assign]
    assert statuses(folded) == ["REQUESTED", "STARTED", "NOT_EXECUTED"]
    assert not WORLD


def test_a_turn_while_a_person_is_waited_for_ends_the_wait(folded: Folded) -> None:
    def person() -> None:
        wait_for(lambda: "REQUESTED" in statuses(folded))
        folded.ledger.add(WorkflowEvent("w", 0, WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON, by="ann"))

    clerk = threading.Thread(target=person)
    clerk.start()
    with pytest.raises(WorkflowTurned), workflow("w"):
        wire.options(approval_within="10s")("acme", 5)
    clerk.join()
    assert statuses(folded) == ["REQUESTED"]
    assert not WORLD


def test_after_an_undo_a_grant_of_before_is_void(folded: Folded) -> None:
    with workflow("w") as wf:
        wf.savepoint("start")
        refused(wire, "acme", 5)
        decide(folded)
        wf.undo_to("start")
        refused(wire, "acme", 5)
        assert statuses(folded) == ["REQUESTED", "REQUESTED"]
        decide(folded)
        assert wire("acme", 5) == "wired acme"
    assert not issubclass(EpochEnded, NotApproved)


def test_an_irreversible_call_is_asked_for_where_the_setting_says_so(folded: Folded) -> None:
    strict = another_process(folded, approvals="irreversible")
    with workflow("w", runtime=strict):
        refused(send, "ann")
        order("cup")
        decide(folded)
        send("ann")
    assert WORLD == ["order cup", "send ann"]


def test_interrupted_while_it_waits_a_call_is_not_under_way(folded: Folded) -> None:
    with workflow("w") as wf:
        scope = wf._session.scope
        wait = scope.board.wait
        scope.board.wait = lambda look, within_ms: (_ for _ in ()).throw(KeyboardInterrupt())  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            wire("acme", 5)
        scope.board.wait = wait  # type: ignore[method-assign]
        decide(folded)
        assert wire("acme", 5) == "wired acme"
    assert statuses(folded) == ["REQUESTED", "STARTED", "SUCCEEDED"]


def test_the_ledger_in_memory_approves_and_rejects_for_users_own_tests() -> None:
    WORLD.clear()
    settings = ProducerSettings(approval_within_ms=20)
    with memory_runtime(settings) as memory, workflow("w", agent="payer"):
        refused(wire, "acme", 5)
        memory.ledger.approve("w", by="payer")
        refused(wire, "acme", 5)
        memory.ledger.approve("w")
        assert wire("acme", 5) == "wired acme"
        refused(wire, "evil", 5)
        memory.ledger.reject("w", reason="fraud")
        assert refused(wire, "evil", 5).reason == "fraud"
        send("ann")
    assert WORLD == ["wire acme 5", "send ann"]
