"""Whatever odd way a handler ends is an answer, and the worker lives (C21, C22, C23)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from amends.compensators.effects import (
    AskProbe,
    AskVerify,
    CallForward,
    CallUndo,
    IsStillThere,
    IsUndone,
    NobodyKnows,
    NotBegun,
    NotDeployed,
    Refused,
    Succeeded,
    Uncertain,
)
from amends.compensators.handlers import Handlers, PastStep, StepGone, StepOutOfReach
from amends.compensators.processes import ModulesBroken, ProcessPool
from amends.compensators.watchdog import EXIT_CODE, LoopWatchdog
from amends.schemas.commands import ProbeCommand, ResendCommand, UndoCommand, UndoEntry
from amends.schemas.contract import Idempotency
from amends.schemas.facts import Decision
from amends.schemas.payload import decode_payload, encode_payload
from amends.tools.registry import HandlerRegistry
from amends.tools.step import Step

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODULE = "tests.core.odd_tools"
ROOT = Path(__file__).resolve().parents[2]
LEASE_MS = 20_000
BOTH = pytest.mark.parametrize("tool", ["odd.plain", "odd.coroutine"])


@pytest.fixture(scope="module")
def tools() -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.load([MODULE])
    return registry


@pytest.fixture
def watchdog() -> Iterator[LoopWatchdog]:
    stuck: list[str] = []
    watchdog = LoopWatchdog(stuck.append)
    yield watchdog
    watchdog.stop()
    assert stuck == []


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[ProcessPool]:
    pool = ProcessPool([MODULE], 1)
    await pool.start()
    yield pool
    await pool.close()


@pytest.fixture
def handlers(tools: HandlerRegistry, pool: ProcessPool, watchdog: LoopWatchdog) -> Handlers:
    return Handlers(tools, pool, watchdog)


@dataclass
class Source:
    """A step as a ledger would have it."""

    how: str = "none"
    contract: bytes | None = None
    error: Exception | None = None
    asked: tuple[int, int, str] | None = None

    async def past_step(self, started_offset: int, outcome_offset: int, key: str) -> PastStep:
        self.asked = (started_offset, outcome_offset, key)
        if self.error is not None:
            raise self.error
        return PastStep(Step("w", "s1", "t", "", key, {"how": self.how}), self.contract)


def undo_of(
    tool: str, how: str, lease_ms: int = LEASE_MS, *, begin_within_ms: int | None = None, **more: Any
) -> CallUndo:
    entry = entry_of(tool, how, **more)
    command = UndoCommand("w", 0, 1, "odd", 5, (entry,))
    return CallUndo(command, entry, lease_ms // 2 if begin_within_ms is None else begin_within_ms, lease_ms)


def entry_of(tool: str, how: str, **more: Any) -> UndoEntry:
    arguments = encode_payload({"how": how})
    terms: dict[str, Any] = {"handler": tool, "arguments": arguments, "started_offset": 3, "outcome_offset": 4}
    return UndoEntry(
        step_id="s1", tool_name=tool, generation=0, attempt=1, key="undo-key", lease_ms=LEASE_MS, settle_ms=1,
        idempotency=Idempotency.KEY, **(terms | more),
    )  # fmt: skip


def verify_of(tool: str, how: str) -> AskVerify:
    entry = entry_of(tool, how, verify=tool)
    return AskVerify(UndoCommand("w", 0, 1, "odd", 5, (entry,)), entry, LEASE_MS)


def probe_of(tool: str) -> AskProbe:
    return AskProbe(ProbeCommand("w", 0, 1, "odd", 5, "s1", tool, tool, 1, ("a",), LEASE_MS, "do-key", 3))


def resend_of(tool: str) -> CallForward:
    command = ResendCommand(
        "w", 0, 1, "odd", 5, "s1", tool, 1, ("a",), "do-key", LEASE_MS, 1, Idempotency.KEY, 3
    )  # fmt: skip
    return CallForward(command, LEASE_MS // 2, LEASE_MS)


# --- undo -----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("how", "nothing"), [("none", False), ("plain", False), ("undone", False), ("already", False), ("nothing", True)]
)
async def test_an_undo_that_ran_to_its_end_succeeded(handlers: Handlers, tool: str, how: str, nothing: bool) -> None:
    answer = await handlers.call_undo(undo_of(tool, how), Source())
    assert isinstance(answer, Succeeded)
    assert answer.nothing == nothing


@BOTH
@pytest.mark.parametrize(
    ("how", "retryable", "key_refused"),
    [("refused", True, False), ("over", False, False), ("not undone", False, True)],
)
async def test_only_a_declared_refusal_says_that_nothing_happened(
    handlers: Handlers, tool: str, how: str, retryable: bool, key_refused: bool
) -> None:
    answer = await handlers.call_undo(undo_of(tool, how), Source())
    assert isinstance(answer, Refused)
    assert (answer.retryable, answer.key_refused) == (retryable, key_refused)


@BOTH
@pytest.mark.parametrize(
    "how",
    [
        "raises", "rude", "wordless", "interrupt", "cancelled", "exit", "stop", "still there", "unknown", "present",
        "absent", "error value", "generator", "awaitable",
    ],
)  # fmt: skip
async def test_every_other_end_is_nobody_knows_and_the_worker_lives(handlers: Handlers, tool: str, how: str) -> None:
    answer = await handlers.call_undo(undo_of(tool, how), Source())
    assert isinstance(answer, Uncertain)
    assert len(answer.error.message) <= 500
    again = await handlers.call_undo(undo_of(tool, "none"), Source())
    assert isinstance(again, Succeeded)


async def test_a_generator_is_no_undo_that_ran(handlers: Handlers) -> None:
    assert isinstance(await handlers.call_undo(undo_of("odd.generator", "none"), Source()), Uncertain)


@BOTH
async def test_a_huge_value_is_cut(handlers: Handlers, tool: str) -> None:
    answer = await handlers.call_undo(undo_of(tool, "huge"), Source())
    assert isinstance(answer, Succeeded)
    assert answer.output_payload is not None
    assert len(answer.output_payload) < 10_000


@BOTH
async def test_an_undo_has_its_key_and_its_step_at_hand(handlers: Handlers, tool: str) -> None:
    answer = await handlers.call_undo(undo_of(tool, "key"), Source())
    assert isinstance(answer, Succeeded)
    assert answer.output_payload is not None
    said = decode_payload(answer.output_payload)
    assert (said["key"], said["step"]) == ("undo-key", "s1")
    assert (said["process"] == os.getpid()) == (tool == "odd.coroutine"), "plain functions run elsewhere"


@BOTH
async def test_one_that_hangs_is_ended_at_its_lease_and_the_next_one_runs(handlers: Handlers, tool: str) -> None:
    answer = await handlers.call_undo(undo_of(tool, "hang", lease_ms=300), Source())
    assert isinstance(answer, Uncertain)
    assert isinstance(await handlers.call_undo(undo_of(tool, "none"), Source()), Succeeded)


async def test_a_fork_that_a_handler_leaves_behind_answers_no_question(handlers: Handlers) -> None:
    for how in ("forks", "refused", "plain", "forks", "refused", "none"):
        answer = await handlers.call_undo(undo_of("odd.plain", how), Source())
        if how == "refused":
            assert isinstance(answer, Refused)
        else:
            assert isinstance(answer, Succeeded)
            assert not answer.nothing
        await asyncio.sleep(0.05)


async def test_a_process_that_dies_is_an_answer_and_is_replaced(handlers: Handlers, pool: ProcessPool) -> None:
    before = pool.killed
    answer = await handlers.call_undo(undo_of("odd.plain", "die"), Source())
    assert isinstance(answer, Uncertain)
    assert pool.killed == before + 1
    assert isinstance(await handlers.call_undo(undo_of("odd.plain", "none"), Source()), Succeeded)


async def test_one_that_finds_no_free_process_in_time_is_not_begun(handlers: Handlers) -> None:
    hanging = asyncio.create_task(handlers.call_undo(undo_of("odd.plain", "hang", lease_ms=700), Source()))
    await asyncio.sleep(0)
    answer = await handlers.call_undo(undo_of("odd.plain", "none", lease_ms=200), Source())
    assert isinstance(answer, NotBegun)
    assert isinstance(await hanging, Uncertain)


@BOTH
async def test_one_whose_time_is_up_is_not_begun(handlers: Handlers, tool: str) -> None:
    answer = await handlers.call_undo(undo_of(tool, "none", begin_within_ms=0), Source())
    assert isinstance(answer, NotBegun)


@pytest.mark.parametrize("how", ["stubborn", "holds the loop"])
async def test_a_coroutine_that_does_not_end_with_its_lease_ends_the_worker(tools: HandlerRegistry, how: str) -> None:
    stuck = threading.Event()
    said: list[str] = []

    def on_stuck(reason: str) -> None:
        said.append(reason)
        stuck.set()

    watchdog = LoopWatchdog(on_stuck, grace_ms=200)
    try:
        await Handlers(tools, None, watchdog).call_undo(undo_of("odd.coroutine", how, lease_ms=100), Source())
        assert stuck.is_set()
        assert "odd.coroutine" in said[0]
    finally:
        watchdog.stop()


# --- what is not there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "effect",
    [
        undo_of("odd.renamed", "none"),
        undo_of("odd.bare", "none"),
        undo_of("odd.plain", "none", kind="http"),
        undo_of("odd.plain", "none", arguments=b'{"who": "x"}'),
        undo_of("odd.plain", "none", arguments=b"[1]"),
        undo_of("odd.plain", "none", arguments=b"\xff"),
        undo_of("odd.coroutine", "none", arguments=b'{"how": 7}'),
    ],
)
async def test_a_handler_that_is_not_there_or_cannot_take_what_was_recorded_is_not_guessed(
    handlers: Handlers, effect: CallUndo
) -> None:
    answer = await handlers.call_undo(effect, Source())
    assert isinstance(answer, NotDeployed)
    assert answer.error.message


# --- verify, probe, call --------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("undone", IsUndone),
        ("already", IsUndone),
        ("nothing", IsUndone),
        ("still there", IsStillThere),
        ("unknown", NobodyKnows),
        ("none", NobodyKnows),
        ("plain", NobodyKnows),
        ("raises", NobodyKnows),
        ("exit", NobodyKnows),
        ("present", NobodyKnows),
    ],
)
async def test_a_verify_says_undone_only_in_so_many_words(
    handlers: Handlers, tool: str, how: str, kind: type[object]
) -> None:
    assert isinstance(await handlers.ask_verify(verify_of(tool, how), Source()), kind)


@BOTH
@pytest.mark.parametrize(
    ("how", "decision"),
    [
        ("present", Decision.PRESENT),
        ("absent", Decision.ABSENT),
        ("unknown", Decision.UNKNOWN),
        ("none", Decision.UNKNOWN),
        ("plain", Decision.UNKNOWN),
        ("rude", Decision.UNKNOWN),
        ("undone", Decision.UNKNOWN),
    ],
)
async def test_a_probe_is_given_the_step_and_never_rounds(
    handlers: Handlers, tools: HandlerRegistry, tool: str, how: str, decision: Decision
) -> None:
    declared = tools.tool(tool)
    assert declared is not None
    source = Source(how, contract=declared.contract_bytes)
    answer = await handlers.ask_probe(probe_of(tool), source)
    assert answer.decision is decision
    assert source.asked == (3, -1, "do-key")
    if decision is Decision.PRESENT:
        assert answer.output_payload is not None
        assert answer.undo_arguments is not None
        assert decode_payload(answer.output_payload) == {"id": "ch_9"}
        assert decode_payload(answer.undo_arguments) == {"how": "present"}


@pytest.mark.parametrize("tool", ["odd.renamed", "odd.generator"])
async def test_a_probe_that_is_not_deployed_is_unknown_with_that_reason(handlers: Handlers, tool: str) -> None:
    answer = await handlers.ask_probe(probe_of(tool), Source())
    assert answer.decision is Decision.UNKNOWN
    assert answer.error is not None
    assert tool in answer.error.message


@BOTH
async def test_a_call_is_sent_again_with_its_own_key_from_its_record(
    handlers: Handlers, tools: HandlerRegistry, tool: str
) -> None:
    declared = tools.tool(tool)
    assert declared is not None
    answer = await handlers.call_forward(resend_of(tool), Source("again", contract=declared.contract_bytes))
    assert isinstance(answer, Succeeded)
    assert answer.output_payload is not None
    assert answer.undo_arguments is not None
    assert decode_payload(answer.output_payload) == {"id": "again-do-key"}
    assert decode_payload(answer.undo_arguments) == {"how": "again"}


async def test_a_call_that_cannot_be_sent_again_is_not(handlers: Handlers) -> None:
    assert isinstance(await handlers.call_forward(resend_of("odd.bare"), Source()), NotDeployed)
    assert isinstance(await handlers.call_forward(resend_of("odd.renamed"), Source()), NotDeployed)


async def test_a_step_that_is_gone_is_for_a_person_and_one_out_of_reach_is_for_later(handlers: Handlers) -> None:
    gone = await handlers.call_forward(resend_of("odd.plain"), Source(error=StepGone("retention")))
    assert isinstance(gone, NotDeployed)
    later = await handlers.call_forward(resend_of("odd.plain"), Source(error=StepOutOfReach("no broker")))
    assert isinstance(later, NotBegun)


# --- the pool -------------------------------------------------------------------------------------------------------


async def test_modules_that_do_not_load_are_an_error_at_start() -> None:
    with pytest.raises(ModulesBroken, match="no_such_module"):
        await ProcessPool(["no_such_module"], 2).start()


_HANGING = f"""
import asyncio, os, time
from amends.compensators.clock import lease_clock_ms
from amends.compensators.invocation import Invocation
from amends.compensators.processes import ProcessPool
from amends.tools.handlers import Role
from amends.tools.runner import RunningStep

async def main():
    pool = ProcessPool(["{MODULE}"], 1)
    await pool.start()
    now_ms = lease_clock_ms()
    running = RunningStep("w", "s", "1", "k", "odd.plain")
    asked = Invocation(
        Role.UNDO, "odd.plain", running, {{"how": "hang"}}, None, None, now_ms + 9_000, now_ms + 30_000
    )
    task = asyncio.create_task(pool.run(asked))
    await asyncio.sleep(0.2)
    print(*[child.pid for child in pool._children], flush=True)
    await task

asyncio.run(main())
"""


async def test_a_worker_that_is_killed_takes_its_processes_with_it() -> None:
    command = [sys.executable, "-c", _HANGING]
    worker = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)  # noqa: ASYNC220 - it is killed, by hand
    try:
        assert worker.stdout is not None
        child = psutil.Process(int(await asyncio.to_thread(worker.stdout.readline)))
        worker.kill()
        await asyncio.to_thread(child.wait, 10)
        assert not child.is_running()
    finally:
        worker.kill()
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()


async def test_the_watchdog_ends_the_process_and_says_where_it_was_stuck() -> None:
    program = """
import time
from amends.compensators.clock import lease_clock_ms
from amends.compensators.watchdog import EXIT_CODE, LoopWatchdog
with LoopWatchdog(grace_ms=50).watching(lease_clock_ms(), "the undo of odd"):
    time.sleep(30)
"""
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, cwd=ROOT
    )
    assert ended.returncode == EXIT_CODE
    assert "the undo of odd did not end" in ended.stderr
    assert 'File "<string>", line 6' in ended.stderr
