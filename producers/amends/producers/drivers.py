"""Driving a flow: do what it asks, send it the answer. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from amends.producers.effects import Effect, Raised, Result, Returned

R = TypeVar("R")


def drive(flow: Generator[Effect, Any, R], perform: Callable[[Effect], Any]) -> R:
    """Run `flow` to its end in this thread. What `perform` raises, an interruption included, is raised in the flow."""
    effect = _next(flow, None, None)
    while not isinstance(effect, _End):
        answer, error = None, None
        try:
            answer = perform(effect)
        except BaseException as raised:
            error = raised
        effect = _next(flow, answer, error)
    return effect.value  # type: ignore[no-any-return]


async def drive_async(
    flow: Generator[Effect, Any, R],
    perform: Callable[[Effect], Awaitable[Any]],
    at_once: Callable[[Effect], Any],
    waits: tuple[type[Effect], ...],
) -> R:
    """As `drive`, in a task. Only effects in `waits` are awaited: a task that is cancelled or closed ends with effects
    that are not, so it never waits again."""
    effect = _next(flow, None, None)
    while not isinstance(effect, _End):
        answer, error = None, None
        try:
            answer = await perform(effect) if isinstance(effect, waits) else at_once(effect)
        except BaseException as raised:
            error = raised
        effect = _next(flow, answer, error)
    return effect.value  # type: ignore[no-any-return]


class _End:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _next(flow: Generator[Effect, Any, R], answer: Any, error: BaseException | None) -> Effect | _End:
    try:
        return flow.send(answer) if error is None else flow.throw(error)
    except StopIteration as stop:
        return _End(stop.value)


def handed_over(result: Result) -> Any:
    """Return what the body returned, or raise what it raised, untouched."""
    if isinstance(result, Returned):
        return result.value
    assert isinstance(result, Raised)
    try:
        raise result.error
    finally:
        del result  # the traceback would hold this frame, and the frame the error
