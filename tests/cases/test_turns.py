"""C7, C13, C14, C16, C18: when a workflow turns, and what is undone then."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from tests.cases.shop import WORLD, buy, order, undone_each_once
from tests.core.folded import Folded
from tests.core.ledger import LEASE_MS, Entry, Ledger, contract_of

from amends.producers import Succeeded, workflow
from amends.schemas.codec import encode
from amends.schemas.commands import Phase
from amends.schemas.facts import UNKNOWN_OFFSET, UndoStatus, WorkflowEvent, WorkflowStatus
from amends.tools import compensable, irreversible
from amends.tools.errors import AmendsError

SIBLINGS = 50
HOUR_MS = 3_600_000


# --- C13: fifty at once -----------------------------------------------------------------------------------------------


async def test_fifty_tasks_that_fail_at_the_same_instant_are_one_turn_and_each_step_is_undone_once(
    folded: Folded,
) -> None:
    barrier = asyncio.Barrier(SIBLINGS)

    async def sibling(number: int) -> None:
        await order(f"item-{number}")
        await barrier.wait()
        raise ValueError(number)

    with contextlib.suppress(BaseExceptionGroup):
        async with workflow("w"), asyncio.TaskGroup() as group:
            for number in range(SIBLINGS):
                group.create_task(sibling(number))
    assert len(WORLD) == len(folded.ledger.undone) == SIBLINGS
    assert undone_each_once(folded)
    assert folded.ledger.partition.workflow("w").header.epoch == 1  # type: ignore[union-attr]


def test_fifty_threads_that_fail_at_the_same_instant_are_one_turn_and_each_step_is_undone_once(
    folded: Folded,
) -> None:
    barrier = threading.Barrier(SIBLINGS)
    failed: list[Exception] = []

    def sibling(number: int) -> None:
        bound(f"item-{number}")
        barrier.wait()
        failed.append(ValueError(number))

    with contextlib.suppress(ValueError), workflow("w") as wf:
        bound = wf.bind(buy)
        threads = [threading.Thread(target=sibling, args=(number,)) for number in range(SIBLINGS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        raise failed[0]
    assert len(WORLD) == len(folded.ledger.undone) == SIBLINGS
    assert undone_each_once(folded)
    assert folded.ledger.partition.workflow("w").header.epoch == 1  # type: ignore[union-attr]


# --- C14: two tries ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tries", [1, 2, 5])
def test_each_effect_of_every_try_is_undone_once_when_the_last_fails_too(folded: Folded, tries: int) -> None:
    with pytest.raises(ValueError), workflow("w") as wf:  # noqa: PT012
        buy("before")
        wf.savepoint("begun")
        for number in range(tries):
            for item in ("first", "middle", "last"):
                buy(f"{item} of {number}")
            if number < tries - 1:
                wf.undo_to("begun")
        raise ValueError
    assert len(WORLD) == len(folded.ledger.undone) == 1 + 3 * tries
    assert undone_each_once(folded)
    assert folded.ledger.phase("w") is Phase.COMPENSATED


async def test_each_effect_of_two_tries_of_a_task_is_undone_once(folded: Folded) -> None:
    with pytest.raises(ValueError):  # noqa: PT012
        async with workflow("w") as wf:
            await wf.savepoint_async("begun")
            await order("chair")
            await wf.undo_to_async("begun")
            await order("chair")
            raise ValueError
    assert len(WORLD) == len(folded.ledger.undone) == 2
    assert undone_each_once(folded)


# --- C16: two users ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [1, 5])
async def test_what_other_workflows_of_the_process_finished_stands_when_some_fail(folded: Folded, failing: int) -> None:
    count = 2 * failing

    async def agent(number: int) -> bool:
        with contextlib.suppress(ValueError):
            async with workflow(f"w{number}") as wf:
                for item in ("first", "last"):
                    await order(f"{item} of {number}")
                if number < failing:
                    raise ValueError
            return isinstance(wf.outcome, Succeeded)
        return False

    ended = await asyncio.gather(*(agent(number) for number in range(count)))
    assert ended == [number >= failing for number in range(count)]
    assert undone_each_once(folded, *(f"w{number}" for number in range(failing)))
    assert {folded.ledger.phase(f"w{n}") for n in range(failing, count)} == {Phase.SUCCEEDED}


def test_a_workflow_that_fails_inside_of_anothers_scope_leaves_that_one_its_work(folded: Folded) -> None:
    with workflow("outer", agent="a"):
        buy("kept")
        with pytest.raises(ValueError), workflow("inner", agent="b"):  # noqa: PT012
            buy("lost")
            raise ValueError
        with contextlib.suppress(AmendsError):
            buy("kept too")
    assert len(folded.ledger.undone) == 1
    assert undone_each_once(folded, "inner")
    assert folded.ledger.phase("outer") is Phase.SUCCEEDED


# --- C18: six hours ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restored", [True, False], ids=["from its checkpoint", "from the ledger alone"])
@pytest.mark.parametrize("ledger_was_silent", [True, False])
def test_nobody_is_failed_for_the_hours_in_which_the_processor_was_down(
    restored: bool, ledger_was_silent: bool
) -> None:
    ledger = Ledger()
    for name in ("alive", "dead"):
        ledger.workflow_id = name
        ledger.start()
        ledger.did("x", contract_of("x"))
    ledger.checkpoint()
    beat = WorkflowEvent("alive", 0, WorkflowStatus.HEARTBEAT)
    for _ in range(6 * HOUR_MS // (LEASE_MS // 3)):
        ledger.now_ms += LEASE_MS // 3
        if not ledger_was_silent:  # nobody folds what agents say meanwhile
            ledger.entries.append(Entry(len(ledger.entries), ledger.now_ms, b"alive", encode(beat)))
    if not restored:
        ledger.changelog.clear()
    ledger.crash(checkpoint=restored)
    for _ in range(30):  # and the agent goes on
        ledger.wait(LEASE_MS // 3)
        ledger.append(beat)
    ledger.workflow_id = "alive"
    assert ledger.phase == "RUNNING"
    ledger.workflow_id = "dead"
    assert ledger.phase == "TURNED"  # of whom nothing was heard since


# --- C7: undone by two ------------------------------------------------------------------------------------------------


BOOKED: list[str] = []


@compensable("shop.book", repeatable=True)
def book(room: str) -> dict[str, str]:
    BOOKED.append(f"booking-{room}-{len(BOOKED)}")
    return {"id": BOOKED[-1]}


@book.undo(arguments={"booking": "output.id"}, idempotency="natural", commutes=True, agent_tool="shop.cancel")
def free(booking: str) -> None: ...


@irreversible("shop.cancel", repeatable=True)
def cancel(booking: str) -> None: ...


@pytest.mark.parametrize("cleaned", [["first"], ["middle"], ["last"], ["last", "first"], ["first", "middle", "last"]])
def test_what_the_agent_cleaned_up_itself_before_it_failed_is_not_undone_again(
    folded: Folded, cleaned: list[str]
) -> None:
    rooms = ("first", "middle", "last")
    with pytest.raises(ValueError), workflow("w"):  # noqa: PT012
        booked = {room: book(room)["id"] for room in rooms}
        for room in cleaned:
            cancel(booked[room])
        raise ValueError
    found = folded.ledger.partition.workflow("w")
    assert found is not None
    assert {found.by_id[step_id] for step_id in folded.ledger.undone} == {
        number for number, room in enumerate(rooms) if room not in cleaned
    }
    assert found.header.phase is Phase.COMPENSATED
    assert found.open_troubles() == []


@pytest.mark.parametrize("workflow_offset", [UNKNOWN_OFFSET, 0])
def test_an_undo_that_meets_what_the_agent_is_cleaning_up_closes_with_no_error(workflow_offset: int) -> None:
    """The undo is commanded, and finds that the agent's own clean-up, which no tool told of, was there first."""
    ledger = Ledger()
    ledger.start()
    ledger.did("x", contract_of("x"))
    ledger.said(WorkflowStatus.FAILED)
    assert ledger.commanded() == [[("x", 0, 0)]]
    ledger.undo("x", UndoStatus.STARTED, workflow_offset=workflow_offset)
    ledger.undo("x", UndoStatus.NOTHING_TO_UNDO, workflow_offset=workflow_offset)
    ledger.wait(60_000)
    assert (ledger.phase, len(ledger.commanded()), ledger.incidents()) == ("COMPENSATED", 1, {})
