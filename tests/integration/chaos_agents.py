"""A process of many agents, each an asyncio task with a workflow of its own: `python -m tests.integration.chaos_agents
SEED EVERY_MS NUMBER…`. Says on its standard output what begins and how each ends.
"""

from __future__ import annotations

import asyncio
import random
import sys

from tests.integration import chaos_tools as tools

from amends.producers import workflow
from amends.tools import errors


def name_of(number: int) -> str:
    return f"chaos-{number}"


async def one(number: int, seed: int) -> None:
    """Run one workflow. A third of them fail at the last call."""
    chance = random.Random(f"{seed}-{number}")
    name, refuses = name_of(number), chance.random() < 0.35
    print(f"{number} begins", flush=True)
    try:
        async with workflow(name, agent="chaos", lease="6s") as wf:
            for call in (tools.plain, tools.keyed, tools.natural):
                await call(name)
                await asyncio.sleep(chance.uniform(0, 0.4))
            await tools.last(name, refuses)
        print(f"{number} {type(wf.outcome).__name__}", flush=True)
    except (tools.Refused, errors.AmendsError) as failed:
        print(f"{number} failed {type(failed).__name__}", flush=True)


async def main() -> None:
    seed, every_ms, *numbers = map(int, sys.argv[1:])
    tasks = []
    for number in numbers:
        tasks.append(asyncio.create_task(one(number, seed)))
        await asyncio.sleep(every_ms / 1000)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main())
