"""The decorators: what a tool does to the world is in their names, so it can't be forgotten or guessed.

What stands in the module afterwards is a plain function (or coroutine function) with the tool's own name, docs, types
and signature, less the key's parameter, so that agent frameworks, pickle and `inspect` see what they expect.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from amends.schemas.contract import Effect
from amends.tools.answers import ProbeAnswer, VerifyAnswer
from amends.tools.declaration import Tool
from amends.tools.durations import Duration, duration_ms
from amends.tools.errors import ContractError
from amends.tools.handlers import Exceptions, Handler, Role
from amends.tools.options import (
    CaptureOptions,
    ProbeOptions,
    ToolOptions,
    UndoOptions,
    contract_of,
    probe_terms_of,
    restores_of,
    undo_terms_of,
    writes_of,
)
from amends.tools.runner import NO_OPTIONS, CallOptions
from amends.tools.shape import AnyCallable, location_of, shape_of, underlying

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
F = TypeVar("F", bound=AnyCallable)
ProbeHandler = TypeVar("ProbeHandler", bound=Callable[..., ProbeAnswer | Awaitable[ProbeAnswer]])
VerifyHandler = TypeVar("VerifyHandler", bound=Callable[..., VerifyAnswer | Awaitable[VerifyAnswer]])


class DeclaredTool(Protocol[P, R_co]):
    """A tool's function, with what is declared on it. Calling it is calling the function."""

    __name__: str
    __qualname__: str

    @property
    def tool(self) -> Tool: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> DeclaredTool[P, R_co]: ...
    @overload
    def __get__(
        self: DeclaredTool[Concatenate[S, Q], R_co], instance: S, owner: type | None = None
    ) -> Callable[Q, R_co]: ...

    def undo(self, **options: Unpack[UndoOptions]) -> Callable[[F], F]:
        """Declare the handler that undoes the call. What its parameters get is in `arguments`, as JMESPath."""
        ...

    @overload
    def probe(self, handler: ProbeHandler, /) -> ProbeHandler: ...
    @overload
    def probe(self, /, **options: Unpack[ProbeOptions]) -> Callable[[ProbeHandler], ProbeHandler]:
        """Declare the handler that tells whether the call happened. It gets the `Step`."""
        ...

    def verify(self, handler: VerifyHandler, /) -> VerifyHandler:
        """Declare the handler that tells whether the undo took. It gets the undo's arguments that it names."""
        ...

    @overload
    def capture(self, handler: F, /) -> F: ...
    @overload
    def capture(self, /, **options: Unpack[CaptureOptions]) -> Callable[[F], F]:
        """Declare the read of what the call overwrites: the before-image. It gets the call's arguments that it names.

        It is called before the intent is written, which carries what it returns; if it raises, the call is not made.
        """
        ...

    @overload
    def restore(self, handler: F, /) -> F: ...
    @overload
    def restore(self, /, **options: Unpack[UndoOptions]) -> Callable[[F], F]:
        """Declare the undo that puts the before-image back, if the world still shows what the call wrote: `.undo` with
        restores="compare" and idempotency="natural"."""
        ...

    def options(
        self,
        *,
        timeout: Duration | None = None,
        call_id: str | None = None,
        repeatable: bool | None = None,
        after: Sequence[str] = (),
        tool_call_id: str | None = None,
        approval_within: Duration | None = None,
    ) -> Callable[P, R_co]:
        """Return the tool with options for its calls. For a method, `options(obj.method, ...)` does the same."""
        ...


def reversible(name: str, **options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], DeclaredTool[P, R]]:
    """Declare a tool whose effect can be taken back as if it had not been."""
    return _decorator(Effect.REVERSIBLE, name, options)


def compensable(name: str, **options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], DeclaredTool[P, R]]:
    """Declare a tool whose effect another call makes good (a refund), with a residue."""
    return _decorator(Effect.COMPENSABLE, name, options)


def irreversible(name: str, **options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], DeclaredTool[P, R]]:
    """Declare a tool whose effect nothing takes back. When its workflow fails a person is asked."""
    return _decorator(Effect.IRREVERSIBLE, name, options)


def read_only(name: str, **options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], DeclaredTool[P, R]]:
    """Declare a tool that changes nothing. It is called as it is, anywhere, and nothing is recorded."""
    return _decorator(Effect.NONE, name, options)


def unclassified(name: str, **options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], DeclaredTool[P, R]]:
    """Declare a tool of which nobody has said yet what it does. Recorded; a policy decides what follows."""
    return _decorator(Effect.UNCLASSIFIED, name, options)


def _decorator(effect: Effect, name: str, options: ToolOptions) -> Callable[[Callable[P, R]], DeclaredTool[P, R]]:
    if not isinstance(name, str):
        raise ContractError(
            f"{location_of(name)}: give the tool a name that stays when the function is renamed, such as "
            '@compensable("payments.charge").'
        )

    def declare(function: Callable[P, R]) -> DeclaredTool[P, R]:
        if isinstance(getattr(function, "tool", None), Tool):
            raise ContractError(f"{location_of(function)}: it is a tool of amends already; leave one decorator.")
        shape = shape_of(function)
        contract = contract_of(effect, name, shape, options)
        tool = Tool(shape=shape, terms=contract, refused_by=options.get("refused_by", ()))
        return cast("DeclaredTool[P, R]", _wrapped(tool))

    return declare


def _wrapped(tool: Tool) -> AnyCallable:
    made = _caller(tool, NO_OPTIONS)
    tool.wrapper = made
    made.__dict__.update(
        tool=tool,
        undo=functools.partial(_undo, tool),
        probe=functools.partial(_probe, tool),
        verify=functools.partial(_verify, tool),
        capture=functools.partial(_capture, tool),
        restore=functools.partial(_restore, tool),
        options=functools.partial(_options, tool),
    )
    return made


def _caller(tool: Tool, options: CallOptions) -> AnyCallable:
    caller: AnyCallable
    if tool.asynchronous:

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return await tool.run_async(args, kwargs, options)

        caller = call_async
    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            return tool.run(args, kwargs, options)

        caller = call
    shape, target = tool.shape, underlying(tool.shape.function)
    # An object's own attributes stay its own; a function's are part of how it looks.
    attributes = functools.WRAPPER_UPDATES if inspect.isfunction(shape.function) else ()
    functools.update_wrapper(caller, shape.function, updated=attributes)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        found = getattr(shape.function, attribute, None) or getattr(target, attribute, None)
        setattr(caller, attribute, found)
    hidden = {shape.key_name}
    annotations = getattr(target, "__annotations__", {})
    caller.__annotations__ = {name: hint for name, hint in annotations.items() if name not in hidden}
    parameters = dict(shape.all_parameters)
    caller.__dict__["__signature__"] = shape.signature.replace(
        parameters=[parameter for name, parameter in parameters.items() if name not in hidden]
    )
    return caller


def _handler(tool: Tool, role: Role, function: AnyCallable, options: UndoOptions | None = None) -> Handler:
    plain = function.__func__ if isinstance(function, staticmethod) else function
    found = options or UndoOptions()
    return Handler(
        tool_name=tool.name,
        role=role,
        shape=shape_of(plain, handler=True),
        refused_by=found.get("refused_by", ()),
        refused_for_good_by=found.get("refused_for_good_by", ()),
    )


def _undo(tool: Tool, *misplaced: object, **options: Unpack[UndoOptions]) -> Callable[[F], F]:
    if misplaced:
        raise ContractError(
            f"{location_of(misplaced[0])}: write the undo of {tool.name} with parentheses, and say by name what its "
            'parameters get: `.undo(arguments={"charge": "output.id"})`.'
        )

    def declare(function: F) -> F:
        handler = _handler(tool, Role.UNDO, function, options)
        terms = undo_terms_of(tool.name, handler.shape, options)
        tool.add_undo(handler, terms, restores_of(tool.name, handler.shape, options))
        return function

    return declare


def _restore(tool: Tool, function: AnyCallable | None = None, /, **options: Unpack[UndoOptions]) -> Any:
    given: UndoOptions = {"restores": "compare", "idempotency": "natural"}
    given.update(options)
    declare = _undo(tool, **given)
    return declare if function is None else declare(function)


def _capture(tool: Tool, function: AnyCallable | None = None, /, **options: Unpack[CaptureOptions]) -> Any:
    def declare(function: F) -> F:
        handler = _handler(tool, Role.CAPTURE, function)
        tool.add_capture(handler, writes_of(tool.name, handler.shape, options))
        return function

    return declare if function is None else declare(function)


def _probe(tool: Tool, function: AnyCallable | None = None, /, **options: Unpack[ProbeOptions]) -> Any:
    def declare(function: F) -> F:
        handler = _handler(tool, Role.PROBE, function)
        tool.add_probe(handler, *probe_terms_of(tool.name, handler.shape, options))
        return function

    return declare if function is None else declare(function)


def _verify(tool: Tool, function: F | None = None, /, **options: object) -> F:
    if function is None or options:
        raise ContractError(
            f"{tool.location}: write the verify of {tool.name} without parentheses, `.verify`: it takes no options. It "
            "is given the undo's arguments and has the undo's lease."
        )
    tool.add_verify(_handler(tool, Role.VERIFY, function))
    return function


def _options(
    tool: Tool,
    *,
    timeout: Duration | None = None,
    call_id: str | None = None,
    repeatable: bool | None = None,
    after: Sequence[str] = (),
    tool_call_id: str | None = None,
    approval_within: Duration | None = None,
) -> AnyCallable:
    timeout_ms = None if timeout is None else duration_ms(timeout)
    for option, name in (("call_id", call_id), ("tool_call_id", tool_call_id)):
        if name is not None and not (isinstance(name, str) and name):
            raise ValueError(f"{option}={name!r} is no name: give a text that tells this call from the others")
    if call_id is not None and tool_call_id is not None:
        raise ValueError("call_id is your own name of the call, tool_call_id a model's: give one of them")
    if isinstance(after, str) or not all(isinstance(name, str) and name for name in after):
        raise ValueError(f"after={after!r} is no list of names: give the call ids, or step ids, of earlier calls")
    within_ms = None if approval_within is None else duration_ms(approval_within)
    return _caller(tool, CallOptions(timeout_ms, call_id, repeatable, tuple(after), tool_call_id, within_ms))


def options(
    call: Callable[P, R],
    *,
    timeout: Duration | None = None,
    call_id: str | None = None,
    repeatable: bool | None = None,
    after: Sequence[str] = (),
    tool_call_id: str | None = None,
    approval_within: Duration | None = None,
) -> Callable[P, R]:
    """Return a declared tool, or a bound method that is one, with options for its calls.

    Args:
        call_id: your own name of the call. Two calls of one name are one call, of two names two, whatever they ask.
        tool_call_id: the name that a model or its framework gave the call. Whoever plans again gives another name to
            the same call: one with equal arguments that is open, unknown or done is not made again (`duplicates`).
        approval_within: how long this call waits for a person's approval, where it needs one.
        after: call ids, or step ids, of the calls that this one is built on: it is undone before them. What the
            arguments show by themselves (an id that an earlier call returned) need not be told.

    Raises:
        ContractError: it is no tool.
    """
    tool = getattr(call, "tool", None)
    if not isinstance(tool, Tool):
        raise ContractError(f"{location_of(call)}: it is no tool of amends, so it takes no options.")
    caller = _options(
        tool,
        timeout=timeout,
        call_id=call_id,
        repeatable=repeatable,
        after=after,
        tool_call_id=tool_call_id,
        approval_within=approval_within,
    )
    bound_to = getattr(call, "__self__", None)
    return cast("Callable[P, R]", caller if bound_to is None else functools.partial(caller, bound_to))


__all__ = [
    "DeclaredTool",
    "Exceptions",
    "compensable",
    "irreversible",
    "options",
    "read_only",
    "reversible",
    "unclassified",
]
