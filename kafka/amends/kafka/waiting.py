"""Who waits for the answer to a write: a callback, a thread, a coroutine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from amends.kafka.errors import WriteError
from amends.kafka.producing import Answer
from amends.kafka.records import Ack

logger = logging.getLogger(__name__)

OnDone = Callable[[Ack | WriteError], None]


class Callback(Answer):
    __slots__ = ("_on_done",)

    def __init__(self, on_done: OnDone) -> None:
        self._on_done = on_done

    def give(self, result: Ack | WriteError) -> None:
        try:
            self._on_done(result)
        except Exception:
            # The thread answers everybody: one caller's bug must not leave the others without their answers.
            logger.exception("on_done raised")


class Blocker(Answer):
    __slots__ = ("_event", "_result")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._result: Ack | WriteError | None = None

    def give(self, result: Ack | WriteError) -> None:
        self._result = result
        self._event.set()

    def wait(self) -> Ack:
        self._event.wait()
        return _acknowledged(self._result)


class Waiter(Answer):
    """An answer for a coroutine; those of one loop are given together."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[Ack] = loop.create_future()

    def give(self, result: Ack | WriteError) -> None:
        self.give_later([(self, result)])

    def give_later(self, answers: Sequence[tuple[Answer, Ack | Exception]]) -> None:
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(_give_all, answers)


def _give_all(answers: Sequence[Any]) -> None:
    for waiter, result in answers:
        if waiter.future.done():
            continue
        if isinstance(result, Ack):
            waiter.future.set_result(result)
        else:
            waiter.future.set_exception(result)


def _acknowledged(result: Ack | WriteError | None) -> Ack:
    if isinstance(result, Ack):
        return result
    assert result is not None
    raise result
