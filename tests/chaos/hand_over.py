"""How an agent has a child of its workflow run by another process: each process of agents has a door, a socket in one
folder, and an agent knocks at one that is not its own. Nothing of amends is in this but the text of a `reference()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

FOLDER = "CHAOS_DOORS"
CHILD = ".child"
"""What the id of a child's workflow ends with; its parent's is what stands before."""


def parent_of(name: str) -> str | None:
    """Return the id of the workflow that this one is a child of."""
    return name.removesuffix(CHILD) if name.endswith(CHILD) else None


class NobodyThere(OSError):  # noqa: N818 - what is there
    """No other process opens, or the one that did is gone: what became of the child is not known here."""


@contextlib.asynccontextmanager
async def open_door(name: str, run: Callable[[str, str], Awaitable[str]]) -> AsyncIterator[None]:
    """Run what others hand over, for the length of a block, as `run(child's id, reference)`; answer what it returns.

    At the end nothing more is taken, and what was is brought to its end.
    """
    begun: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        begun.add(task)
        try:
            asked = json.loads(await reader.readline())
            writer.write(json.dumps(await run(asked["child"], asked["reference"])).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError):
            pass  # whoever asked is gone
        finally:
            writer.close()
            begun.discard(task)

    path = Path(os.environ[FOLDER]) / f"{name}.door"
    server = await asyncio.start_unix_server(answer, path)
    try:
        yield
    finally:
        server.close()
        path.unlink()
        await asyncio.gather(*begun)


async def hand_over(child: str, reference: str, own: str, chance: random.Random) -> str:
    """Have another process run a child; return how it ended there. Raises NobodyThere."""
    doors = _doors(own)
    for path in chance.sample(doors, len(doors)):
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):  # of one that was killed the door is left
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(json.dumps({"child": child, "reference": reference}).encode() + b"\n")
                line = await reader.readline()
            except ConnectionError as gone:
                raise NobodyThere(child) from gone
            finally:
                writer.close()
            if not line:
                raise NobodyThere(child)
            return str(json.loads(line))
    raise NobodyThere(child)


def _doors(own: str) -> list[Path]:
    """Return the doors of the other processes, in one order."""
    return sorted(path for path in Path(os.environ[FOLDER]).glob("*.door") if path.stem != own)
