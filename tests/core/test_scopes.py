"""Scopes and calls in threads and tasks, on a ledger in memory: what agents do, and what happens to them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.core.agent_tools import GATE, WORLD, Declined, charge, login_twice, order, reserve, slow, wait_for
from tests.core.flows import TERMS

from amends.kafka.errors import SettingsWrong
from amends.kafka.settings import load_settings
from amends.producers import (
    AlreadyDone,
    LeftOpen,
    ProducerSettings,
    Succeeded,
    Turned,
    Unconfirmed,
    recorder,
    workflow,
)
from amends.producers.effects import Acknowledged, Uncertain, Unwritten, Write
from amends.producers.scope import Scope
from amends.producers.scope_flow import Opening
from amends.producers.testing import Memory, MemoryLedger, memory_runtime
from amends.schemas.codec import encode
from amends.schemas.commands import Phase, WorkflowEcho
from amends.schemas.contract import Contract, Effect
from amends.schemas.facts import StepEvent, StepStatus, WorkflowEvent, WorkflowStatus
from amends.tools import current_step
from amends.tools.errors import (
    AlreadyRunning,
    LedgerUnavailable,
    LedgerUncertain,
    NotConfirmed,
    OutsideWorkflow,
    WorkflowTurned,
)


@pytest.fixture
def memory() -> Iterator[Memory]:
    WORLD.clear()
    GATE.clear()
    with memory_runtime() as memory:
        yield memory
    GATE.set()


@pytest.fixture
def ledger(memory: Memory) -> MemoryLedger:
    return memory.ledger


# --- the straight way -----------------------------------------------------------------------------------------------


def test_a_scope_records_its_calls_and_claims_success(ledger: MemoryLedger) -> None:
    with workflow("w", agent="shop") as wf:
        assert charge("cus_1", 500)["id"] == "ch_1"
        assert wf.status() is Phase.RUNNING
    assert wf.outcome == Succeeded() == wf.result()
    assert ledger.statuses("w") == [
        "workflow STARTED", "shop.charge STARTED", "shop.charge SUCCEEDED", "workflow SUCCEEDED",
    ]  # fmt: skip


async def test_an_async_scope_does_the_same(ledger: MemoryLedger) -> None:
    async with workflow("w") as wf:
        assert await reserve("cup") == "r-cup"
    assert wf.outcome == Succeeded()
    assert ledger.statuses("w")[1:3] == ["shop.reserve STARTED", "shop.reserve SUCCEEDED"]


async def test_sync_and_async_tools_work_in_either_scope(ledger: MemoryLedger) -> None:
    with workflow("w1"):
        await reserve("cup")
        charge("cus_1", 1)
    async with workflow("w2"):
        charge("cus_1", 1)
        await asyncio.to_thread(charge, "cus_1", 2)
    assert ledger.phase("w1") is ledger.phase("w2") is Phase.SUCCEEDED


def test_a_function_is_run_as_a_workflow(ledger: MemoryLedger) -> None:
    @workflow.run(id="order-{number}", agent="shop")
    def sell(number: int) -> str:
        return charge("cus_1", number)["id"]

    @workflow.run(id=lambda number: f"later-{number}")
    async def sell_later(number: int) -> str:
        return await reserve(str(number))

    assert sell(7) == "ch_1"
    assert asyncio.run(sell_later(8)) == "r-8"
    assert ledger.phase("order-7") is ledger.phase("later-8") is Phase.SUCCEEDED


def test_a_function_whose_body_would_run_after_its_scope_is_no_workflow(ledger: MemoryLedger) -> None:
    def steps() -> Iterator[int]:
        charge("cus_1", 500)
        yield 1

    with pytest.raises(TypeError, match="generator"):
        workflow.run("w")(steps)

    async def later() -> None:
        charge("cus_1", 500)

    pending = []

    @workflow.run("w")
    def plain() -> object:
        pending.append(later())
        return pending[0]

    with pytest.raises(TypeError, match="awaitable"):
        plain()
    pending[0].close()
    assert WORLD == []
    assert ledger.statuses("w") == ["workflow STARTED", "workflow FAILED"]


def test_a_tools_own_exception_passes_untouched_and_fails_nothing_by_itself(ledger: MemoryLedger) -> None:
    with workflow("w") as wf:
        with pytest.raises(Declined, match="cus_1"):
            charge("cus_1", -1)
        charge("cus_2", 1)  # the agent found another way
    assert wf.outcome == Succeeded()
    assert "shop.charge FAILED" in ledger.statuses("w")


def test_leaving_by_an_exception_fails_the_workflow(ledger: MemoryLedger) -> None:
    error = ValueError("no stock")
    with pytest.raises(ValueError) as raised, workflow("w"):  # noqa: PT012
        charge("cus_1", 1)
        raise error
    assert raised.value is error
    assert ledger.statuses("w")[-1] == "workflow FAILED"
    assert ledger.phase("w") is Phase.TURNED


def test_the_key_is_the_same_for_the_body_and_for_code_deep_inside(ledger: MemoryLedger) -> None:
    contract = Contract("crm.update", Effect.COMPENSABLE)
    with workflow("w"), recorder.step("crm.update", {"a": 1}, contract=contract) as step:
        assert step.key.startswith("amends-do-")
        step.succeed()
    with pytest.raises(OutsideWorkflow):
        current_step()


# --- turns ----------------------------------------------------------------------------------------------------------


def test_a_turned_workflow_stops_its_agent_before_the_effect(ledger: MemoryLedger) -> None:
    with pytest.raises(WorkflowTurned), workflow("w") as wf:  # noqa: PT012
        charge("cus_1", 1)
        ledger.turn("w")
        charge("cus_1", 2)
    assert WORLD == ["charge cus_1 1"]
    assert isinstance(wf.outcome, Turned)
    assert "workflow FAILED" not in ledger.statuses("w")


def test_a_success_that_does_not_stand_is_told(ledger: MemoryLedger) -> None:
    with pytest.raises(WorkflowTurned), workflow("w"):  # noqa: PT012
        charge("cus_1", 1)
        ledger.turn("w")


def test_a_success_over_an_unknown_step_is_not_confirmed(
    ledger: MemoryLedger, caplog: pytest.LogCaptureFixture
) -> None:
    with workflow("w", confirm_within="50ms") as wf, pytest.raises(ConnectionResetError):
        charge("lost", 1)
    assert isinstance(wf.outcome, Unconfirmed)
    assert "not confirmed" in caplog.text
    assert ledger.phase("w") is Phase.FINISHING


def test_an_unconfirmed_success_raises_if_asked_to(ledger: MemoryLedger) -> None:
    with pytest.raises(NotConfirmed), workflow("w", confirm_within="50ms", confirm="raise"):  # noqa: PT012
        charge("cus_1", 1)
        ledger.answering = False


def test_a_zombies_echo_and_those_of_another_instance_are_not_believed(ledger: MemoryLedger) -> None:
    with workflow("w") as wf:
        charge("cus_1", 1)
        start = ledger.facts("w")[0]
        assert isinstance(start, WorkflowEvent)
        true = WorkflowEcho("w", 0, 0, Phase.RUNNING, folded_to=50)
        ledger.echo(true)
        ledger.echo(replace(true, phase=Phase.TURNED, epoch=1, folded_to=49))
        ledger.echo(replace(true, phase=Phase.TURNED, epoch=1, folded_to=60, workflow_offset=55))
        assert wf.status() is Phase.RUNNING
        ledger.echo(replace(true, epoch=1, phase=Phase.TURNED, folded_to=51))
        assert wf.status() is Phase.TURNED
        with pytest.raises(WorkflowTurned):
            charge("cus_1", 2)
        ledger.echo(replace(true, folded_to=99))  # so that the scope ends well


def test_an_echo_older_than_the_start_is_not_an_answer(memory: Memory) -> None:
    ledger = memory.ledger
    with workflow("other"):
        pass
    ledger.answering = False
    with pytest.raises(LedgerUnavailable), workflow("w"):  # noqa: PT012
        ledger.echo(WorkflowEcho("w", 0, 0, Phase.RUNNING, folded_to=1))
        charge("cus_1", 1)
    assert not WORLD


# --- the id is in use -----------------------------------------------------------------------------------------------


def test_an_id_in_use_is_refused_before_the_first_effect_and_nothing_is_done_to_it(ledger: MemoryLedger) -> None:
    with workflow("w"):
        charge("cus_1", 1)
        with pytest.raises(AlreadyRunning), workflow("w"):
            charge("cus_1", 2)
        with pytest.raises(AlreadyRunning), workflow("w"):
            pass
        with pytest.raises(ZeroDivisionError), workflow("w") as refused:
            _ = 1 / 0
        assert isinstance(refused.outcome, LeftOpen)
    assert WORLD == ["charge cus_1 1"]
    assert ledger.statuses("w").count("workflow FAILED") == 0
    assert ledger.phase("w") is Phase.SUCCEEDED


def test_a_resumed_workflow_gets_what_was_recorded_and_goes_on(ledger: MemoryLedger) -> None:
    with pytest.raises(KeyboardInterrupt), workflow("w"):  # noqa: PT012
        assert charge("cus_1", 1)["id"] == "ch_1"
        raise KeyboardInterrupt
    assert ledger.phase("w") is Phase.RUNNING  # neither success nor failure
    with workflow("w", on_existing="resume") as wf:
        assert charge("cus_1", 1)["id"] == "ch_1"
        assert charge("cus_1", 1)["id"] == "ch_2"
    assert wf.outcome == Succeeded()
    assert WORLD == ["charge cus_1 1", "charge cus_1 1"]


def test_to_resume_an_id_that_is_not_there_begins_it(ledger: MemoryLedger) -> None:
    with workflow("w", on_existing="resume") as wf:
        charge("cus_1", 1)
    assert wf.outcome == Succeeded()


def test_a_workflow_left_open_lives_by_the_lease_it_was_left_with(ledger: MemoryLedger) -> None:
    with workflow("w") as wf:
        charge("cus_1", 1)
        wf.leave_open("3d")
    assert isinstance(wf.outcome, LeftOpen)
    last = ledger.facts("w")[-1]
    assert isinstance(last, WorkflowEvent)
    assert (last.status, last.lease_ms) == (WorkflowStatus.HEARTBEAT, 3 * 86_400_000)
    with workflow("w", on_existing="resume") as wf:
        charge("cus_1", 1)
    assert wf.outcome == Succeeded()
    assert len(WORLD) == 1


# --- cancellation, timeouts, interruptions --------------------------------------------------------------------------


async def test_a_cancelled_task_group_leaves_its_open_calls_unknown(ledger: MemoryLedger) -> None:
    async def fail_after(other: asyncio.Task[str]) -> None:
        await asyncio.to_thread(wait_for, lambda: "reserve cup" in WORLD)
        raise ValueError("a sibling failed")

    with pytest.raises(ExceptionGroup):  # noqa: PT012
        async with workflow("w"), asyncio.TaskGroup() as group:
            slow_one = group.create_task(reserve("cup", 60))
            group.create_task(fail_after(slow_one))
    assert ledger.statuses("w") == [
        "workflow STARTED", "shop.reserve STARTED", "shop.reserve UNKNOWN", "workflow FAILED",
    ]  # fmt: skip


async def test_a_timeout_around_a_call_makes_it_unknown(ledger: MemoryLedger) -> None:
    async with workflow("w", confirm_within="50ms") as wf:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await reserve("cup", 60)
        with pytest.raises(TimeoutError):
            await reserve.options(timeout="10ms")("saucer", 60)
    assert ledger.statuses("w").count("shop.reserve UNKNOWN") == 2
    assert isinstance(wf.outcome, Unconfirmed)


async def test_a_cancelled_scope_is_left_to_its_lease(ledger: MemoryLedger) -> None:
    async def agent() -> None:
        async with workflow("w"):
            await reserve("cup", 60)

    task = asyncio.create_task(agent())
    await asyncio.to_thread(wait_for, lambda: "reserve cup" in WORLD)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger.statuses("w") == ["workflow STARTED", "shop.reserve STARTED", "shop.reserve UNKNOWN"]


def test_a_closed_coroutine_writes_what_it_knows_and_waits_for_nothing(ledger: MemoryLedger) -> None:
    async def agent() -> None:
        async with workflow("w"):
            await reserve("cup", 60)

    async def main() -> None:
        coroutine = agent()
        coroutine.send(None)  # into the body of the tool
        coroutine.close()

    asyncio.run(main())
    assert ledger.statuses("w") == ["workflow STARTED", "shop.reserve STARTED", "shop.reserve UNKNOWN"]


def test_ctrl_c_inside_a_call_makes_it_unknown_and_leaves_the_workflow_to_its_lease(ledger: MemoryLedger) -> None:
    contract = Contract("crm.update", Effect.COMPENSABLE)
    with pytest.raises(KeyboardInterrupt), workflow("w") as wf, recorder.step("crm.update", contract=contract):
        raise KeyboardInterrupt
    assert ledger.statuses("w") == ["workflow STARTED", "crm.update STARTED", "crm.update UNKNOWN"]
    assert isinstance(wf.outcome, LeftOpen)


def test_a_plain_call_that_runs_out_of_time_is_unknown_until_its_late_end(ledger: MemoryLedger) -> None:
    with workflow("w", confirm_within="50ms") as wf:
        with pytest.raises(TimeoutError):
            slow.options(timeout="20ms")()
        assert ledger.statuses("w")[-1] == "shop.slow UNKNOWN"
    assert isinstance(wf.outcome, Unconfirmed)
    GATE.set()  # the thread nobody could stop goes on, and its effect comes to light
    wait_for(lambda: "shop.slow SUCCEEDED" in ledger.statuses("w"))
    assert ledger.phase("w") is Phase.SUCCEEDED


def test_a_plain_call_within_its_time_is_what_it_is(ledger: MemoryLedger) -> None:
    GATE.set()
    with workflow("w"):
        assert slow.options(timeout="10s")() == "late"
    assert ledger.phase("w") is Phase.SUCCEEDED


# --- many at once ---------------------------------------------------------------------------------------------------


async def test_fifty_siblings_that_fail_at_once_are_one_failure(ledger: MemoryLedger) -> None:
    barrier = asyncio.Barrier(50)

    async def sibling(number: int) -> None:
        await reserve(f"item-{number}")
        await barrier.wait()
        raise ValueError(number)

    with pytest.raises(ExceptionGroup):  # noqa: PT012
        async with workflow("w"), asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(sibling(number))
    assert ledger.statuses("w").count("shop.reserve SUCCEEDED") == 50
    assert ledger.statuses("w").count("workflow FAILED") == 1
    assert len({step.step_id for step in ledger.steps("w")}) == 50


def test_threads_of_a_pool_work_in_the_scope_they_were_given(ledger: MemoryLedger) -> None:
    with workflow("w") as wf, ThreadPoolExecutor(8) as pool:
        bound = wf.bind(charge)
        assert len({r["key"] for r in pool.map(lambda n: bound("cus_1", n % 5), range(40))}) == 40
        copied = contextvars.copy_context()
        assert pool.submit(copied.run, charge, "cus_2", 1).result()["id"]
        with pytest.raises(OutsideWorkflow):
            pool.submit(charge, "cus_3", 1).result()
    assert ledger.phase("w") is Phase.SUCCEEDED
    assert len({step.attempt for step in ledger.steps("w")}) == 41


def test_a_call_inside_a_call_is_a_step_of_its_own(ledger: MemoryLedger) -> None:
    with workflow("w"):
        order("cus_1")
    assert ledger.statuses("w")[1:5] == [
        "shop.order STARTED", "shop.charge STARTED", "shop.charge SUCCEEDED", "shop.order SUCCEEDED",
    ]  # fmt: skip
    assert WORLD[0] == "order cus_1 for shop.order"


def test_scopes_that_generators_leave_in_any_order_end_no_other_and_bring_none_back(ledger: MemoryLedger) -> None:
    def agent(name: str) -> Iterator[None]:
        with workflow(name):
            yield

    for outside in (False, True):
        first, second = agent(f"a{outside}"), agent(f"b{outside}")
        with workflow(f"w{outside}") if outside else contextlib.nullcontext():
            next(first)
            next(second)
            first.close()  # type: ignore[attr-defined]
            charge("cus_1", 1)
            second.close()  # type: ignore[attr-defined]
            assert ledger.statuses(f"b{outside}").count("shop.charge SUCCEEDED") == 1
            if outside:
                charge("cus_1", 2)
                assert ledger.statuses("wTrue").count("shop.charge SUCCEEDED") == 1
            else:
                with pytest.raises(OutsideWorkflow):
                    charge("cus_1", 2)


def test_two_workflows_of_one_process_know_nothing_of_each_other(ledger: MemoryLedger) -> None:
    with workflow("good"):
        charge("cus_1", 1)
        with pytest.raises(ValueError), workflow("bad"):  # noqa: PT012
            charge("cus_2", 2)
            raise ValueError
        charge("cus_1", 3)
    assert ledger.phase("good") is Phase.SUCCEEDED
    assert ledger.phase("bad") is Phase.TURNED
    assert [s.workflow_id for s in ledger.all_facts()].count("bad") == 4


# --- the ledger is down ---------------------------------------------------------------------------------------------


def test_while_the_ledger_is_down_no_tool_is_called(ledger: MemoryLedger) -> None:
    with workflow("w") as wf:
        ledger.down()
        with pytest.raises(LedgerUnavailable) as refusal:
            charge("cus_1", 1)
        assert refusal.value.retry_safe
        ledger.up()
        wait_for(lambda: "shop.charge NOT_EXECUTED" in ledger.statuses("w"))
        charge("cus_1", 1)
    assert wf.outcome == Succeeded()
    assert WORLD == ["charge cus_1 1"]


def test_a_scope_is_not_opened_on_a_ledger_that_is_down(ledger: MemoryLedger) -> None:
    ledger.down()
    with pytest.raises(LedgerUnavailable), workflow("w"):
        pytest.fail("the block ran")
    ledger.lose_acknowledgements()
    with pytest.raises(LedgerUncertain), workflow("w"):
        pytest.fail("the block ran")


def test_a_claim_never_overtakes_what_the_agent_was_told_was_not_done(ledger: MemoryLedger) -> None:
    def lose_the_intent(fact: StepEvent | WorkflowEvent) -> Write | None:
        return Uncertain("?") if isinstance(fact, StepEvent) and fact.status is StepStatus.STARTED else None

    with workflow("w") as wf:
        ledger.fault = lose_the_intent
        with pytest.raises(LedgerUncertain):
            charge("cus_1", 1)
    assert ledger.statuses("w")[-3:] == ["shop.charge STARTED", "shop.charge NOT_EXECUTED", "workflow SUCCEEDED"]
    assert wf.outcome == Succeeded()
    assert not WORLD


def test_an_outcome_that_cannot_be_written_is_owed_and_holds_up_further_calls(ledger: MemoryLedger) -> None:
    with workflow("w") as wf:
        charge("cus_1", 1)
        ledger.fault = lambda fact: Unwritten("down") if getattr(fact, "output_payload", None) else None
        assert charge("cus_1", 2)["id"] == "ch_2"  # handed over all the same
        with pytest.raises(LedgerUnavailable, match="earlier call"):
            charge("cus_1", 3)
        ledger.up()
        wait_for(lambda: ledger.statuses("w").count("shop.charge SUCCEEDED") == 2)
        charge("cus_1", 4)
    assert wf.outcome == Succeeded()
    assert WORLD == ["charge cus_1 1", "charge cus_1 2", "charge cus_1 4"]


def test_a_failure_of_the_agent_is_written_when_the_ledger_is_back(ledger: MemoryLedger) -> None:
    with pytest.raises(ValueError), workflow("w"):  # noqa: PT012
        charge("cus_1", 1)
        ledger.down()
        raise ValueError
    assert ledger.phase("w") is Phase.RUNNING
    ledger.up()
    wait_for(lambda: ledger.phase("w") is Phase.TURNED)


# --- being alive ----------------------------------------------------------------------------------------------------


def test_a_silent_agent_is_alive_and_one_that_left_is_not(ledger: MemoryLedger) -> None:
    def beats() -> int:
        return ledger.statuses("w").count("workflow HEARTBEAT")

    with workflow("w", lease="150ms"):
        wait_for(lambda: beats() >= 3)
    after = beats()
    with workflow("other", lease="60ms"):
        wait_for(lambda: ledger.statuses("other").count("workflow HEARTBEAT") >= 3)
    assert beats() == after


def test_an_agent_inside_a_long_call_is_alive(ledger: MemoryLedger) -> None:
    with workflow("w", lease="900ms") as wf:
        thread = threading.Thread(target=wf.bind(slow))
        thread.start()
        wait_for(lambda: ledger.statuses("w").count("workflow HEARTBEAT") >= 2)
        GATE.set()
        thread.join()


def test_a_heartbeat_names_the_attempt_and_carries_no_payload(ledger: MemoryLedger) -> None:

    class Process:
        def __init__(self) -> None:
            self.ledger = ledger

        def next_attempt(self) -> str:
            return "a-1"

        def hurry(self, lease_ms: int) -> None:
            pass

    scope = Scope(Opening(TERMS, "i"), Process())
    step = StepEvent("order-1", "s", "a-1", 0, StepStatus.STARTED, "t", input_payload=b"1", contract=b"2", lease_ms=900)
    assert isinstance(scope._written(step, Acknowledged(1)), Acknowledged)
    scope._noted(step)
    opened_at_ms = scope._open["a-1"].beat_at_ms
    assert scope.beats(opened_at_ms + 299, 0) == []
    (beat,) = scope.beats(opened_at_ms + 300, 0)
    assert isinstance(beat, StepEvent)
    assert (beat.status, beat.attempt, beat.input_payload, beat.contract) == (StepStatus.HEARTBEAT, "a-1", None, None)
    assert scope.beats(opened_at_ms + 301, 0) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_does_not_act_for_its_parents_workflow_and_can_run_its_own() -> None:
    script = """
import os, sys
from amends.producers import workflow
from amends.producers.testing import memory_runtime
from amends.tools.errors import Rejected
from tests.core.agent_tools import charge
with memory_runtime() as memory:
    with workflow("w") as wf:
        charge("cus_1", 1)
        parents = memory.runtime.instance
        child = os.fork()
        if child == 0:
            assert memory.runtime.instance != parents
            try:
                charge("cus_1", 2)
                os._exit(1)
            except Rejected:
                pass
            with workflow("of the child", lease="900ms") as own:
                charge("cus_1", 3)
                while "workflow HEARTBEAT" not in memory.ledger.statuses("of the child"):
                    pass
            os._exit(0 if own.outcome is not None and memory.ledger.statuses("of the child")[-1] else 2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert memory.ledger.statuses("w")[-1] == "workflow SUCCEEDED"
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], timeout=60, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def test_nothing_is_held_of_a_workflow_that_is_over(memory: Memory) -> None:
    for number in range(20):
        with workflow(f"w-{number}"):
            charge("cus_1", 1)
    assert not memory.runtime._heart._scopes  # type: ignore[union-attr]
    assert not any(memory.ledger._listeners.values())


# --- modes ----------------------------------------------------------------------------------------------------------


def test_off_is_the_bare_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENDS_MODE", "off")
    WORLD.clear()
    with workflow("w") as wf:
        assert charge("cus_1", 1)["key"].startswith("amends-bare-")
        with recorder.step("crm.update") as step:
            step.succeed()
    assert isinstance(wf.outcome, LeftOpen)


@pytest.fixture
def observing() -> Iterator[MemoryLedger]:
    WORLD.clear()
    with memory_runtime(ProducerSettings(mode="observe")) as memory:
        yield memory.ledger


async def test_observing_records_and_never_refuses(observing: MemoryLedger) -> None:
    with workflow("w") as wf:
        charge("cus_1", 1)
        observing.turn("w")
        charge("cus_1", 2)
        with pytest.raises(Declined):
            charge("cus_1", -1)
        await reserve("cup")
        with recorder.step("crm.update") as step:
            step.succeed(1)
    start = observing.facts("w")[0]
    assert isinstance(start, WorkflowEvent)
    assert start.attributes["mode"] == "observe"
    assert observing.statuses("w").count("shop.charge SUCCEEDED") == 2
    assert wf.outcome is not None
    async with workflow("w2"):
        await reserve("saucer")
    wait_for(lambda: observing.phase("w2") is Phase.SUCCEEDED)


def test_observing_lets_no_fault_of_the_ledger_reach_the_agent(
    observing: MemoryLedger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    observing.down()
    with workflow("w"):
        charge("cus_1", 1)
    observing.up()
    with workflow("w2"):
        charge("cus_1", 2)
        observing.down()
        charge("cus_1", 3)
        observing.up()
        wait_for(lambda: observing.statuses("w2").count("shop.charge SUCCEEDED") == 2)
    with pytest.raises(ValueError), workflow("w3"):
        raise ValueError
    assert [effect for effect in WORLD if effect.startswith("charge")] == [f"charge cus_1 {n}" for n in (1, 2, 3)]


async def test_observing_takes_neither_a_cancelled_nor_a_waiting_agent_for_one_that_ended(
    observing: MemoryLedger,
) -> None:
    with workflow("left") as left:
        charge("cus_1", 1)
        left.leave_open("3d")
    with pytest.raises(KeyboardInterrupt), workflow("stopped") as stopped:
        raise KeyboardInterrupt
    with pytest.raises(asyncio.CancelledError):
        async with workflow("cancelled") as cancelled:
            raise asyncio.CancelledError
    for wf in (left, stopped, cancelled):
        assert isinstance(wf.outcome, LeftOpen)
        assert observing.phase(wf.id) is Phase.RUNNING
    beats = [f for f in observing.facts("left") if isinstance(f, WorkflowEvent)]
    assert [(b.status, b.lease_ms) for b in beats][1:] == [(WorkflowStatus.HEARTBEAT, 3 * 86_400_000)]


# --- secrets ---


def test_a_secret_is_in_no_fact_wherever_its_error_comes_out(ledger: MemoryLedger) -> None:
    with pytest.raises(ValueError, match="sk_live_1"), workflow("w"):
        login_twice("sk_live_1")
    facts = ledger.facts("w")
    assert [fact.status.value for fact in facts if isinstance(fact, WorkflowEvent)] == ["STARTED", "FAILED"]
    assert len(ledger.steps("w")) == 4
    assert not any(b"sk_live_1" in encode(fact) for fact in facts)


# --- the recorder ---------------------------------------------------------------------------------------------------


async def test_a_recorded_step_ends_as_it_says(ledger: MemoryLedger) -> None:
    contract = Contract("crm.update", Effect.COMPENSABLE)
    with workflow("w", confirm_within="50ms"):
        with recorder.step("crm.update", {"n": 1}, contract=contract) as step:
            step.succeed({"id": 1}, external_resource_ids={"row": "1"})
        async with recorder.step("crm.update", {"n": 2}, contract=contract) as step:
            step.refuse("404")
        with recorder.step("crm.update", {"n": 3}, contract=contract):
            pass
        with pytest.raises(ValueError):
            async with recorder.step("crm.update", {"n": 4}):
                raise ValueError
    ends = [s.status.value for s in ledger.steps("w") if s.status is not StepStatus.STARTED]
    assert ends == ["SUCCEEDED", "FAILED", "UNKNOWN", "UNKNOWN"]


def test_a_recorded_step_that_was_made_before_is_not_made_again_unseen(ledger: MemoryLedger) -> None:
    with workflow("w"):
        with recorder.step("crm.update", call_id="a") as step:
            step.succeed(5)
        with pytest.raises(AlreadyDone) as done, recorder.step("crm.update", call_id="a"):
            pytest.fail("the block ran")
        assert done.value.output == 5
        with recorder.step("crm.update", call_id="a", reuse=True) as step:
            assert (step.recorded, step.output) == (True, 5)


def test_a_recorded_step_outside_a_workflow_is_refused() -> None:
    with pytest.raises(OutsideWorkflow), recorder.step("crm.update"):
        pytest.fail("the block ran")


# --- settings ---


def test_settings_come_from_the_environment_and_unknown_ones_are_refused() -> None:
    given = {"AMENDS_MODE": "observe", "AMENDS_PRODUCER__LEASE_MS": "45s", "AMENDS_PRODUCER__CONFIRM_WITHIN_MS": "700"}
    settings = load_settings(ProducerSettings, "producer", env=given)
    assert (settings.mode, settings.lease_ms, settings.confirm_within_ms) == ("observe", 45_000, 700)
    with pytest.raises(SettingsWrong, match=r"(?i)lease_ms"):
        load_settings(ProducerSettings, "producer", env={"AMENDS_PRODUCER__LEASE": "45s"})
    with pytest.raises(SettingsWrong):
        load_settings(ProducerSettings, "producer", env={"AMENDS_PRODUCER__OUTPUT_BYTES_MAX": "5000000"})


def test_a_lease_and_a_deadline_travel_in_the_start(ledger: MemoryLedger) -> None:
    with workflow("w", lease="5m", deadline="2h"):
        pass
    start = ledger.facts("w")[0]
    assert isinstance(start, WorkflowEvent)
    assert (start.lease_ms, start.deadline_ms) == (300_000, 7_200_000)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["", "\ud800", "x" * 513, None, 5])
def test_an_id_that_is_none_is_refused(id: object) -> None:
    with pytest.raises(ValueError, match="workflow's id"):
        workflow(id)  # type: ignore[arg-type]


def test_words_that_mean_nothing_are_refused(memory: Memory) -> None:
    with pytest.raises(ValueError):
        workflow("w", on_existing="overwrite")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'warn' nor 'raise'"):
        workflow("w", confirm="maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unit"), workflow("w", lease="30"):
        pass
    with workflow("w") as wf, pytest.raises(RuntimeError, match="has not ended"):
        wf.result()
    with pytest.raises(RuntimeError, match="entered once"):
        wf.__enter__()
