"""C3, C5, C10, C19: what befalls an agent in the middle of a call, wherever in the workflow and however it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Annotated, cast

import pytest
from tests.cases.shop import (
    AFTER,
    AFTER_ASYNC,
    WORLD,
    ObservedLedger,
    buy,
    cancel_by_a_person,
    order,
    standings,
    undone_each_once,
)
from tests.core.agent_tools import wait_for
from tests.core.folded import Folded
from tests.core.ledger import Ledger

from amends.processors.terms import Terms
from amends.producers import Succeeded, workflow
from amends.schemas.commands import Phase, UndoCommand
from amends.schemas.facts import StepEvent, WorkflowEvent
from amends.tools import KEY, Secret, compensable
from amends.tools.errors import AmendsError

ITEMS = ("first", "middle", "last")

# --- C3: broken off ---------------------------------------------------------------------------------------------------

Break = Callable[[], Awaitable[None]]


async def forever() -> None:
    await asyncio.sleep(60)


async def in_a_task_group(call: Break, landed: asyncio.Event) -> None:
    async def sibling() -> None:
        await landed.wait()
        raise ValueError("a sibling failed")

    with contextlib.suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(call())  # type: ignore[arg-type]
            group.create_task(sibling())


async def under_a_timeout(call: Break, landed: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60) as limit:
            behind = asyncio.create_task(landed.wait())
            behind.add_done_callback(lambda _: limit.reschedule(0))
            await call()


async def in_a_gather(call: Break, landed: asyncio.Event) -> None:
    both = asyncio.gather(call(), forever())
    await landed.wait()
    both.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await both


@pytest.mark.parametrize("struck", ITEMS)
@pytest.mark.parametrize("ends", [in_a_task_group, under_a_timeout, in_a_gather])
async def test_a_cancelled_call_whose_effect_landed_is_unknown_and_no_clean_end_is_reported(
    folded: Folded, struck: str, ends: Callable[[Break, asyncio.Event], Awaitable[None]]
) -> None:
    landed = asyncio.Event()

    async def never_answers() -> None:
        landed.set()
        await forever()

    AFTER_ASYNC[struck] = never_answers
    async with workflow("w") as wf:
        for item in ITEMS:

            async def call(item: str = item) -> None:
                await order(item)

            await (ends(call, landed) if item == struck else call())
    assert not isinstance(wf.outcome, Succeeded)
    assert standings(folded) == ["unknown" if item == struck else "succeeded" for item in ITEMS]
    assert folded.ledger.phase("w") is Phase.FINISHING


@pytest.mark.parametrize("struck", ITEMS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, SystemExit, ConnectionResetError])
def test_a_plain_call_that_is_broken_off_behind_its_effect_is_unknown_whatever_the_agent_does_with_the_error(
    folded: Folded, struck: str, error: type[BaseException]
) -> None:
    def breaks() -> None:
        raise error

    AFTER[struck] = breaks
    with workflow("w") as wf:
        for item in ITEMS:
            with contextlib.suppress(error):
                buy(item)
    assert not isinstance(wf.outcome, Succeeded)
    assert standings(folded) == ["unknown" if item == struck else "succeeded" for item in ITEMS]
    assert folded.ledger.phase("w") is Phase.FINISHING


# --- C5: the ledger is down -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("struck", ITEMS)
def test_a_call_that_finds_the_ledger_down_has_no_effect_and_an_agent_that_swallows_the_error_claims_no_more(
    folded: Folded, struck: str
) -> None:
    told: list[AmendsError] = []
    with workflow("w") as wf:
        for item in ITEMS:
            if item == struck:
                folded.ledger.down()
            try:
                buy(item)
            except AmendsError as error:
                told.append(error)
                folded.ledger.up()
                wait_for(lambda: "not_executed" in standings(folded))
    assert [error.retry_safe for error in told] == [True]
    assert struck not in WORLD
    assert len(WORLD) + len(told) == len(ITEMS)
    assert standings(folded).count("succeeded") == len(WORLD)
    assert isinstance(wf.outcome, Succeeded)
    assert folded.ledger.undone == []


@pytest.mark.parametrize("struck", ITEMS)
@pytest.mark.parametrize("comes_back", [True, False])
async def test_of_a_call_behind_whose_effect_the_ledger_goes_down_the_outcome_is_kept_or_the_step_stays_open(
    folded: Folded, struck: str, comes_back: bool
) -> None:
    AFTER[struck] = folded.ledger.down
    async with workflow("w") as wf:
        for item in ITEMS:
            if item == struck:
                assert await order(item) == f"id-{item}"  # the result is the agent's
                with pytest.raises(AmendsError):
                    await order("one more")
                if comes_back:
                    folded.ledger.up()
                    wait_for(lambda: "open" not in standings(folded))
            elif comes_back or item not in ITEMS[ITEMS.index(struck) :]:
                await order(item)
    assert "one more" not in WORLD
    done = ["succeeded" if comes_back or item != struck else "open" for item in ITEMS if item in WORLD]
    assert [standing for standing in standings(folded) if standing != "not_executed"] == done
    assert isinstance(wf.outcome, Succeeded) is comes_back
    assert (folded.ledger.phase("w") is Phase.SUCCEEDED) is comes_back


# --- C19: a person cancels --------------------------------------------------------------------------------------------


def cancelling(folded: Folded, moment: str) -> None:
    """A person cancels the workflow before or after the agent's n-th fact, or inside of a call."""
    ledger = cast(ObservedLedger, folded.ledger)
    when, _, which = moment.partition(" ")

    def strike(number: int | None = None) -> None:
        if number is None or number == int(which):
            ledger.add(cancel_by_a_person())

    if when == "inside":
        AFTER[which] = strike
    elif when == "before":
        ledger.before = strike
    else:
        ledger.after = strike


FACTS_OF_AN_AGENT = 1 + 2 * len(ITEMS) + 1
MOMENTS = [
    *(f"after {n}" for n in range(FACTS_OF_AN_AGENT)),
    *(f"before {n}" for n in range(1, FACTS_OF_AN_AGENT)),
    *(f"inside {item}" for item in ITEMS),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_workflow_that_a_person_cancels_at_any_point_of_a_call_is_undone_wholly(folded: Folded, moment: str) -> None:
    cancelling(folded, moment)
    with contextlib.suppress(AmendsError), workflow("w"):
        for item in ITEMS:
            buy(item)
    assert undone_each_once(folded)
    assert len(folded.ledger.undone) == len(WORLD)
    assert folded.ledger.phase("w") is Phase.COMPENSATED


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_task_that_a_person_cancels_at_any_point_of_a_call_is_undone_wholly(
    folded: Folded, moment: str
) -> None:
    cancelling(folded, moment)
    with contextlib.suppress(AmendsError):
        async with workflow("w"):
            for item in ITEMS:
                await order(item)
    assert undone_each_once(folded)
    assert len(folded.ledger.undone) == len(WORLD)
    assert folded.ledger.phase("w") is Phase.COMPENSATED


# --- C10: a secret ----------------------------------------------------------------------------------------------------

SECRET = "s3cr3t-word"


@compensable("shop.join")
def join(account: str, password: Annotated[str, Secret], *, idempotency_key: str = KEY) -> str:
    if account == "broken":
        raise ConnectionError(f"{password} at the wrong door")
    return account


@join.undo(arguments={"account": "input.account"}, idempotency="key")
def leave(account: str, *, idempotency_key: str = KEY) -> None: ...


@pytest.mark.parametrize("account", ["ada", "broken"])
def test_a_secret_is_in_nothing_that_the_ledger_or_the_fold_says_and_its_call_is_undone(
    folded: Folded, account: str
) -> None:
    with contextlib.suppress(ConnectionError), workflow("w"):
        join(account, SECRET)
        raise ConnectionError(f"{SECRET} again")
    seen = Ledger(Terms(lanes=frozenset({"shop"})))
    for fact in folded.ledger.all_facts():
        assert isinstance(fact, StepEvent | WorkflowEvent) or type(fact).__name__ == "UndoEvent"
        if isinstance(fact, StepEvent | WorkflowEvent):
            seen.append(fact)
    seen.wait(120_000)
    seen.checkpoint()
    sent = [e.value or b"" for e in seen.raw] + [e.value or b"" for e in seen.entries] + list(seen.changelog.values())
    assert not any(SECRET.encode() in value for value in sent)
    (entry,) = [e for command in seen.of(UndoCommand)[:1] for e in command.entries] if account == "ada" else [None]
    assert entry is None or entry.arguments == b'{"account":"ada"}'
