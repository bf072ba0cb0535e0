"""What a tool and a call say about the order of undoing, and what becomes of it in the facts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from amends.producers import workflow
from amends.producers.testing import memory_runtime
from amends.schemas.data_flow import RULES, id_digest
from amends.schemas.facts import StepEvent, StepStatus
from amends.tools import compensable, options
from amends.tools.errors import ContractError


@compensable("shop.cart", resources=["input.shop"])
def make_cart(shop: str) -> dict[str, str]:
    return {"id": "cart-0001"}


@make_cart.undo(arguments={"cart": "output.id"}, covers=["shop.item"], agent_tool="shop.drop", window="1h")
def drop_cart(cart: str) -> None: ...


@compensable("shop.item")
def add_item(cart: str, amount: int) -> None: ...


@add_item.undo(arguments={"cart": "input.cart"})
def remove_item(cart: str) -> None: ...


@compensable("shop.rent")
async def rent(where: str) -> dict[str, str]:
    return {"id": "rent-0001"}


@rent.undo(arguments={"rent": "output.id"})
async def end_rent(rent: str) -> None: ...


def facts(memory: Any, workflow_id: str) -> list[StepEvent]:
    return [fact for fact in memory.ledger.facts(workflow_id) if isinstance(fact, StepEvent)]


def test_the_contract_says_what_an_undo_covers_and_with_which_tool_an_agent_does_the_same() -> None:
    terms = make_cart.tool.contract.undo
    assert terms is not None
    assert terms.covers == ("shop.item",)
    assert terms.agent_tool == "shop.drop"


@pytest.mark.parametrize("given", [{"covers": ["no name"]}, {"agent_tool": "no name"}, {"covers": [3]}])
def test_what_is_no_tool_name_is_refused(given: dict[str, Any]) -> None:
    @compensable("shop.other")
    def other() -> None: ...

    with pytest.raises(ContractError, match="no tool name"):

        @other.undo(**given)
        def undo_other() -> None: ...


def test_a_call_records_what_it_uses_touches_and_makes() -> None:
    with memory_runtime() as memory:
        with workflow("w-flow"):
            cart = make_cart("shop-1")
            add_item(cart["id"], 3)
        made, done, item, _ = facts(memory, "w-flow")
    assert made.status is StepStatus.STARTED
    assert made.data_flow == RULES
    assert made.uses == (id_digest("shop-1"),)
    assert len(made.touches) == 1
    assert len(made.call_digest) == 16
    assert done.makes == item.uses == (id_digest("cart-0001"),)
    assert item.touches == ()
    assert made.call_digest != item.call_digest


def test_equal_calls_have_one_digest_whatever_their_call_ids() -> None:
    with memory_runtime() as memory:
        with workflow("w-equal"):
            add_item.options(call_id="one", repeatable=True)("cart-1", 1)
            add_item.options(call_id="two", repeatable=True)(amount=1, cart="cart-1")
        first, _, second, _ = facts(memory, "w-equal")
    assert first.call_digest == second.call_digest


def test_a_call_says_what_it_is_built_on_by_the_ids_of_calls_or_of_steps() -> None:
    with memory_runtime() as memory:
        with workflow("w-after"):
            make_cart.options(call_id="cart")("shop-1")
            started = facts(memory, "w-after")[0]
            options(add_item, after=["cart"])("x-1", 1)
            add_item.options(after=[started.step_id])("x-2", 1)
        told = [fact.after for fact in facts(memory, "w-after") if fact.status is StepStatus.STARTED]
    assert told == [(), (started.step_id,), (started.step_id,)]


def test_a_call_in_a_task_records_the_same() -> None:
    async def agent() -> None:
        async with workflow("w-async"):
            await rent.options(call_id="rent")("flat-1")
            await rent.options(after=["rent"])("flat-2")

    with memory_runtime() as memory:
        asyncio.run(agent())
        first, done, second, _ = facts(memory, "w-async")
    assert (first.uses, done.makes, second.after) == (
        (id_digest("flat-1"),),
        (id_digest("rent-0001"),),
        (first.step_id,),
    )


@pytest.mark.parametrize("after", ["cart", [""], [3]])
def test_what_is_no_list_of_names_is_refused(after: Any) -> None:
    with pytest.raises(ValueError, match="no list of names"):
        add_item.options(after=after)
