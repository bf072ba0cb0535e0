"""Tools whose undos are done in a file: one line for each time an undo took. The file is the world, and the judge."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from amends.tools import KEY, Absent, NothingToUndo, Present, Step, StillThere, Undone, compensable


def do(world: str, what: str) -> None:
    """One append is one write, whole, whoever else writes."""
    handle = os.open(world, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{what}\n".encode())
    os.close(handle)


def lines_of(world: str) -> list[str]:
    path = Path(world)
    return path.read_text().splitlines() if path.exists() else []


ARGUMENTS = {"world": "input.world", "name": "input.name", "seconds": "input.seconds"}


@compensable("files.plain", idempotency="key")
def plain(world: str, name: str, seconds: float = 0, *, key: str = KEY) -> dict[str, str]:
    do(world, f"do {name}")
    return {"name": name}


@plain.undo(arguments=ARGUMENTS, idempotency="neither", lane="files", lease="30s")
def unplain(world: str, name: str, seconds: float = 0) -> None:
    do(world, f"begin {name}")
    time.sleep(seconds)
    do(world, f"undo {name}")


@compensable("files.coroutine", idempotency="key")
async def coroutine(world: str, name: str, seconds: float = 0, *, key: str = KEY) -> dict[str, str]:
    do(world, f"do {name} {key}")
    return {"name": name}


@coroutine.undo(arguments=ARGUMENTS, idempotency="neither", lane="files", lease="30s")
async def uncoroutine(world: str, name: str, seconds: float = 0) -> NothingToUndo | None:
    do(world, f"begin {name}")
    await asyncio.sleep(seconds)
    if f"undo {name}" in lines_of(world) and name.startswith("polite"):
        return NothingToUndo("it is undone")
    do(world, f"undo {name}")
    return None


@coroutine.verify
async def is_undone(world: str, name: str) -> Undone | StillThere:
    return Undone() if f"undo {name}" in lines_of(world) else StillThere()


@coroutine.probe
async def was_done(step: Step) -> Present | Absent:
    name = step.input["name"]
    done = any(line.startswith(f"do {name}") for line in lines_of(step.input["world"]))
    return Present({"name": name}) if done else Absent("no such line")
