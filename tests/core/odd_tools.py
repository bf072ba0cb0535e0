"""Tools whose undos, probes and verifies end in every odd way. Each is there twice: plain and as a coroutine."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from amends.tools import (
    KEY,
    Absent,
    AlreadyUndone,
    NothingToUndo,
    NotUndone,
    Present,
    Step,
    StillThere,
    Undone,
    Unknown,
    compensable,
    current_step,
)


class OddError(Exception):
    """A remote's refusal."""


class OverError(Exception):
    """A remote's refusal for ever."""


class RudeError(BaseException):
    """No Exception at all."""


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def end(how: str) -> Any:
    """End as told."""
    answers: dict[str, Any] = {
        "none": None,
        "plain": {"refund": "re_1"},
        "undone": Undone("re_1"),
        "already": AlreadyUndone(),
        "nothing": NothingToUndo("404"),
        "still there": StillThere("202"),
        "unknown": Unknown("silence"),
        "not undone": NotUndone("closed", retryable=False, key_refused=True),
        "present": Present({"id": "ch_9"}),
        "absent": Absent("no such charge"),
        "huge": "x" * 5_000_000,
        "error value": ValueError("returned"),
        "generator": (number for number in range(3)),
    }
    if how in answers:
        return answers[how]
    if how == "exit":
        sys.exit(3)
    if how == "die":
        os._exit(9)
    raise {
        "refused": OddError("declined"),
        "over": OverError("window closed"),
        "raises": RuntimeError("boom " + "x" * 5_000),
        "rude": RudeError("rude"),
        "wordless": WordlessError(),
        "interrupt": KeyboardInterrupt(),
        "cancelled": asyncio.CancelledError(),
        "stop": StopIteration(1),
    }[how]


@compensable("odd.plain", idempotency="key")
def plain(how: str, *, key: str = KEY) -> dict[str, str]:
    return {"id": f"{how}-{key}"}


@plain.undo(arguments={"how": "input.how"}, idempotency="key", refused_by=(OddError,), refused_for_good_by=(OverError,))
def unplain(how: str, *, key: str = KEY) -> Any:
    if how == "hang":
        time.sleep(60)
    if how == "awaitable":
        return asyncio.sleep(0)
    if how == "key":
        return {"key": key, "step": current_step().step_id, "process": os.getpid()}
    if how == "forks":
        return end("undone" if os.fork() else "nothing")
    return end(how)


@plain.probe
def probe_plain(step: Step) -> Any:
    return end(step.input["how"])


@plain.verify
def verify_plain(how: str) -> Any:
    return end(how)


@compensable("odd.coroutine", idempotency="key")
async def coroutine(how: str, *, key: str = KEY) -> dict[str, str]:
    return {"id": f"{how}-{key}"}


@coroutine.undo(
    arguments={"how": "input.how"}, idempotency="key", refused_by=(OddError,), refused_for_good_by=(OverError,)
)
async def uncoroutine(how: str, *, key: str = KEY) -> Any:
    if how == "hang":
        await asyncio.sleep(60)
    if how == "awaitable":
        return asyncio.sleep(0)
    if how == "key":
        return {"key": key, "step": current_step().step_id, "process": os.getpid()}
    if how == "stubborn":
        for _ in range(20):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
    if how == "holds the loop":
        time.sleep(1)  # noqa: ASYNC251 - what this one is about
    return end("none" if how in ("stubborn", "holds the loop") else how)


@coroutine.probe
async def probe_coroutine(step: Step) -> Any:
    return end(step.input["how"])


@coroutine.verify
async def verify_coroutine(how: str) -> Any:
    return end(how)


@compensable("odd.generator", idempotency="key")
def generated(how: str, *, key: str = KEY) -> dict[str, str]:
    return {"id": key}


@generated.undo(arguments={"how": "input.how"}, idempotency="key")
def ungenerated(how: str, *, key: str = KEY) -> Iterator[int]:
    return (number for number in range(3))


@compensable("odd.bare", idempotency="neither")
def bare(how: str) -> None:
    return None
