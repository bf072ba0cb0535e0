"""The tools of the agents: one of each kind of remote, as a team would declare them for what `outside.py` has.

Imported by agents and by compensators. Leases are short. What rests on `verify` has a lease of more than twice the
longest freeze: it rests on nobody sleeping longer than half of it (A1).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import Any

from tests.chaos.outside import LATEST_S, Act

from amends.tools import (
    KEY,
    Absent,
    NothingToUndo,
    Present,
    Step,
    StillThere,
    Undone,
    Unknown,
    compensable,
    irreversible,
    reversible,
)

PORT = "CHAOS_OUTSIDE"
LANES = ("chaos", "slow")
LEASE = "4s"
LONG_LEASE = "20s"
SETTLES = f"{int(LATEST_S * 2_500)}ms"  # a request's effect, and what a busy machine adds


class Unavailable(Exception):  # noqa: N818 - what the remote did
    """The remote says that it did nothing."""


class Refused(Exception):  # noqa: N818 - what the remote did
    """The remote says that it did nothing and that it never will."""


async def ask(act: Act, workflow: str, kind: str, key: str = "") -> dict[str, Any]:
    """Ask a remote. Raises Unavailable, or OSError where nobody knows what happened."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ[PORT]))
    try:
        writer.write(_request(act, workflow, kind, key))
        return _answer(await reader.readline())
    finally:
        writer.close()


def ask_plainly(act: Act, workflow: str, kind: str, key: str = "") -> dict[str, Any]:
    """As `ask`, for plain functions."""
    with socket.create_connection(("127.0.0.1", int(os.environ[PORT])), timeout=30) as connection:
        connection.sendall(_request(act, workflow, kind, key))
        with connection.makefile("rb") as lines:
            return _answer(lines.readline())


def _request(act: Act, workflow: str, kind: str, key: str) -> bytes:
    return json.dumps({"act": act, "workflow": workflow, "kind": kind, "key": key}).encode() + b"\n"


def _answer(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the remote has closed the connection")
    found: dict[str, Any] = json.loads(line)
    if "error" in found:
        raise Unavailable(found["error"])
    return found


WRITTEN = "written"
OF_WORKFLOW = {"workflow": "input.workflow"}


@compensable("chaos.keyed", refused_by=(Unavailable,), idempotency="key", lease=LEASE, settles_in=SETTLES)
async def keyed(workflow: str, built_on: str, *, key: str = KEY) -> str:
    return str((await ask(Act.DO, workflow, "keyed", key))["effect"])


@keyed.undo(
    arguments=OF_WORKFLOW, refused_by=(Unavailable,), idempotency="key", lease=LEASE, settles_in=SETTLES, attempts=30,
    backoff="200ms", backoff_cap="2s",
)  # fmt: skip
async def undo_keyed(workflow: str, *, key: str = KEY) -> None:
    await ask(Act.UNDO, workflow, "keyed", key)


@keyed.probe(settles_in=SETTLES, lease=LEASE, attempts=30, backoff="200ms", backoff_cap="2s")
async def was_keyed(step: Step) -> Present | Absent:
    return await _was_done(step, "keyed")


@compensable("chaos.natural", refused_by=(Unavailable,), idempotency="key", lease=LEASE, settles_in=SETTLES)
async def natural(workflow: str, built_on: str, *, key: str = KEY) -> str:
    return str((await ask(Act.DO, workflow, "natural", key))["effect"])


@natural.undo(
    arguments=OF_WORKFLOW, refused_by=(Unavailable,), idempotency="natural", lease=LEASE, settles_in=SETTLES,
    attempts=30, backoff="200ms", backoff_cap="2s", lane="slow",
)  # fmt: skip
async def undo_natural(workflow: str) -> NothingToUndo | Undone:
    answer = await ask(Act.UNDO, workflow, "natural")
    return Undone() if answer["undone"] else NothingToUndo(evidence="nothing is there")


@natural.verify
async def natural_is_undone(workflow: str) -> Undone | StillThere | Unknown:
    return await _is_undone(workflow, "natural")


@compensable("chaos.plain", refused_by=(Unavailable,), idempotency="neither", lease=LEASE)
async def plain(workflow: str, built_on: str, *, key: str = KEY) -> str:
    return str((await ask(Act.DO, workflow, "plain", key))["effect"])


@plain.undo(
    arguments=OF_WORKFLOW, refused_by=(Unavailable,), idempotency="neither", lease=LONG_LEASE, settles_in=SETTLES,
    attempts=30, backoff="200ms", backoff_cap="2s",
)  # fmt: skip
def undo_plain(workflow: str) -> None:
    ask_plainly(Act.UNDO, workflow, "plain")


@plain.probe(settles_in=SETTLES, lease=LEASE, attempts=30, backoff="200ms", backoff_cap="2s")
async def was_plain(step: Step) -> Present | Absent:
    return await _was_done(step, "plain")


@plain.verify
async def plain_is_undone(workflow: str) -> Undone | StillThere | Unknown:
    return await _is_undone(workflow, "plain")


@reversible("chaos.record", refused_by=(Unavailable,), idempotency="key", lease=LEASE, settles_in=SETTLES)
async def record(workflow: str, built_on: str, value: str = WRITTEN, *, key: str = KEY) -> str:
    return str((await ask(Act.DO, workflow, "record", key))["effect"])


@record.capture(writes="input.value")
async def recorded(workflow: str) -> str:
    return "" if (await ask(Act.IS_UNDONE, workflow, "record"))["undone"] else WRITTEN


@record.restore(
    arguments=OF_WORKFLOW, refused_by=(Unavailable,), lease=LEASE, settles_in=SETTLES, attempts=30, backoff="200ms",
    backoff_cap="2s",
)  # fmt: skip
async def put_back(workflow: str) -> None:
    await ask(Act.UNDO, workflow, "record")


@compensable("chaos.blind", refused_by=(Unavailable,), idempotency="neither", lease=LEASE, settles_in=SETTLES)
async def blind(workflow: str, built_on: str) -> str:
    return str((await ask(Act.DO, workflow, "blind"))["effect"])


@blind.undo(
    arguments=OF_WORKFLOW, refused_by=(Unavailable,), idempotency="neither", lease=LEASE, settles_in=SETTLES,
    attempts=30, backoff="200ms", backoff_cap="2s",
)  # fmt: skip
def undo_blind(workflow: str) -> None:
    ask_plainly(Act.UNDO, workflow, "blind")


@irreversible("chaos.final", refused_by=(Unavailable,), idempotency="neither", lease=LONG_LEASE, settles_in=SETTLES)
async def final(workflow: str) -> str:
    """Waits until the fold has seen its intent; a busy one may take seconds, so its lease is long."""
    return str((await ask(Act.DO, workflow, "final"))["effect"])


@compensable("chaos.last", refused_by=(Refused,), idempotency="key", lease=LEASE, settles_in=SETTLES)
async def last(workflow: str, refuses: bool, *, key: str = KEY) -> None:
    """The last call of an agent: it makes nothing, and may be refused for good."""
    if refuses:
        raise Refused(workflow)


@last.undo(arguments=OF_WORKFLOW, idempotency="natural", lease=LEASE, commutes=True, attempts=30)
async def undo_last(workflow: str) -> None:
    """There is nothing of it in the world."""


TOOLS = {"keyed": keyed, "natural": natural, "plain": plain, "blind": blind, "record": record}


async def _was_done(step: Step, kind: str) -> Present | Absent:
    effect = (await ask(Act.IS_DONE, step.input["workflow"], kind, step.key))["effect"]
    return Absent(evidence="the remote knows no such reference") if effect is None else Present(output=effect)


async def _is_undone(workflow: str, kind: str) -> Undone | StillThere | Unknown:
    answer = await ask(Act.IS_UNDONE, workflow, kind)
    return Undone(evidence="none stands") if answer["undone"] else StillThere(evidence="it stands")
