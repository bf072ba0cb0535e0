"""An undo never runs with a missing or guessed argument."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amends.schemas.contract import Contract, Effect, UndoTerms
from amends.schemas.payload import Cut, SecretDigest, decode_payload, encode_bounded
from amends.tools import KEY, Step, Undone, compensable
from amends.tools.errors import ArgumentsDoNotFit
from amends.tools.resolve import (
    MISSING,
    Resolved,
    Unresolved,
    compile_expression,
    needs_outcome,
    reads_of,
    resolve,
    resolve_arguments,
    search,
)


def contract(*optional: str, **arguments: str) -> Contract:
    terms = UndoTerms(handler="a.b", lane="a", arguments=arguments, optional_arguments=optional)
    return Contract(tool_name="a.b", effect=Effect.COMPENSABLE, undo=terms)


def resolved(made: Contract, **known: Any) -> dict[str, Any]:
    found = resolve(made, **{"input": {}, **known})
    assert isinstance(found, Resolved), found
    assert decode_payload(found.data) == found.arguments
    return found.arguments


def reason(made: Contract, **known: Any) -> str:
    found = resolve(made, **{"input": {}, **known})
    assert isinstance(found, Unresolved), found
    return found.reason


def test_arguments_come_from_all_that_is_known() -> None:
    made = contract(a="input.x", b="output.y[0]", c="captured", d="external_resource_ids.charge")
    found = resolved(
        made, input={"x": 1}, output={"y": [Decimal("1.5")]}, captured="c", external_resource_ids={"charge": "ch"}
    )
    assert found == {"a": 1, "b": Decimal("1.5"), "c": "c", "d": "ch"}


@dataclass
class Line:
    sku: str


def test_a_live_value_and_the_recorded_one_resolve_alike() -> None:
    live = (Line("a"), Line("b"))
    assert resolved(contract(a="output[1].sku"), output=live) == {"a": "b"}
    assert resolved(contract(a="output[1].sku"), output=[{"sku": "a"}, {"sku": "b"}]) == {"a": "b"}


@pytest.mark.parametrize("value", [0, False, "", [], {}])
def test_an_empty_value_is_a_value(value: Any) -> None:
    assert resolved(contract(a="output.a"), output={"a": value}) == {"a": value}


@pytest.mark.parametrize("output", [None, {}, {"id": None}, [], "text", 3, b"id", object(), "\ud800", [[[1]]]])
def test_what_is_missing_or_null_is_not_resolved(output: Any) -> None:
    assert "finds nothing" in reason(contract(a="output.id"), output=output)
    assert resolve_arguments(contract(a="output.id"), {}, output) is None


def test_before_the_outcome_nothing_that_reads_it_is_resolved() -> None:
    guess = contract(a="output.id || input.id")
    assert needs_outcome(guess)
    assert "outcome" in reason(guess, input={"id": 1}, output=MISSING)
    assert resolved(guess, input={"id": 1}, output={}) == {"a": 1}
    known = contract(a="input.id")
    assert not needs_outcome(known)
    assert resolved(known, input={"id": 1}) == {"a": 1}


def test_a_handler_that_takes_the_whole_step_waits_for_the_outcome() -> None:
    @compensable("a.b")
    def call(x: int) -> int:
        return x

    @call.undo(idempotency="neither")
    def undo(step: Step) -> None: ...

    assert isinstance(call.tool.resolve({"x": 1}), Unresolved)
    assert call.tool.resolve({"x": 1}, 2) == Resolved({}, b"{}")


def test_an_optional_argument_is_left_out_where_nothing_is_found() -> None:
    assert resolved(contract("note", note="input.note"), input={}) == {}
    assert resolved(contract("note", note="input.note"), input={"note": "n"}) == {"note": "n"}


@pytest.mark.parametrize("mark", [SecretDigest("d"), Cut(5, "d"), object(), [object()], {"deep": [object()]}])
def test_what_was_not_kept_is_never_an_argument(mark: Any) -> None:
    assert "not kept" in reason(contract(a="output.a"), output={"a": mark})
    assert "not kept" in reason(contract("a", a="output.a"), output={"a": mark})


def test_a_cut_output_resolves_nothing() -> None:
    cut = decode_payload(encode_bounded({"id": "ch_1", "body": "x" * 10_000}, 1_000).data)
    assert "finds nothing" in reason(contract(a="output.id"), output=cut)
    assert "finds nothing" in reason(contract(a="output.digest"), output=cut)


def test_arguments_over_four_kilobytes_are_not_resolved() -> None:
    assert "pass ids" in reason(contract(a="output"), output="x" * 5_000)
    assert len(resolved(contract(a="output"), output="x" * 4_000)["a"]) == 4_000


@pytest.mark.parametrize(
    "text", ["abs(output.a)", "sort_by(output, &a)", "to_number(output.a)", "max(output)", "nofun(output)"]
)
def test_an_expression_that_fails_on_the_data_is_not_resolved(text: str) -> None:
    assert isinstance(resolve(contract(a=text), input={}, output={"a": "text"}), Unresolved)


VALUES = st.recursive(
    st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=10
)


@given(VALUES)
def test_resolving_never_raises_for_what_a_record_holds(value: Any) -> None:
    made = contract(a="output.id || output[0]", b="join('-', input.ids)", c="length(output)")
    found = resolve(made, input=value, output=value, captured=value)
    assert isinstance(found, Resolved | Unresolved)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("input.a.b", {("input", "a", "b")}),
        ("input.a[0].b", {("input", "a")}),
        ("input.a[?b > `1`].c", {("input", "a")}),
        ("output | id", {("output",)}),
        ("[input.a, output.b]", {("input", "a"), ("output", "b")}),
        ("{x: input.a}", {("input", "a")}),
        ("join('-', input.a)", {("input", "a")}),
        ("input.a && output.b", {("input", "a"), ("output", "b")}),
        ("!(input.a)", {("input", "a")}),
        ("(!input).a", {("input",)}),
        ("input.*.a", {("input",)}),
        ("input.{x: a}", {("input",)}),
        ("@", {()}),
        ("*", {()}),
        ("@.input", {()}),
        ("[0]", {()}),
        ("`1`", set[tuple[str, ...]]()),
        ("sort_by(output.a, &input)[0]", {("output", "a")}),
        ("output.a[]", {("output", "a")}),
        ("output.a[1:2]", {("output", "a")}),
        ("output.a.{x: b}", {("output", "a")}),
    ],
)
def test_what_an_expression_reads_is_known(text: str, paths: set[tuple[str, ...]]) -> None:
    assert reads_of(text) == paths


# --- handlers -------------------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


def test_arguments_reach_the_handler_in_its_own_types() -> None:
    seen: list[Any] = []

    @compensable("a.b")
    def call() -> None: ...

    @call.undo(arguments={"line": "output.line", "colour": "output.colour", "amount": "output.amount"})
    def undo(line: Line, colour: Colour, amount: Decimal, note: str = "n", *, key: str = KEY) -> None:
        seen.append((line, colour, amount, note, key))

    output = {"line": Line("a"), "colour": Colour.RED, "amount": Decimal("1.50")}
    found = call.tool.resolve({}, output)
    assert isinstance(found, Resolved)
    assert call.tool.undo is not None
    call.tool.undo.call(decode_payload(found.data), key="undo-key")
    assert seen == [(Line("a"), Colour.RED, Decimal("1.50"), "n", "undo-key")]


def test_arguments_of_the_wrong_type_never_reach_the_handler_and_are_not_told() -> None:
    @compensable("a.b")
    def call() -> None: ...

    @call.undo(arguments={"charge": "output.id"})
    def undo(charge: str) -> None:
        raise AssertionError("called with a wrong argument")

    found = call.tool.resolve({}, {"id": 4711})
    assert isinstance(found, Unresolved)
    assert "does not fit" in found.reason
    assert call.tool.undo is not None
    for arguments in ({"charge": 4711}, {}, {"charge": "a", "other": 1}):
        with pytest.raises(ArgumentsDoNotFit) as caught:
            call.tool.undo.call(arguments, key="k")
        assert "4711" not in str(caught.value)


def test_a_verify_gets_those_of_the_undos_arguments_that_it_names() -> None:
    @compensable("a.b")
    def call(x: int) -> None: ...

    call.undo(arguments={"x": "input.x", "y": "output"})(lambda x, y: None)

    @call.verify
    def state(x: int, *, key: str = KEY) -> Undone:
        return Undone(evidence=f"{x} {key}")

    assert call.tool.verify is not None
    assert call.tool.verify.call({"x": 1, "y": 2}, key="k") == Undone("1 k")


@pytest.mark.parametrize("path", ["output", "output.id", "output.charge.id", "output.items", "output.no.a", "input.a"])
def test_a_plain_path_finds_what_jmespath_finds(path: str) -> None:
    root = {"output": {"id": "x", "charge": {"id": 7}, "items": [1], "no": "text"}, "input": None}
    assert search(path, root) == compile_expression(path).search(root)
