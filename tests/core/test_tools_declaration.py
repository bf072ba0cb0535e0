"""A declaration that can't be kept is refused where it stands, with the line and what to change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import SecretStr

from amends.schemas.codec import decode
from amends.schemas.contract import DECLARED, Effect, Idempotency
from amends.tools import (
    KEY,
    Absent,
    ContractError,
    DeclaredTool,
    HandlerRegistry,
    Present,
    Secret,
    Step,
    StillThere,
    Undone,
    Unknown,
    compensable,
    irreversible,
    options,
    read_only,
    reversible,
    secret,
    unclassified,
)


def _charge() -> DeclaredTool[[str, int], dict[str, object]]:
    @compensable("payments.charge", refused_by=(ZeroDivisionError, "stripe.CardError"), version="2")
    def charge(customer: str, amount_cents: int, *, idempotency_key: str = KEY) -> dict[str, object]:
        return {"id": "ch_1"}

    return charge


def test_a_contract_says_all_that_was_declared_and_travels_as_bytes() -> None:
    charge = _charge()

    @charge.undo(
        arguments={"charge": "output.id", "note": "input.customer"},
        window="90d",
        residue="two lines on the statement",
        lease="20s",
        attempts=7,
        backoff=timedelta(seconds=2),
        backoff_cap="1m30s",
        key_ttl="24h",
    )
    def refund(charge: str, note: str = "", *, idempotency_key: str = KEY) -> None: ...

    @charge.probe(settles_in="30s", attempts=3)
    def find(step: Step) -> Present | Absent | Unknown:
        return Unknown()

    @charge.verify
    def state(charge: str) -> Undone | StillThere | Unknown:
        return Undone()

    contract = charge.tool.contract
    assert decode(charge.tool.contract_bytes) == contract
    assert charge.tool.contract_bytes is charge.tool.contract_bytes
    assert (contract.tool_name, contract.effect, contract.tool_version) == ("payments.charge", Effect.COMPENSABLE, "2")
    assert contract.call.idempotency is Idempotency.KEY
    assert contract.call.settle_ms == 30_000
    assert contract.refused_by == ("builtins.ZeroDivisionError", "stripe.CardError")
    assert contract.undo is not None
    assert contract.undo.lane == "payments"
    assert contract.undo.handler == "payments.charge"
    assert contract.undo.idempotency is Idempotency.KEY
    assert contract.undo.optional_arguments == ("note",)
    assert contract.undo.window_ms == 90 * 86_400_000
    assert contract.undo.key_ttl_ms == 86_400_000
    assert (contract.undo.lease_ms, contract.undo.attempts_max) == (20_000, 7)
    assert (contract.undo.backoff_ms, contract.undo.backoff_cap_ms) == (2_000, 90_000)
    assert contract.undo.residue == "two lines on the statement"
    assert contract.probe is not None
    assert contract.probe.attempts_max == 3
    assert contract.verify is not None


@pytest.mark.parametrize(
    ("declare", "effect"),
    [
        (reversible, Effect.REVERSIBLE),
        (compensable, Effect.COMPENSABLE),
        (irreversible, Effect.IRREVERSIBLE),
        (read_only, Effect.NONE),
        (unclassified, Effect.UNCLASSIFIED),
    ],
)
def test_the_class_is_in_the_name_of_the_decorator(declare: Callable[..., Any], effect: Effect) -> None:
    assert declare("a.b")(lambda: None).tool.effect is effect


def test_an_undoable_tool_without_an_undo_counts_as_unclassified() -> None:
    tool = _charge().tool
    assert tool.contract.effect is Effect.UNCLASSIFIED
    assert tool.contract.attributes[DECLARED] == "compensable"
    assert "has no undo" in tool.problems()[0]


def _undo(**given: Any) -> Callable[[Callable[..., Any]], Any]:
    return _charge().undo(**given)


def _takes(charge: str) -> None: ...


def _keyed(charge: str, idempotency_key: str = KEY) -> None: ...


def _by_position(charge: str, /) -> None: ...


def _two_keys(a: str = KEY, b: str = KEY) -> None: ...


OUTPUT = {"charge": "output.id"}


def _generator(charge: str) -> Iterator[int]:
    yield 1


def _variable(*charge: str) -> None: ...


def _untyped_probe(step) -> Unknown:  # type: ignore[no-untyped-def]
    return Unknown()


class Charged(TypedDict):
    id: str
    number: int


@dataclass
class Receipt:
    id: str


def _undo_of(function: Callable[..., Any], handler: Callable[..., Any], text: str) -> Any:
    return compensable("a")(function).undo(arguments={"x": text})(handler)


def _takes_order(order: int) -> Charged: ...  # type: ignore[empty-body]


async def _gives_receipt() -> Receipt: ...  # type: ignore[empty-body]


def _wants_text(x: str) -> None: ...


def _wants_number(x: int) -> None: ...


def _wants_list(x: list[str]) -> None: ...


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: _undo(arguments={"charg": "output.id"})(_takes), "no parameter 'charg'; did you mean 'charge'"),
        (lambda: _undo()(_takes), "nothing says where 'charge' comes from"),
        (lambda: _undo(arguments={"charge": "output..id"})(_takes), "is no JMESPath"),
        (lambda: _undo(arguments={"charge": "ouput.id"})(_takes), "must start from one of input, output"),
        (lambda: _undo(arguments={"charge": "@"})(_takes), "must start from one of input, output"),
        (
            lambda: _undo(arguments={"charge": "input.custmer"})(_takes),
            "no argument 'custmer'; did you mean 'customer'",
        ),
        (lambda: _undo(arguments={"charge": "captured.id"})(_takes), "captures nothing"),
        (lambda: _undo(arguments=OUTPUT, idempotency="key")(_takes), "the undo takes no key"),
        (lambda: _undo(arguments=OUTPUT, idempotency="always")(_takes), "none of"),
        (lambda: _undo(arguments=OUTPUT, window=90)(_takes), "is no duration"),
        (lambda: _undo(arguments=OUTPUT, window="90")(_takes), "is no duration"),
        (lambda: _undo(arguments=OUTPUT, lease="0s")(_takes), "between a millisecond"),
        (lambda: _undo(arguments=OUTPUT, attempts=0)(_takes), "attempts=0"),
        (lambda: _undo(arguments=OUTPUT, attempts=True)(_takes), "attempts=True"),
        (lambda: _undo(arguments={"charge": 5})(_takes), "is no text"),
        (lambda: _undo(arguments=["output.id"])(_takes), "arguments is a mapping"),
        (lambda: _undo(arguments=OUTPUT, lane="a b")(_takes), "has no lane 'a b'"),
        (lambda: _undo(arguments=OUTPUT, windw="1d")(_takes), "no option 'windw'; did you mean 'window'"),
        (lambda: _undo(arguments=OUTPUT, refused_by=(Exception,))(_takes), "does not prove that nothing happened"),
        (lambda: _undo(arguments=OUTPUT, refused_by=ValueError)(_takes), "is a tuple"),
        (lambda: _undo(arguments=OUTPUT)(_by_position), "positional only"),
        (lambda: _undo()(_two_keys), "leave one"),
        (lambda: _charge().probe(_takes), "a probe gets the whole `step: Step`"),  # type: ignore[type-var]
        (lambda: compensable(_takes), "give the tool a name"),  # type: ignore[arg-type]
        (lambda: compensable("a b")(_takes), "is no tool name"),
        (lambda: compensable("")(_takes), "is no tool name"),
        (lambda: compensable("a", leese="1s")(_takes), "did you mean 'lease'"),  # type: ignore[call-arg]
        (lambda: compensable("a", idempotency="key")(_takes), "the tool takes no key"),
        (lambda: compensable("a", refused_by=("CardError",))(_takes), "no exception class"),
        (lambda: compensable("a", refused_by=(TimeoutError,))(_takes), "does not prove that nothing happened"),
        (lambda: compensable("a")(_charge()), "is a tool of amends already"),
        (lambda: compensable("a")(secret("pasword")(lambda password: None)), "no parameter"),
        (lambda: irreversible("a")(lambda: None).undo()(lambda: None), "Declare it compensable or reversible"),
        (lambda: read_only("a")(lambda: None).probe(lambda step: Unknown()), "Declare it compensable or reversible"),
        (lambda: options(_takes), "it is no tool"),
        (lambda: _charge().undo(_takes), "with parentheses"),  # type: ignore[call-arg, arg-type]
        (lambda: _charge().verify(), "without parentheses"),  # type: ignore[call-arg]
        (lambda: _charge().verify(Undone, lease="3s"), "it takes no options"),  # type: ignore[call-arg]
        (lambda: _undo(arguments=OUTPUT, lane=5)(_takes), "lane=5 is not a text"),
        (lambda: _undo(arguments=OUTPUT, residue=5)(_takes), "residue=5 is not a text"),
        (lambda: _undo(arguments=OUTPUT, commutes="no")(_takes), "commutes='no' is not True or False"),
        (lambda: _undo(arguments={5: "output.id"})(_takes), "names the parameter 5"),
        (lambda: compensable("a", version=3)(_takes), "version=3 is not a text"),  # type: ignore[arg-type]
        (lambda: compensable("a", repeatable="no")(_takes), "'no' is not True or False"),  # type: ignore[arg-type]
        (lambda: compensable("a", resources="input.x")(_takes), "is a list of texts"),
        (lambda: compensable("a", resources=[5])(_takes), "is a list of texts"),  # type: ignore[list-item]
        (lambda: _undo(arguments=OUTPUT)(compensable("b")(_takes)), "is itself the tool b"),
        (lambda: _undo(arguments=OUTPUT)(_generator), "answer with `return`"),
        (lambda: _charge().probe(_generator), "answer with `return`"),  # type: ignore[type-var]
        (lambda: _charge().probe(_untyped_probe), "not 'step' without its type"),
        (lambda: _undo(arguments=OUTPUT)(_variable), "positional only"),
        (
            lambda: _undo(arguments={"charge": "joyn('', output.ids)"})(_takes),
            "no function joyn(); did you mean join()",
        ),
        (lambda: _undo(arguments={"charge": "join(output.ids)"})(_takes), "join() takes 2 argument(s), not 1"),
        (lambda: _undo_of(_takes_order, _wants_text, "output.ident"), "returns Charged, which has id, number and no"),
        (lambda: _undo_of(_gives_receipt, _wants_text, "output.ident"), "returns Receipt, which has id and no 'ident'"),
        (
            lambda: _undo_of(_takes_order, _wants_text, "input.order"),
            "it is a number when it is recorded, and 'x' takes",
        ),
        (lambda: _undo_of(_takes_order, _wants_text, "output.number"), "change the type of 'x'"),
        (lambda: _undo_of(_takes_order, _wants_list, "output.id"), "it is a text when it is recorded"),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_line_and_what_to_change(declare: Callable[[], Any], says: str) -> None:
    with pytest.raises(ContractError, match=re.escape(says)) as caught:
        declare()
    assert re.search(r"test_tools_declaration\.py:\d+|'a'", str(caught.value))


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (_wants_text, "output.id"),
        (_wants_number, "output.id"),  # "17" is a number to pydantic
        (_wants_number, "input.order"),
        (_wants_number, "output.number"),
        (_wants_text, "to_string(input.order)"),
        (_wants_text, "output.id || output.number"),
        (_wants_text, "join('-', ['a', output.id])"),
        (_wants_text, "not_null(output.id, input.order, 'x')"),
        (_wants_list, "[input.order, output.id]"),
        (lambda x: None, "output.number"),
        (lambda **given: None, "output.number"),
    ],
)
def test_what_may_fit_is_let_be(handler: Callable[..., Any], text: str) -> None:
    declared = compensable("a")(_takes_order)
    declared.undo(arguments={"x": text})(handler)
    terms = declared.tool.contract.undo
    assert terms is not None
    assert terms.arguments == {"x": text}


def test_a_probe_without_an_undo_needs_a_name_that_can_be_a_lane() -> None:
    def look(step: Step) -> Unknown:
        return Unknown()

    fine = irreversible("mail.send")(_takes)
    fine.probe(look)
    registry = HandlerRegistry()
    registry.add(fine)
    assert registry.lanes == ("mail",)
    nowhere = irreversible("größe:mail.send")(_takes)
    nowhere.probe(look)
    with pytest.raises(ContractError, match="comes by the lane 'größe:mail'"):
        _ = nowhere.tool.contract


def test_a_natural_undo_must_be_verified_or_commute() -> None:
    charge = _charge()
    charge.undo(arguments=OUTPUT, idempotency="natural")(_takes)
    with pytest.raises(ContractError, match=r"commutes=True"):
        _ = charge.tool.contract

    charge = _charge()
    charge.undo(arguments=OUTPUT, idempotency="natural", commutes=True)(_takes)
    assert charge.tool.contract.undo is not None

    charge = _charge()
    charge.undo(arguments=OUTPUT, idempotency="natural")(_takes)
    charge.verify(lambda charge: Undone())
    assert charge.tool.contract.verify is not None


def test_a_verify_without_an_undo_is_refused() -> None:
    charge = _charge()
    charge.verify(lambda charge: Undone())
    with pytest.raises(ContractError, match="a verify but no undo"):
        _ = charge.tool.contract


def test_a_verify_is_given_only_what_the_undo_is_sure_to_have() -> None:
    charge = _charge()
    charge.undo(arguments={"charge": "output.id", "note": "output.note"})(lambda charge, note="": None)
    charge.verify(lambda note: Undone())
    with pytest.raises(ContractError, match="'note' is none of those that are always there"):
        _ = charge.tool.contract


def test_a_second_undo_and_one_that_comes_too_late_are_refused() -> None:
    charge = _charge()
    charge.undo(arguments=OUTPUT)(_takes)
    with pytest.raises(ContractError, match="leave one of them"):
        charge.undo(arguments=OUTPUT)(_takes)
    late = _charge()
    _ = late.tool.contract
    with pytest.raises(ContractError, match="after the tool's first use"):
        late.undo(arguments=OUTPUT)(_takes)


def test_a_generator_is_no_tool() -> None:
    def generate() -> Iterator[int]:
        yield 1

    with pytest.raises(ContractError, match="return a list"):
        compensable("a")(generate)


def test_a_handler_that_needs_an_object_is_refused() -> None:
    class Payments:
        @compensable("payments.charge")
        def charge(self, amount: int) -> int:
            return amount

        def refund(self, amount: int) -> None: ...

        @staticmethod
        def give_back(amount: int) -> None: ...

    with pytest.raises(ContractError, match="there is no 'self'"):
        Payments.charge.undo(arguments={"amount": "output"})(Payments.refund)
    Payments.charge.undo(arguments={"amount": "output"})(Payments.give_back)
    assert Payments.charge.tool.contract.undo is not None


def test_static_and_class_methods_are_declared_below_their_own_decorator() -> None:
    with pytest.raises(ContractError, match="put @staticmethod or @classmethod above"):
        compensable("a")(staticmethod(_takes))
    with pytest.raises(ContractError, match="a function, method or callable object"):
        compensable("a")(dict)


@pytest.mark.parametrize(
    "text", ["input.password", "input", "input.*", "[input.user, input.password]", "values(input)"]
)
def test_an_undo_that_reads_a_secret_is_refused(text: str) -> None:
    def marked(user: str, password: str) -> None: ...

    def annotated(user: str, password: Annotated[str, Secret]) -> None: ...

    def optional(user: str, password: Annotated[str, Secret()] | None = None) -> None: ...

    def masked(user: str, password: SecretStr) -> None: ...

    for function in (secret("password")(marked), annotated, optional, masked):
        tool = compensable("users.create")(function)
        assert tool.tool.shape.secrets == {"password"}
        with pytest.raises(ContractError, match="reads a secret"):
            tool.undo(arguments={"it": text})(lambda it: None)
        tool.undo(arguments={"it": "input.user"})(lambda it: None)


def test_a_tool_says_how_many_of_its_calls_may_fail() -> None:
    def call() -> None: ...

    assert compensable("shop.flaky", failed_calls_max=2)(call).tool.contract.failed_calls_max == 2
    assert compensable("shop.plain")(call).tool.contract.failed_calls_max is None
    with pytest.raises(ContractError, match="failed_calls_max"):
        compensable("shop.wrong", failed_calls_max=-1)(call)


def test_a_tool_says_what_its_remote_can_take_of_undos() -> None:
    def call() -> None: ...

    bounded = compensable("shop.small")(call)
    bounded.undo(arguments={}, undos_max=2, undos_per_minute=30, breaker_failures=0)(call)
    undo = bounded.tool.contract.undo
    assert undo is not None
    assert (undo.undos_max, undo.undos_per_minute, undo.breaker_failures) == (2, 30, 0)
    with pytest.raises(ContractError, match="undos_max"):
        compensable("shop.none")(call).undo(arguments={}, undos_max=0)(call)
    with pytest.raises(ContractError, match="breaker_failures"):
        compensable("shop.wrong")(call).undo(arguments={}, breaker_failures=-1)(call)
