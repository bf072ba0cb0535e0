"""A tool whose calls and undos are written down in `WORLD`, in their order, all in one process."""

from __future__ import annotations

from amends.tools import StillThere, Undone, compensable

LANE = "doors"
WORLD: list[str] = []


@compensable("doors.book", idempotency="natural", repeatable=True)
async def book(item: str) -> dict[str, str]:
    WORLD.append(f"book {item}")
    return {"item": item}


@book.undo(arguments={"item": "input.item"}, idempotency="natural", lane=LANE)
async def cancel(item: str) -> None:
    WORLD.append(f"cancel {item}")


@book.verify
async def is_cancelled(item: str) -> Undone | StillThere:
    return Undone() if f"cancel {item}" in WORLD else StillThere()
