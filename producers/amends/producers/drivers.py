"""Driving a flow: do what it asks, send it the answer. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeVar

from amends.producers.effects import Effect, Raised, Result, Returned

R = TypeVar("R")


def drive(flow: Generator[Effect, Any, R], perform: Callable[[Effect], Any]) -> R:
    """Run `flow` to its end in this thread. What `perform` raises, an interruption included, is raised in the flow."""
    end = drive_to((), flow, advance(flow, None), perform)
    assert isinstance(end, End)
    return end.value  # type: ignore[no-any-return]


def drive_to(
    stops: tuple[type[Effect], ...],
    flow: Generator[Effect, Any, R],
    effect: Effect | End,
    perform: Callable[[Effect], Any],
) -> Effect | End:
    """Run `flow` on from `effect`, to its end or to the first effect in `stops`, which is returned undone."""
    while not isinstance(effect, End) and not isinstance(effect, stops):
        answer, error = None, None
        try:
            answer = perform(effect)
        except BaseException as raised:
            error = raised
        effect = advance(flow, answer, error)
    return effect


async def drive_async(
    flow: Generator[Effect, Any, R],
    perform: Callable[[Effect], Awaitable[Any]],
    at_once: Callable[[Effect], Any],
) -> R:
    """As `drive`, in a task. `at_once` returns LATER for an effect that must be waited for; only such a one is
    performed and awaited: a task that is cancelled or closed ends with effects that are not, so it never waits again.
    """
    # Every call of every tool goes through here ten times: so it is not `drive_to_async`, which can stop on its way.
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            effect = flow.send(answer) if error is None else flow.throw(error)
            answer, error = None, None
            try:
                answer = at_once(effect)
                if answer is LATER:
                    answer = await perform(effect)
            except BaseException as raised:
                error = raised
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def drive_to_async(
    stops: tuple[type[Effect], ...],
    flow: Generator[Effect, Any, R],
    effect: Effect | End,
    perform: Callable[[Effect], Awaitable[Any]],
    at_once: Callable[[Effect], Any],
) -> Effect | End:
    """As `drive_to`, in a task."""
    while not isinstance(effect, End) and not isinstance(effect, stops):
        answer, error = None, None
        try:
            answer = at_once(effect)
            if answer is LATER:
                answer = await perform(effect)
        except BaseException as raised:
            error = raised
        effect = advance(flow, answer, error)
    return effect


class Later:
    """Nothing was done: the effect must be waited for."""


LATER: Final = Later()


class End:
    """The flow has ended, with this value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def advance(flow: Generator[Effect, Any, R], answer: Any, error: BaseException | None = None) -> Effect | End:
    """Give `flow` an answer, or raise `error` in it; return what it asks next."""
    try:
        return flow.send(answer) if error is None else flow.throw(error)
    except StopIteration as stop:
        return End(stop.value)


def handed_over(result: Result) -> Any:
    """Return what the body returned, or raise what it raised, untouched."""
    if isinstance(result, Returned):
        return result.value
    assert isinstance(result, Raised)
    try:
        raise result.error
    finally:
        del result  # the traceback would hold this frame, and the frame the error
