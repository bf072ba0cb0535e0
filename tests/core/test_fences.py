"""The strict fence: no call that can't be undone is made in an epoch that had ended before its intent stood."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.core.flows import RUNNING, TERMS, World, call
from tests.core.folded import Folded, folded_runtime
from tests.core.guarded_tools import WORLD, order, send
from tests.core.ledger import Ledger, contract_of

from amends.producers import workflow
from amends.producers.effects import AwaitFold, Effect, Standing
from amends.producers.flow import call_flow
from amends.schemas.commands import Phase, WorkflowEcho
from amends.schemas.contract import STRICT, Idempotency
from amends.schemas.contract import Effect as EffectClass
from amends.schemas.facts import (
    FENCE,
    Party,
    StepEvent,
    StepStatus,
    Timeout,
    TimeoutKind,
    WorkflowEvent,
    WorkflowStatus,
)
from amends.tools import compensable
from amends.tools.errors import ContractError, LedgerUnavailable, WorkflowTurned


@pytest.fixture
def folded() -> Iterator[Folded]:
    WORLD.clear()
    with folded_runtime() as found:
        yield found


class Fenced(World):
    """Answers the fence as a fold would that stands so."""

    folded: Standing | None = RUNNING

    def answer(self, effect: Effect) -> object:
        if isinstance(effect, AwaitFold):
            self.echo = self.folded
            return self.folded
        return super().answer(effect)


def test_what_cant_be_undone_waits_for_the_fold_and_is_called_then() -> None:
    world = Fenced()
    world.drive(call_flow(call(Idempotency.NEITHER, effect=EffectClass.IRREVERSIBLE, undo=None), TERMS))
    kinds = world.kinds()
    assert kinds.index("WriteFact") < kinds.index("AwaitFold") < kinds.index("LookAtEcho") < kinds.index("Invoke")
    assert world.steps()[0].attributes[FENCE] == STRICT


def test_what_can_be_undone_waits_only_if_it_says_so() -> None:
    plain, strict = Fenced(), Fenced()
    plain.drive(call_flow(call(), TERMS))
    strict.drive(call_flow(call(fence=STRICT), TERMS))
    assert "AwaitFold" not in plain.kinds()
    assert "AwaitFold" in strict.kinds()


@pytest.mark.parametrize("echo", [replace(RUNNING, epoch=1), replace(RUNNING, phase=Phase.TURNED, epoch=1)])
def test_an_epoch_that_ended_before_the_intent_ends_the_call(echo: Standing) -> None:
    world = Fenced()
    world.folded = echo
    with pytest.raises(WorkflowTurned):
        world.drive(call_flow(call(fence=STRICT), TERMS))
    assert world.written() == ["STARTED", "NOT_EXECUTED*"]
    assert not world.invoked()


def test_a_fold_that_does_not_keep_up_ends_the_call_before_its_lease_does() -> None:
    world = Fenced()
    world.folded = None
    with pytest.raises(LedgerUnavailable, match="no processor has seen"):
        world.drive(call_flow(call(fence=STRICT), TERMS))
    waited = next(effect for effect in world.effects if isinstance(effect, AwaitFold))
    assert waited.within_ms == TERMS.lease_ms // 2
    assert world.written() == ["STARTED", "NOT_EXECUTED*"]


def test_the_half_lease_is_looked_at_after_the_wait() -> None:
    world = Fenced(clock_ms=[0, 0, TERMS.lease_ms // 2])
    with pytest.raises(LedgerUnavailable, match="lease"):
        world.drive(call_flow(call(fence=STRICT), TERMS))
    assert world.written() == ["STARTED", "NOT_EXECUTED*"]


TRIGGERS = {
    "the agent's own failure, in another process": WorkflowEvent("w", 0, WorkflowStatus.FAILED),
    "a person": WorkflowEvent("w", 0, WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON, by="ann"),
}


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_trigger_that_the_echo_has_not_told_yet_is_seen(folded: Folded, trigger: str) -> None:
    """Without the strict fence, the call slips through: the echo lags."""
    with pytest.raises(WorkflowTurned), workflow("w"):  # noqa: PT012
        order("cup")
        folded.ledger.answering = False  # from here on the echo lags
        folded.ledger.add(TRIGGERS[trigger])
        order("saucer")
        folded.ledger.answering = True
        send("ann")
    assert WORLD == ["order cup", "order saucer"]
    sent = [f for f in folded.ledger.steps("w") if f.tool_name == "mail.send"]
    assert [f.status for f in sent] == [StepStatus.STARTED, StepStatus.NOT_EXECUTED]


def test_the_fold_answers_each_fenced_intent_with_what_stands_before_it() -> None:
    ledger = Ledger()
    ledger.start(lease_ms=1_000)
    ledger.started("a", contract_of("a", effect=EffectClass.IRREVERSIBLE, undo=None), attributes={FENCE: STRICT})
    assert _last(ledger).folded_to == ledger.entries[-1].offset
    assert _last(ledger).phase is Phase.RUNNING
    told = len(ledger.of(WorkflowEcho))
    ledger.started("b", contract_of("b"))
    assert len(ledger.of(WorkflowEcho)) == told, "who does not ask is not answered"


@pytest.mark.parametrize("waited_ms", [500, 2_000])
def test_whether_a_timeout_was_accepted_is_for_the_fold_to_say(waited_ms: int) -> None:
    ledger = Ledger()
    ledger.start(lease_ms=1_000)
    armed = ledger.workflow.header.armed_offset
    for _ in range(4):  # a partition on which something happens: no silence
        ledger.now_ms += waited_ms // 4
        ledger.append(WorkflowEvent("other", 0, WorkflowStatus.HEARTBEAT))
    ledger.append(Timeout("w", TimeoutKind.HEARTBEAT, 0, armed, ledger.now_ms))
    ledger.started("a", contract_of("a"), attributes={FENCE: STRICT})
    assert _last(ledger).phase is (Phase.RUNNING if waited_ms == 500 else Phase.TURNED)


def test_what_cant_be_undone_is_never_fenced_by_the_echo_alone() -> None:
    with pytest.raises(ContractError, match="fenced strictly"):

        @compensable("x.y", approval=True, fence="echo")
        def pay() -> None: ...

    assert send.tool.contract.fence == STRICT


def _last(ledger: Ledger) -> WorkflowEcho:
    found = [echo for echo in ledger.of(WorkflowEcho) if echo.workflow_id == "w"]
    return found[-1]


def test_a_fenced_call_is_a_call_like_any_other(folded: Folded) -> None:
    with workflow("w"):
        send("ann")
    assert WORLD == ["send ann"]
    assert all(isinstance(f, StepEvent) for f in folded.ledger.steps("w"))
