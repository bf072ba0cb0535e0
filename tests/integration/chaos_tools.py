"""Cheap remotes of three kinds with an honest history: a file per workflow, a line for each thing a remote was asked.

A line is one append, whole whoever is killed when; nothing ever removes one. `keyed` takes keys, so lines of one key
are one effect. `natural` is idempotent by nature. `plain` is neither: every line is an effect, and it can be asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from amends.tools import KEY, Absent, Present, Step, StillThere, Undone, compensable

FOLDER = "CHAOS_WORLD"
KINDS = ("plain", "keyed", "natural")  # in the order of the calls
LANES = ("chaos",)


class Refused(Exception):  # noqa: N818 - what the remote did
    """The remote says that it did nothing."""


def path_of(workflow: str) -> Path:
    return Path(os.environ[FOLDER]) / workflow


def write(workflow: str, act: str, kind: str, key: str) -> None:
    handle = os.open(path_of(workflow), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{act} {kind} {key}\n".encode())
    os.close(handle)


def lines(workflow: str) -> list[str]:
    path = path_of(workflow)
    return path.read_text().splitlines() if path.exists() else []


ARGUMENTS = {"workflow": "input.workflow"}


@compensable("chaos.keyed", idempotency="key", lease="4s", settles_in="300ms")
async def keyed(workflow: str, *, key: str = KEY) -> None:
    write(workflow, "do", "keyed", key)


@keyed.undo(arguments=ARGUMENTS, idempotency="key", lease="4s", settles_in="300ms", attempts=12)
async def unkeyed(workflow: str, *, key: str = KEY) -> None:
    write(workflow, "undo", "keyed", key)


@compensable("chaos.natural", idempotency="key", lease="4s", settles_in="300ms")
async def natural(workflow: str, *, key: str = KEY) -> None:
    write(workflow, "do", "natural", key)


@natural.undo(arguments=ARGUMENTS, idempotency="natural", lease="4s", settles_in="300ms", attempts=12)
async def unnatural(workflow: str) -> None:
    write(workflow, "undo", "natural", "-")


@natural.verify
async def natural_is_undone(workflow: str) -> Undone | StillThere:
    return _state(workflow, "natural")


@compensable("chaos.plain", idempotency="neither", lease="4s")
async def plain(workflow: str, *, key: str = KEY) -> None:
    write(workflow, "do", "plain", key)


# Longer than twice a freeze: what rests on `verify` rests on nobody sleeping longer than half a lease (A1).
@plain.undo(arguments=ARGUMENTS, idempotency="neither", lease="20s", settles_in="300ms", attempts=12)
def unplain(workflow: str) -> None:
    write(workflow, "undo", "plain", "-")


@plain.probe(settles_in="300ms")
async def was_plain(step: Step) -> Present | Absent:
    wanted = f"do plain {step.key}"
    return Present(output=None) if wanted in lines(step.input["workflow"]) else Absent(evidence="no such line")


@plain.verify
def plain_is_undone(workflow: str) -> Undone | StillThere:
    return _state(workflow, "plain")


def _state(workflow: str, kind: str) -> Undone | StillThere:
    undone = any(line.startswith(f"undo {kind} ") for line in lines(workflow))
    return Undone(evidence="the line is there") if undone else StillThere(evidence="no such line")


@compensable("chaos.last", refused_by=(Refused,), idempotency="key", lease="4s", settles_in="300ms")
async def last(workflow: str, refuses: bool, *, key: str = KEY) -> None:
    if refuses:
        raise Refused(workflow)


@last.undo(arguments=ARGUMENTS, idempotency="natural", lease="4s", commutes=True, attempts=12)
async def unlast(workflow: str) -> None:
    """There is nothing of it in the world."""


# --- the judge --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tally:
    """How often a kind of effect was made, and undone, in one workflow."""

    done: int
    undone: int


def tally(written: Iterable[str], kind: str) -> Tally:
    """Count effects as the remote of this kind does."""
    asked = [line.split(" ") for line in written]
    done = [key for act, of, key in asked if (act, of) == ("do", kind)]
    undone = [key for act, of, key in asked if (act, of) == ("undo", kind)]
    if kind == "plain":
        return Tally(len(done), len(undone))
    return Tally(len(set(done)), len(set(undone)))


def judge(written: list[str], *, stands: bool) -> list[str]:
    """Return what is wrong in the world of one workflow that succeeded (`stands`), or else is cleared."""
    wrong = []
    for kind in KINDS:
        found = tally(written, kind)
        if found.done > 1:
            wrong.append(f"{kind} done {found.done} times")
        if found.undone > found.done:
            wrong.append(f"{kind} undone {found.undone} times, done {found.done} times")
        if stands and (found.done, found.undone) != (1, 0):
            wrong.append(f"{kind} should stand: done {found.done} times, undone {found.undone} times")
        if not stands and found.undone < found.done:
            wrong.append(f"{kind} left: done {found.done} times, undone {found.undone} times")
    return wrong
