"""A process full of agents that is made to be killed: `python -m proof.agents FILE LEASE KILLED`, a file of cases as
JSON, and where in its last call each is to be killed: behind it, or inside it, before or after its effect.

Each makes its calls and then stands still inside its workflow, for ever. When the last of them does, `all made` is
printed, and whoever started the process kills it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from amends.producers import workflow
from amends.tools.errors import LedgerUnavailable
from proof.databases import Refused, ask
from proof.tools import TOOLS

TRIES_MAX = 20


async def _agent(case: dict[str, Any], lease: str, killed: str, made: asyncio.Event) -> None:
    """Run one agent to where it is killed. Two hundred begin at once: what a slow ledger refuses is tried again."""
    for _ in range(TRIES_MAX):
        try:
            await _run(case, lease, killed, made)
        except LedgerUnavailable:
            await asyncio.sleep(1)
    raise SystemExit(f"{case['name']} could not begin")


async def _run(case: dict[str, Any], lease: str, killed: str, made: asyncio.Event) -> None:
    async with workflow(case["name"], agent="tau2", lease=lease):
        calls = case["calls"]
        for call in calls if killed == "behind" else calls[:-1]:
            with contextlib.suppress(Refused):  # some reference calls are refused: their tasks are about that
                await _made(case, call)
        if killed == "behind":
            made.set()
            await asyncio.Event().wait()
        await ask(case["name"], "silence", when=killed)
        async with asyncio.TaskGroup() as inside:
            inside.create_task(_made(case, calls[-1]))
            while not await ask(case["name"], "silenced"):  # noqa: ASYNC110 - another process is asked
                await asyncio.sleep(0.05)
            made.set()


async def _made(case: dict[str, Any], call: dict[str, Any]) -> None:
    tool = TOOLS[case["domain"], call["tool"]]
    for _ in range(TRIES_MAX):
        try:
            await tool(case=case["name"], **call["arguments"])
            return
        except LedgerUnavailable:
            await asyncio.sleep(1)
    raise SystemExit(f"{case['name']}: {call['tool']} was not let through {TRIES_MAX} times")


async def main(cases: list[dict[str, Any]], lease: str, killed: str) -> None:
    async with asyncio.TaskGroup() as agents:
        stops = [asyncio.Event() for _ in cases]
        for case, made in zip(cases, stops, strict=True):
            agents.create_task(_agent(case, lease, killed, made))
        for made in stops:
            await made.wait()
        print("all made", flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2], sys.argv[3]))
