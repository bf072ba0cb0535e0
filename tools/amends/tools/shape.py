"""The shape of a callable: which of its parameters are recorded, which are filled in by amends, where it stands.

Functions, methods, partials and objects with `__call__` are looked at alike. `self` (or `cls`) is not recorded. The
parameter whose default is `KEY` gets the idempotency key; in a handler, the one annotated `Step` gets the step.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

from amends.tools.errors import ArgumentsDoNotFit, ContractError
from amends.tools.secrecy import is_secret, secret_names
from amends.tools.step import Step

AnyCallable = Callable[..., Any]


class _Key(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return "KEY"

    def __reduce__(self) -> str:
        return "KEY"


KEY: Final[str] = _Key("(amends replaces this by the idempotency key)")
"""Default of the parameter that gets the idempotency key: the same on every try, hidden from the tool's signature."""


def underlying(callable_object: object) -> Any:
    """Return the plain function below partials, methods, wrappers and objects with `__call__`."""
    function: Any = callable_object
    while True:
        if isinstance(function, functools.partial):
            function = cast("Any", function).func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.ismethod(function):
            function = function.__func__
        elif not inspect.isroutine(function) and not hasattr(function, "__code__"):
            called = getattr(type(function), "__call__", None)  # noqa: B004 - its code is wanted
            if not inspect.isfunction(called):
                return function
            function = called
        else:
            return function


def location_of(function: object) -> str:
    """Return `file:line` of where `function` is written, or its name if it has no source."""
    code = getattr(underlying(function), "__code__", None)
    if code is None:
        return repr(getattr(function, "__qualname__", type(function).__qualname__))
    return f"{code.co_filename}:{code.co_firstlineno}"


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of a callable. `recorded` are the parameters a model sees."""

    function: AnyCallable
    location: str
    recorded: Mapping[str, inspect.Parameter]
    hints: Mapping[str, Any]  # of the recorded ones, as far as they could be found out
    self_name: str | None
    key_name: str | None
    step_name: str | None
    secrets: frozenset[str]
    asynchronous: bool
    signature: inspect.Signature  # the callable's own, whole
    returns: Any  # the hint of what a call gives, awaited
    required: frozenset[str] = field(init=False)  # names of recorded parameters that must be given
    takes_any_keyword: bool = field(init=False)

    @property
    def all_parameters(self) -> Mapping[str, inspect.Parameter]:
        return self.signature.parameters

    def __post_init__(self) -> None:
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        required = frozenset(
            n for n, p in self.recorded.items() if p.default is inspect.Parameter.empty and p.kind not in variable
        )
        # Kept, for every call of a handler asks.
        object.__setattr__(self, "required", required)
        any_keyword = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self.recorded.values())
        object.__setattr__(self, "takes_any_keyword", any_keyword)

    def fit(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return recorded arguments as the parameters' types want them (a dict as the model it was, and so on).

        Raises:
            ArgumentsDoNotFit: one is not what its parameter takes. Values are not in the message.
        """
        return {name: self._fit(name, value) for name, value in arguments.items()}

    def _fit(self, name: str, value: Any) -> Any:
        adapter = _adapter(self.hints.get(name, Any))
        if adapter is None:
            return value
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            why = "; ".join(entry["type"].replace("_", " ") for entry in found[:3])
            raise ArgumentsDoNotFit(
                f"{self.location}: the recorded {name!r} (a {type(value).__name__}) does not fit: {why}."
            ) from None


def shape_of(function: AnyCallable, *, handler: bool = False) -> Shape:
    """Return the shape of `function`.

    Raises:
        ContractError: it can't be a tool (or a handler); the message says what to change.
    """
    location = location_of(function)
    if isinstance(function, staticmethod | classmethod):
        raise ContractError(f"{location}: put @staticmethod or @classmethod above the decorator of amends.")
    target = underlying(function)
    if not callable(function) or inspect.isclass(function):
        raise ContractError(f"{location}: a function, method or callable object is wanted, not {type(function)}.")
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        instead = "answer with `return`" if handler else "return a list instead"
        raise ContractError(f"{location}: a generator does its work after the call ended; {instead}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ContractError(f"{location}: its signature can't be read ({error}); wrap it in a function.") from error
    parameters = signature.parameters
    hints = {name: _hint(parameter.annotation, target) for name, parameter in parameters.items()}
    self_name = next((n for n in list(parameters)[:1] if n in ("self", "cls")), None)
    key_name = _only(location, "KEY", [n for n, p in parameters.items() if p.default is KEY])
    step_name = _only(location, "Step", [n for n, h in hints.items() if _is_step(h)]) if handler else None
    for name in (key_name, step_name):
        if name is not None and parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ContractError(f"{location}: {name!r} is filled in by name; it can't be positional only.")
    recorded = {n: p for n, p in parameters.items() if n not in (self_name, key_name, step_name)}
    marked = set(secret_names(function)) | set(secret_names(target))
    unknown = marked - set(recorded)
    if unknown:
        raise ContractError(f"{location}: secret({', '.join(map(repr, sorted(unknown)))}) names no parameter of it.")
    returns = _hint(signature.return_annotation, target)
    return Shape(
        function=function,
        location=location,
        recorded=recorded,
        hints={name: hints[name] for name in recorded},
        self_name=self_name,
        key_name=key_name,
        step_name=step_name,
        secrets=frozenset(marked | {n for n in recorded if is_secret(hints[n])}),
        asynchronous=_is_asynchronous(function, target, returns),
        signature=signature,
        returns=_awaited(returns),
    )


def _only(location: str, what: str, names: list[str]) -> str | None:
    if len(names) > 1:
        raise ContractError(f"{location}: {', '.join(map(repr, names))} all take the {what}; leave one.")
    return names[0] if names else None


def _is_asynchronous(function: object, target: object, returns: Any) -> bool:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(target):
        return True
    origin = typing.get_origin(returns) or returns
    return origin in (Awaitable, Coroutine)


def _awaited(returns: Any) -> Any:
    arguments = typing.get_args(returns)
    return arguments[-1] if typing.get_origin(returns) in (Awaitable, Coroutine) and arguments else returns


def _hint(annotation: Any, target: object) -> Any:
    """The annotation as a type; the text itself where its names are not (yet) known; Any where there is none."""
    if annotation is inspect.Parameter.empty:
        return Any
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        found = typing.get_type_hints(holder, globalns=getattr(target, "__globals__", {}), include_extras=True)
        return found["it"]
    except Exception:  # annotations are arbitrary code: one that can't be evaluated is only less to check
        return annotation


def _is_step(hint: Any) -> bool:
    return hint is Step or (isinstance(hint, str) and hint.strip("'\"").rpartition(".")[2] == "Step")


def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    try:
        return _adapter_of(hint)
    except TypeError:  # an unhashable hint
        return None


@functools.lru_cache(maxsize=1_000)
def _adapter_of(hint: Any) -> TypeAdapter[Any] | None:
    if hint is Any or hint is object or isinstance(hint, str):
        return None
    try:
        return TypeAdapter(hint)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation):
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)) if isinstance(hint, type) else None
    except PydanticUserError:
        return TypeAdapter(hint)
