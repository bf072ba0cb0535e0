"""What a tool overwrites (`capture`) and writes (`writes`), and an undo that compares first (`restores`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from amends.schemas.contract import COMPARE, PLAIN, Idempotency
from amends.tools import KEY, ContractError, DeclaredTool, Secret, Step, Undone, compensable, irreversible, read_only
from amends.tools.handlers import Role
from amends.tools.registry import HandlerRegistry
from amends.tools.resolve import MISSING, needs_outcome, written_by_call


@dataclass
class Address:
    street: str
    city: str = ""


def _move() -> DeclaredTool[[str, Address], None]:
    @compensable("crm.move")
    def move(customer: str, address: Address) -> None: ...

    return move


def _address_of(customer: str) -> dict[str, str]:
    return {"street": f"of {customer}"}


def _put_back(customer: str, address: Address) -> None: ...


BACK = {"customer": "input.customer", "address": "captured"}


def test_a_restore_is_an_undo_that_compares_and_may_be_repeated() -> None:
    move = _move()
    move.capture(_address_of)
    move.restore(arguments=BACK, lane="people")(_put_back)
    contract = move.tool.contract
    assert (contract.captures, contract.restores, contract.writes) == (True, COMPARE, "")
    assert contract.undo is not None
    assert (contract.undo.idempotency, contract.undo.lane) == (Idempotency.NATURAL, "people")
    registry = HandlerRegistry()
    registry.add(move)
    found = registry.handler(Role.CAPTURE, "crm.move")
    assert found.call({"customer": "c1", "address": {"street": "x"}}, key="") == {"street": "of c1"}


def test_a_restore_may_take_the_whole_step_and_needs_no_outcome_for_it() -> None:
    move = _move()
    move.capture(_address_of)

    @move.restore
    def put_back(step: Step) -> None: ...

    assert not needs_outcome(move.tool.contract)
    assert move.tool.resolve({"customer": "c1"}, captured={}) == move.tool.resolve({"customer": "c1"})


def test_an_undo_may_read_what_was_captured_without_comparing() -> None:
    move = _move()
    move.capture(_address_of)
    move.undo(arguments=BACK, idempotency="neither")(_put_back)
    assert (move.tool.contract.captures, move.tool.contract.restores) == (True, PLAIN)
    found = move.tool.resolve({"customer": "c1", "address": {}}, captured={"street": "s", "city": ""})
    assert "s" in str(found)


def test_what_the_call_writes_can_be_declared() -> None:
    move = _move()
    move.capture(writes="{street: input.address.street, since: captured.since}")(_address_of)
    move.restore(arguments=BACK)(_put_back)
    contract = move.tool.contract
    given = {"customer": "c1", "address": Address("new")}
    assert written_by_call(contract, input=given, captured={"since": 1}) == {"street": "new", "since": 1}
    assert not [p for p in move.tool.problems() if "inside the call" in p]


def test_what_only_the_outcome_tells_is_not_known_before_it() -> None:
    move = _move()
    move.capture(writes="output.address")(_address_of)
    move.restore(arguments=BACK)(_put_back)
    contract = move.tool.contract
    assert written_by_call(contract, input={}, captured={}) is MISSING
    assert written_by_call(contract, input={}, captured={}, output={"address": "a"}) == "a"
    assert written_by_call(contract, input={}, captured={}, output={}) is MISSING, "null tells nothing"
    assert any("inside the call" in problem for problem in move.tool.problems())


def _secretive() -> DeclaredTool[[str], None]:
    @compensable("a.b")
    def tool(password: Annotated[str, Secret]) -> None: ...

    return tool


async def _later(customer: str) -> str:
    return customer


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: _move().restore(_put_back), "nothing says where"),
        (lambda: _move().restore(arguments=BACK)(_put_back), "captures nothing. Declare its `.capture` above the undo"),
        (lambda: _move().capture(lambda custmer: 1), "no argument 'custmer'; did you mean 'customer'"),
        (lambda: _move().capture(lambda customer, /: 1), "positional only"),
        (lambda: _move().capture(_asks_for_the_step), "there is no step and no key yet"),
        (lambda: _move().capture(_asks_for_the_key), "there is no step and no key yet"),
        (lambda: _move().capture(_later), "Make the capture a plain function too"),
        (lambda: _secretive().capture(lambda password: 1), "is a secret"),
        (lambda: _move().capture(writes="input.adress")(_address_of), "no argument 'adress'"),
        (lambda: _move().capture(writes="outcome.a")(_address_of), "must start from one of"),
        (lambda: _move().capture(writes="a..b")(_address_of), "is no JMESPath"),
        (lambda: _move().capture(writes=5)(_address_of), "is no text"),  # type: ignore[call-overload]
        (lambda: _move().capture(write="input.a")(_address_of), "did you mean 'writes'"),  # type: ignore[call-overload]
        (lambda: _move().undo(restores="always")(_put_back), 'none of "plain", "compare"'),  # type: ignore[arg-type]
        (lambda: irreversible("a")(lambda: None).capture(lambda: 1), "Declare it compensable or reversible"),
        (lambda: read_only("a")(lambda: None).capture(lambda: 1), "Declare it compensable or reversible"),
    ],
)
def test_a_wrong_capture_is_refused_with_its_line_and_what_to_change(declare: Callable[[], Any], says: str) -> None:
    with pytest.raises(ContractError, match=re.escape(says)) as caught:
        declare()
    assert re.search(r"test_tools_capture\.py:\d+", str(caught.value))


def _asks_for_the_step(step: Step) -> int:
    return 1


def _asks_for_the_key(customer: str, key: str = KEY) -> int:
    return 1


def test_a_comparison_needs_a_capture() -> None:
    move = _move()
    move.undo(arguments={"customer": "input.customer", "address": "input.address"}, restores="compare")(_put_back)
    with pytest.raises(ContractError, match=r"nothing reads that. Add a `.capture` to crm.move"):
        _ = move.tool.contract


def test_what_a_call_writes_is_of_use_to_a_comparison_alone() -> None:
    move = _move()
    move.capture(writes="input.address")(_address_of)
    move.undo(arguments=BACK)(_put_back)
    with pytest.raises(ContractError, match=r"only an undo that compares asks for it"):
        _ = move.tool.contract


def test_a_natural_undo_that_compares_needs_no_verify_and_may_have_one() -> None:
    move = _move()
    move.capture(_address_of)
    move.restore(arguments=BACK)(_put_back)
    move.verify(lambda customer: Undone())
    assert move.tool.contract.verify is not None
