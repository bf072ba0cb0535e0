"""What is known of an undo's arguments before any call: that one will never resolve, or never fit.

Only what is certain is said; what depends on the values of a call is found when its outcome is known (`resolve`).
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterator
from typing import Any, cast

from jmespath.functions import Functions

from amends.tools.resolve import compile_expression, reads_of
from amends.tools.shape import Shape

_FUNCTIONS: dict[str, Any] = Functions.FUNCTION_TABLE
_KINDS: dict[Any, str] = {
    str: "text", int: "number", float: "number", bool: "truth value", list: "list", tuple: "list", dict: "object"
}  # fmt: skip
_TAKES: dict[str, frozenset[str]] = {
    "text": frozenset({"text"}),
    "number": frozenset({"number", "text", "truth value"}),
    "truth value": frozenset({"truth value", "number", "text"}),
    "list": frozenset({"list"}),
    "object": frozenset({"object"}),
}
"""Of which kinds a parameter of that kind may take a recorded value (pydantic, lax)."""


def wrong_function_of(text: str) -> str | None:
    """Return what is wrong with the functions that an expression calls, or None."""
    for node in _nodes(cast("dict[str, Any]", compile_expression(text).parsed)):
        if node["type"] != "function_expression":
            continue
        name, given = node["value"], len(node["children"])
        if name not in _FUNCTIONS:
            near = difflib.get_close_matches(name, _FUNCTIONS, 1)
            return f"JMESPath has no function {name}()" + (f"; did you mean {near[0]}()" if near else "")
        signature = _FUNCTIONS[name]["signature"]
        variadic = bool(signature and signature[-1].get("variadic"))
        if given != len(signature) and not (variadic and given > len(signature)):
            return f"{name}() takes {len(signature)} argument(s){' or more' if variadic else ''}, not {given}"
    return None


def never_fits(tool: Shape, handler: Shape, name: str, text: str) -> str | None:
    """Return why the value of a plain path can't ever be the handler's argument `name`, or None where it may."""
    node = compile_expression(text).parsed
    path = _plain_path(cast("dict[str, Any]", node))
    if path is None or path not in reads_of(text):
        return None
    if path[0] == "output" and len(path) > 1:
        fields = _fields_of(tool.returns)
        if fields and path[1] not in fields:
            return f"the tool returns {tool.returns.__name__}, which has {', '.join(fields)} and no {path[1]!r}"
    found = _hint_at(tool, path)
    kind, wanted = _kind_of(found), _kind_of(handler.hints.get(name, Any))
    if kind is None or wanted is None or kind in _TAKES[wanted]:
        return None
    return f"it is a {kind} when it is recorded, and {name!r} takes a {wanted}: change the type of {name!r}"


def _plain_path(node: dict[str, Any]) -> tuple[str, ...] | None:
    """`a.b.c` as names; None for whatever else."""
    if node["type"] == "field":
        return (node["value"],)
    if node["type"] != "subexpression":
        return None
    parts = [_plain_path(child) for child in node["children"]]
    return None if None in parts else tuple(name for part in parts for name in part or ())


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("children", ()):
        if isinstance(child, dict):
            yield from _nodes(cast("dict[str, Any]", child))


def _hint_at(tool: Shape, path: tuple[str, ...]) -> Any:
    """The type of a recorded value, where the tool's annotations tell it."""
    match path:
        case ("input", name):
            return tool.hints.get(name, Any)
        case ("output",):
            return tool.returns
        case ("output", field):
            return _fields_of(tool.returns).get(field, Any)
        case _:
            return Any


def _kind_of(hint: Any) -> str | None:
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return None  # a validator may make anything of anything
    bare = origin or hint
    return _KINDS.get(bare) if isinstance(bare, type) else None


def _fields_of(returns: Any) -> dict[str, Any]:
    """The fields of a TypedDict or dataclass with their types; none where they can't be known."""
    if not isinstance(returns, type) or not (typing.is_typeddict(returns) or dataclasses.is_dataclass(returns)):
        return {}
    try:
        hints = typing.get_type_hints(returns, include_extras=False)
    except Exception:  # annotations are arbitrary code: one that can't be evaluated is only less to check
        return {}
    if dataclasses.is_dataclass(returns):
        return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(returns)}
    return hints
