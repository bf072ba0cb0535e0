"""Secret arguments: which they are, and what of them must not show up anywhere."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, cast

from pydantic import SecretBytes, SecretStr

AnyCallable = Callable[..., Any]


class Secret:
    """Mark of a secret argument: `password: Annotated[str, Secret]`. Recorded as a digest, never as itself."""


F = typing.TypeVar("F", bound=AnyCallable)


def secret(*names: str) -> Callable[[F], F]:
    """Mark arguments as secret, below the tool's decorator: recorded as digests, so an undo can't read them."""

    def mark(function: F) -> F:
        function.__dict__["__amends_secret__"] = (*secret_names(function), *names)
        return function

    return mark


def secret_names(function: object) -> tuple[str, ...]:
    """Return the names `secret` marked on `function`."""
    return cast("tuple[str, ...]", getattr(function, "__amends_secret__", ()))


def revealed(value: object) -> object:
    """Return what a masked secret of pydantic holds; anything else as it is."""
    reveal = getattr(value, "get_secret_value", None)
    return reveal() if callable(reveal) else value


def texts_of(value: object) -> Iterator[str]:
    """Yield the texts in a secret value that must not show up elsewhere."""
    value = revealed(value)
    if isinstance(value, Mapping):
        for item in cast("Mapping[object, object]", value).values():
            yield from texts_of(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in cast("Iterable[object]", value):
            yield from texts_of(item)
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif value is not None and value != "":
        yield str(value)


def is_secret(hint: Any) -> bool:
    if isinstance(hint, str):  # not understood: rather a digest too many than a secret on the ledger
        return "Secret" in hint
    if typing.get_origin(hint) is Annotated:
        inner, *marks = typing.get_args(hint)
        return any(mark is Secret or isinstance(mark, Secret) for mark in marks) or is_secret(inner)
    return hint in (SecretStr, SecretBytes) or any(is_secret(part) for part in typing.get_args(hint))
