"""Before- and after-images in an agent's calls: what is read when, what travels in which fact, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from amends.producers import recorder, workflow
from amends.producers.effects import Unwritten, Write
from amends.producers.testing import MemoryLedger, memory_runtime
from amends.schemas.contract import COMPARE, Contract, Effect, UndoTerms
from amends.schemas.facts import StepEvent, StepStatus, WorkflowEvent
from amends.schemas.payload import decode_payload, encode_payload
from amends.tools import OutcomeUnknown, Rejected, compensable, reversible

ROWS: dict[str, Any] = {}
READS: list[str] = []
BROKEN: list[BaseException] = []


def read(name: str) -> Any:
    READS.append(name)
    if BROKEN:
        raise BROKEN[0]
    return ROWS.get(name)


@reversible("rows.put", idempotency="natural")
def put(name: str, value: Any, *, fails: bool = False) -> str:
    ROWS[name] = value
    if fails:
        raise ConnectionResetError
    return "done"


put.capture(read)


@put.restore(arguments={"name": "input.name", "row": "captured"})
def put_back(name: str, row: Any = None) -> None:
    ROWS[name] = row


@reversible("rows.put_later")
async def put_later(name: str, value: Any) -> None:
    ROWS[name] = value


@put_later.capture
async def read_later(name: str) -> Any:
    await asyncio.sleep(0)
    return read(name)


put_later.restore(arguments={"name": "input.name", "row": "captured"})(put_back)


@reversible("rows.put_declared")
async def put_declared(name: str, value: Any, *, fails: bool = False) -> None:
    ROWS[name] = value


put_declared.capture(writes="input.value")(read)  # a plain function: it runs in a thread
put_declared.restore(arguments={"name": "input.name", "row": "captured"})(put_back)


@compensable("rows.append")
def append(name: str, value: Any) -> None:
    ROWS[name] = [*ROWS[name], value]


append.capture(read)
append.undo(arguments={"name": "input.name", "row": "captured"})(put_back)


@pytest.fixture
def ledger() -> Iterator[MemoryLedger]:
    ROWS.clear()
    READS.clear()
    BROKEN.clear()
    ROWS["a"] = {"city": "Rome"}
    with memory_runtime() as memory:
        yield memory.ledger


def _decoded(data: bytes | None) -> Any:
    assert data is not None
    return decode_payload(data)


def test_the_intent_carries_what_was_there_before_and_the_outcome_what_is_there_after(ledger: MemoryLedger) -> None:
    with workflow("w"):
        assert put("a", {"city": "Bonn"}) == "done"
    started, succeeded = ledger.steps("w")
    assert _decoded(started.captured) == {"city": "Rome"}
    assert _decoded(succeeded.written) == {"city": "Bonn"}
    assert _decoded(started.undo_arguments) == {"name": "a", "row": {"city": "Rome"}}
    assert succeeded.undo_arguments == started.undo_arguments
    assert READS == ["a", "a"]


def test_a_row_that_was_not_there_is_a_before_image_too(ledger: MemoryLedger) -> None:
    with workflow("w"):
        put("new", 1)
    started, succeeded = ledger.steps("w")
    assert _decoded(started.captured) is None
    assert _decoded(started.undo_arguments) == _decoded(succeeded.undo_arguments) == {"name": "new"}


async def test_an_async_tool_awaits_its_capture(ledger: MemoryLedger) -> None:
    async with workflow("w"):
        await put_later("a", 1)
    started, succeeded = ledger.steps("w")
    assert (_decoded(started.captured), _decoded(succeeded.written)) == ({"city": "Rome"}, 1)


async def test_what_a_tool_says_that_it_writes_is_not_read_again(ledger: MemoryLedger) -> None:
    async with workflow("w"):
        await put_declared("a", "Bonn")
    assert (READS, _decoded(ledger.steps("w")[1].written)) == (["a"], "Bonn")


def test_an_undo_that_does_not_compare_needs_no_after_image(ledger: MemoryLedger) -> None:
    ROWS["l"] = [1]
    with workflow("w"):
        append("l", 2)
    assert (READS, ledger.steps("w")[1].written) == (["l"], None)


def test_where_the_before_image_can_t_be_read_nothing_is_called_and_nothing_written(ledger: MemoryLedger) -> None:
    BROKEN.append(ConnectionError("no route"))
    with workflow("w"):
        with pytest.raises(Rejected, match=r"could not be read .*no route.*The tool was not called") as caught:
            put("a", 1)
        assert caught.value.__cause__ is BROKEN[0]
        BROKEN.clear()
        assert put("a", 1) == "done"
    assert [step.status for step in ledger.steps("w")] == [StepStatus.STARTED, StepStatus.SUCCEEDED]


def test_a_call_by_id_that_could_not_be_captured_can_be_made_again(ledger: MemoryLedger) -> None:
    BROKEN.append(ConnectionError("no route"))
    with workflow("w"):
        with pytest.raises(Rejected):
            put.options(call_id="c1")("a", 1)
        BROKEN.clear()
        assert put.options(call_id="c1")("a", 1) == "done"


@pytest.mark.parametrize(("image", "why"), [("x" * 300_000, "at most 262144"), (object(), "no form")])
def test_a_before_image_that_can_t_be_recorded_refuses_the_call(ledger: MemoryLedger, image: Any, why: str) -> None:
    ROWS["a"] = image
    with workflow("w"), pytest.raises(Rejected, match=why):
        put("a", 1)
    assert (ROWS["a"], ledger.steps("w")) == (image, [])


def test_where_the_after_image_can_t_be_read_the_success_stands_and_says_so(ledger: MemoryLedger) -> None:
    class Once(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            if len(READS) > 1:
                raise ConnectionError("no route")
            return 0

    rows = globals()["ROWS"]
    globals()["ROWS"] = Once()
    try:
        with workflow("w"):
            assert put("a", 1) == "done"
    finally:
        globals()["ROWS"] = rows
    succeeded = ledger.steps("w")[1]
    assert (succeeded.status, succeeded.written) == (StepStatus.SUCCEEDED, None)
    assert "no route" in succeeded.attributes["written_unread"]


async def test_a_cancelled_capture_leaves_nothing_behind(ledger: MemoryLedger) -> None:
    BROKEN.append(asyncio.CancelledError())
    async with workflow("w"):
        with contextlib.suppress(asyncio.CancelledError):
            await put_later("a", 1)
        BROKEN.clear()
        await put_later("a", 1)
    assert [step.status for step in ledger.steps("w")] == [StepStatus.STARTED, StepStatus.SUCCEEDED]


def test_a_step_keeps_the_image_of_its_first_attempt(ledger: MemoryLedger) -> None:
    with workflow("w"):
        with pytest.raises(ConnectionResetError):
            put.options(call_id="c")("a", 1, fails=True)
        put.options(call_id="c")("a", 1)
    first, unknown, second, succeeded = ledger.steps("w")
    assert (first.step_id, unknown.status) == (second.step_id, StepStatus.UNKNOWN)
    assert first.captured == second.captured == encode_payload({"city": "Rome"})
    assert (_decoded(succeeded.undo_arguments)["row"], _decoded(succeeded.written)) == ({"city": "Rome"}, 1)


def test_an_agent_that_resumes_keeps_the_image_of_before_it_was_killed(ledger: MemoryLedger) -> None:
    with workflow("w") as wf:
        with pytest.raises(ConnectionResetError):
            put("a", 1, fails=True)
        wf.leave_open("3d")
    ROWS["a"] = 1
    with workflow("w", on_existing="resume"), pytest.raises(ConnectionResetError):
        put("a", 1, fails=True)
    first, _, second, _ = ledger.steps("w")
    assert (first.step_id, first.captured) == (second.step_id, second.captured)
    assert READS == ["a"]


def test_a_call_that_was_surely_not_made_is_a_new_step_with_an_image_of_its_own(ledger: MemoryLedger) -> None:
    def refuses(fact: StepEvent | WorkflowEvent) -> Write | None:
        return Unwritten("full") if isinstance(fact, StepEvent) and fact.status is StepStatus.STARTED else None

    with workflow("w"):
        ledger.fault = refuses
        with pytest.raises(Exception, match="could not be written"):
            put.options(call_id="c")("a", 1)
        ledger.up()
        ROWS["a"] = "somebody else's"
        put.options(call_id="c")("a", 1)
    started = [step for step in ledger.steps("w") if step.status is StepStatus.STARTED]
    assert [_decoded(step.captured) for step in started] == ["somebody else's"]


def test_a_call_of_unknown_outcome_that_has_no_image_is_not_made_again(ledger: MemoryLedger) -> None:
    """Its tool began to capture with a later version: what is read now may be what that call wrote."""

    @reversible("rows.newer", idempotency="natural")
    def older(name: str) -> None:
        raise ConnectionResetError

    @reversible("rows.newer", idempotency="natural")
    def newer(name: str) -> None: ...

    newer.capture(read)
    newer.restore(arguments={"name": "input.name", "row": "captured"})(put_back)
    with workflow("w") as wf:
        with pytest.raises(ConnectionResetError):
            older("a")
        wf.leave_open("3d")
    with workflow("w", on_existing="resume"), pytest.raises(OutcomeUnknown):
        newer("a")


def test_a_recorder_is_told_both_images(ledger: MemoryLedger) -> None:
    contract = Contract(
        "crm.set", Effect.REVERSIBLE, undo=UndoTerms("crm.set", "crm", arguments={"old": "captured"}),
        captures=True, restores=COMPARE,
    )  # fmt: skip
    with workflow("w"), recorder.step("crm.set", {"x": 1}, contract=contract, captured="old") as step:
        step.succeed("ok", written="new")
    started, succeeded = ledger.steps("w")
    assert (_decoded(started.captured), _decoded(succeeded.written)) == ("old", "new")
    assert _decoded(started.undo_arguments) == _decoded(succeeded.undo_arguments) == {"old": "old"}
