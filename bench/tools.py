"""Job S's tools: they do nothing, return 1 KB, and are undone by nothing, so that what is measured is amends alone."""

from __future__ import annotations

import asyncio

from amends.tools import compensable

LANE = "bench"
RESULT = "x" * 1_000


class FourthFailed(Exception):  # noqa: N818 (what happened, in the story)
    """What the fourth step always raises."""


@compensable("bench.step", refused_by=(FourthFailed,))
async def step(number: int) -> dict[str, object]:
    await asyncio.sleep(0)
    if number == 3:
        raise FourthFailed("as every time")
    return {"id": f"r-{number}", "data": RESULT}


@step.undo(arguments={"id": "output.id"}, idempotency="natural", commutes=True, lane=LANE)
async def undo_step(id: str) -> None:
    await asyncio.sleep(0)
