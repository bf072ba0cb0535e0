"""Handlers: the callables that undo a call, ask whether it happened, look whether it took, read what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from amends.tools.errors import ArgumentsDoNotFit
from amends.tools.shape import Shape
from amends.tools.step import Step

Exceptions = tuple[type[BaseException] | str, ...]
"""Exception classes, or their qualified names (`stripe.CardError`), so that a module need not import them."""


class Role(StrEnum):
    FORWARD = "forward"
    UNDO = "undo"
    PROBE = "probe"
    VERIFY = "verify"
    CAPTURE = "capture"


def qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def is_one_of(error: BaseException, kinds: Exceptions) -> bool:
    """Tell whether `error` is an instance of one of `kinds`, classes or names; subclasses count."""
    names = {qualified_name(kind) for kind in type(error).__mro__}
    return any(kind in names if isinstance(kind, str) else isinstance(error, kind) for kind in kinds)


@dataclass(frozen=True, slots=True)
class Handler:
    """One handler of one tool. `asynchronous`: `call` returns an awaitable."""

    tool_name: str
    role: Role
    shape: Shape
    refused_by: Exceptions = ()  # undo only: the undo had no effect, a later attempt may
    refused_for_good_by: Exceptions = ()  # undo only: the undo had no effect and never will

    @property
    def location(self) -> str:
        """`file:line`, for errors and incidents."""
        return self.shape.location

    @property
    def asynchronous(self) -> bool:
        return self.shape.asynchronous

    @property
    def needs_step(self) -> bool:
        """Whether it asks for the whole step, whose payloads must then be fetched from the ledger."""
        return self.shape.step_name is not None

    @property
    def takes_key(self) -> bool:
        return self.shape.key_name is not None

    def call(self, arguments: Mapping[str, Any], *, key: str, step: Step | None = None) -> Any:
        """Call it. A verify is given the undo's arguments, a capture the call's, of which it takes those it names.

        Args:
            arguments: decoded, as they were resolved.
            key: the undo's idempotency key; a probe's is the call's.
            step: must be given if `needs_step`.

        Raises:
            ArgumentsDoNotFit: the handler was not called. Whatever else is raised comes from the handler.
        """
        keywords = self.shape.fit(self._taken(arguments))
        if self.shape.key_name is not None:
            keywords[self.shape.key_name] = key
        if self.shape.step_name is not None:
            assert step is not None, f"{self.location} asks for the Step: fetch it before the call"
            keywords[self.shape.step_name] = step
        return self.shape.function(**keywords)

    def _taken(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        known = self.shape.recorded
        taken = {n: v for n, v in arguments.items() if n in known or self.shape.takes_any_keyword}
        if self.role is Role.UNDO and len(taken) < len(arguments):
            extra = ", ".join(sorted(set(arguments) - set(taken)))
            raise ArgumentsDoNotFit(f"{self.location}: the undo of {self.tool_name} takes no {extra}.")
        missing = self.shape.required - set(taken)
        if missing:
            raise ArgumentsDoNotFit(
                f"{self.location}: the {self.role} of {self.tool_name} wants {', '.join(sorted(missing))}, "
                "which was not recorded."
            )
        return taken
