"""Arguments of an undo: a JMESPath map over `input`, `output`, `captured` and `external_resource_ids`.

Resolved when the outcome is known, by whoever knows it, and kept. An argument is never guessed: what is missing, null,
or was not kept (too large, secret, no form) leaves the whole map unresolved, with the reason in words. A map that
reads what only the outcome tells is not resolved before it: `output.id || input.id` would guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.parser import ParsedResult

from amends.schemas.contract import COMPARE, Contract
from amends.schemas.payload import contains_not_kept, decoded_form, encode_payload
from amends.schemas.slots import quick

ROOTS = ("input", "output", "captured", "external_resource_ids")
OUTCOME_ROOTS = frozenset({"output", "external_resource_ids"})
ARGUMENTS_BYTES_MAX = 4_096
WHOLE_STEP = "whole_step"
"""Contract attribute: the undo's handler reads the whole step, so it needs the outcome whatever its arguments are."""


class Missing:
    """The outcome is not known (`None` is what a call may return)."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


@quick
@dataclass(frozen=True, slots=True)
class Resolved:
    """The arguments, in decoded form, and their bytes as they are recorded."""

    arguments: dict[str, Any]
    data: bytes


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Why the arguments can't be known. No value is in it."""

    reason: str


@lru_cache(maxsize=10_000)
def compile_expression(text: str) -> ParsedResult:
    """Return the compiled JMESPath.

    Raises:
        JMESPathError: it is none.
    """
    return jmespath.compile(text)


@lru_cache(maxsize=10_000)
def _plain_path(text: str) -> tuple[str, ...]:
    """Return the names in `output.charge.id`, none if the expression is anything else."""
    node = cast("dict[str, Any]", compile_expression(text).parsed)
    fields = node["children"] if node["type"] == "subexpression" else [node]
    return tuple(field["value"] for field in fields) if all(field["type"] == "field" for field in fields) else ()


def search(text: str, root: Mapping[str, Any]) -> Any:
    """Return what an expression finds in `root`, None if nothing.

    Raises:
        JMESPathError, ArithmeticError, TypeError, ValueError, RecursionError: it fails on what is there.
    """
    path = _plain_path(text)
    if not path:
        return compile_expression(text).search(root)
    found: Any = root
    for name in path:  # nearly every argument is such a path, and the interpreter costs ten times as much
        if not isinstance(found, dict):
            return None
        found = cast("dict[str, Any]", found).get(name)
    return found


@lru_cache(maxsize=10_000)
def reads_of(text: str) -> frozenset[tuple[str, ...]]:
    """Return the paths from the root that an expression reads, as far as they are plain fields: `output.a[0].b` reads
    ("output", "a"). The empty path is the whole root."""
    return frozenset(_reads(cast("dict[str, Any]", compile_expression(text).parsed)))


_FROM_LEFT = frozenset(
    {"index_expression", "projection", "value_projection", "filter_projection", "flatten", "pipe", "slice"}
)


def _reads(node: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    kind, children = node["type"], node.get("children", [])
    if kind == "field":
        yield (node["value"],)
    elif kind == "subexpression" and children[0]["type"] == "field":
        yield tuple(_leading_fields(children))
    elif kind == "subexpression" or kind in _FROM_LEFT:
        yield from _reads(children[0])  # what stands to the right is read from what is left, not from the root
    elif kind in ("current", "identity"):
        yield ()
    elif kind not in ("literal", "expref", "index"):
        for child in children:
            yield from _reads(child)


def _leading_fields(children: list[dict[str, Any]]) -> Iterator[str]:
    """`a`, then `b` in a chain `a.b[0].c`: the names up to the first that is not a plain field."""
    for child in children:
        plain = child["type"] == "field"
        while child["type"] in _FROM_LEFT:  # `b[0]` hangs below the dot as a whole
            child = child["children"][0]
        if child["type"] == "field":
            yield child["value"]
        if not plain:
            return


def needs_outcome(contract: Contract) -> bool:
    """Tell whether the undo's arguments can only be known when the call's outcome is."""
    if contract.undo is None:
        return False
    # One that compares puts the before-image back, which is known from the start, and looks at the world first.
    if contract.attributes.get(WHOLE_STEP) == "yes" and not contract.undo.arguments and contract.restores != COMPARE:
        return True
    return any(needs_outcome_for(text) for text in contract.undo.arguments.values())


@lru_cache(maxsize=10_000)
def needs_outcome_for(text: str) -> bool:
    """Tell whether an expression reads what only the outcome of the call tells."""
    return any(not path or path[0] in OUTCOME_ROOTS for path in reads_of(text))


def resolve(
    contract: Contract,
    *,
    input: object,
    output: object = MISSING,
    captured: object = None,
    external_resource_ids: Mapping[str, str] | None = None,
) -> Resolved | Unresolved:
    """Return the undo's arguments, or why they can't be known. Takes live values or decoded ones; never raises for
    what a record holds."""
    if contract.undo is None:
        return Unresolved(f"{contract.tool_name} has no undo")
    if output is MISSING and needs_outcome(contract):
        return Unresolved("the outcome of the call is not known, and the undo needs what it returned")
    root = {
        "input": decoded_form(input),
        "output": None if output is MISSING else decoded_form(output),
        "captured": decoded_form(captured),
        "external_resource_ids": dict(external_resource_ids or {}),
    }
    arguments: dict[str, Any] = {}
    for name, text in contract.undo.arguments.items():
        try:
            value = search(text, root)
        except (JMESPathError, ArithmeticError, TypeError, ValueError, RecursionError) as error:
            return Unresolved(f"{name} = {text} fails on what was recorded: {type(error).__name__}")
        if value is None and name in contract.undo.optional_arguments:
            continue
        if value is None:
            return Unresolved(f"{name} = {text} finds nothing in what was recorded")
        if contains_not_kept(value):
            return Unresolved(f"{name} = {text} finds a value that was not kept (secret, cut, or without a form)")
        arguments[name] = value
    data = encode_payload(arguments)
    if len(data) > ARGUMENTS_BYTES_MAX:
        return Unresolved(f"the arguments are {len(data)} bytes, over {ARGUMENTS_BYTES_MAX}: pass ids, not contents")
    return Resolved(arguments, data)


def written_by_call(
    contract: Contract, *, input: object, captured: object, output: object | Missing = MISSING
) -> object | Missing:
    """Return what the capture reads once the call has happened, by what it declares in `writes`, in decoded form.
    MISSING where it declares nothing, or what was recorded does not tell it."""
    if not contract.writes or (output is MISSING and needs_outcome_for(contract.writes)):
        return MISSING
    root = {
        "input": decoded_form(input),
        "output": None if output is MISSING else decoded_form(output),
        "captured": decoded_form(captured),
    }
    try:
        value = compile_expression(contract.writes).search(root)
    except (JMESPathError, ArithmeticError, TypeError, ValueError, RecursionError):
        return MISSING
    # Null is what a path finds too that leads nowhere: it tells nothing.
    return MISSING if value is None or contains_not_kept(value) else value


def is_accepted(contract: Contract, input: object, output: object) -> bool:
    """Tell whether `output` says that the remote only took the request and does it later, by what the tool declares in
    `accepted_when`. Where that can't be told from it, it counts as taken: nobody knows then whether it is done."""
    if not contract.accepted_when:
        return False
    root = {"input": decoded_form(input), "output": decoded_form(output)}
    try:
        said = compile_expression(contract.accepted_when).search(root)
    except (JMESPathError, ArithmeticError, TypeError, ValueError, RecursionError):
        return True
    return said is not None and said is not False and said not in ("", [], {})


def resolve_arguments(
    contract: Contract,
    input: object,
    output: object = MISSING,
    captured: object = None,
    external_resource_ids: Mapping[str, str] | None = None,
) -> dict[str, Any] | None:
    """Return the undo's arguments in decoded form, or None where they can't be known (`resolve` says why)."""
    found = resolve(
        contract, input=input, output=output, captured=captured, external_resource_ids=external_resource_ids
    )
    return found.arguments if isinstance(found, Resolved) else None
