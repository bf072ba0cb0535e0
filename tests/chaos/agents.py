"""A process of agents, each an asyncio task that runs one workflow after another until SIGTERM:
`python -m tests.chaos.agents SEED NAME AGENTS`. Says on its standard output what begins and how each ends.

What an agent does is a function of the seed and of its workflow's id: which remotes it asks, in which order, and
whether it then succeeds, is refused, breaks, is cancelled (neither success nor failure: the lease finds out), or
swallows the errors of its calls and claims success all the same. Some change their mind before that: they undo to a
savepoint and go on. Some make a last call that nothing takes back. Some have a part of it done by an agent of another
process, as a child of their workflow; and what becomes of that one is its own affair, as in life.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.hand_over import CHILD, hand_over, open_door, parent_of
from tests.chaos.tools import TOOLS, Refused, Unavailable, final, last

from amends.producers import workflow
from amends.tools.errors import AmendsError

LEASE = "4s"
SAVEPOINT = "begun"
SUCCEEDED = "Succeeded"


class Ending(StrEnum):
    """What becomes of an agent that nothing befalls."""

    WELL = "succeeds"
    REFUSED = "is refused at its last call"
    BREAKS = "breaks"
    CANCELLED = "is cancelled"
    CLAIMS = "claims success whatever happened"


ENDINGS = {Ending.WELL: 40, Ending.REFUSED: 25, Ending.BREAKS: 10, Ending.CANCELLED: 10, Ending.CLAIMS: 15}


class ChildFailed(Exception):  # noqa: N818 - what the child did
    """The child did not do what it was asked for."""


class Broken(Exception):  # noqa: N818 - what the agent is
    """The agent's own fault."""


@dataclass(frozen=True, slots=True)
class Part:
    """What an agent is going to do."""

    kinds: tuple[str, ...]
    ending: Ending
    timeout_ms: int | None
    undone_from: int | None = None  # the number of the call before which a savepoint is taken, which is gone back to
    is_final: bool = False  # makes a call that nothing takes back
    child_before: int | None = None  # the number of the call before which a child is begun, in another process


def part_of(seed: int, name: str) -> Part:
    chance = random.Random(f"{seed} {name}")
    kinds: list[str] = chance.sample(("keyed", "natural", "plain"), chance.choice((1, 2, 2, 3, 3)))
    if chance.random() < 0.2:
        kinds.insert(chance.randint(0, len(kinds)), "blind")
    ending = chance.choices(tuple(ENDINGS), tuple(ENDINGS.values()))[0]
    timeout_ms = chance.choice((None, None, None, 400))
    undone_from = chance.randrange(len(kinds)) if chance.random() < 0.2 else None
    is_final = chance.random() < 0.15
    if chance.random() < 0.25:
        kinds.insert(chance.randint(0, len(kinds)), "record")
    child_before = chance.randrange(len(kinds)) if chance.random() < 0.2 and parent_of(name) is None else None
    return Part(tuple(kinds), ending, timeout_ms, undone_from, is_final, child_before)


async def act(name: str, part: Part, chance: random.Random, scope: workflow, own: str) -> None:
    """Make the calls, inside the scope, in the process `own`."""
    built_on = ""
    for number, kind in enumerate(part.kinds):
        if number == part.undone_from:
            await scope.savepoint_async(SAVEPOINT)
        if number == part.child_before:
            await have_done(name + CHILD, part, chance, scope, own)
        tool = TOOLS[kind]
        call = tool.options(timeout=None if part.timeout_ms is None else f"{part.timeout_ms}ms")
        try:
            built_on = await call(name, built_on)
        except (OSError, Unavailable):  # a TimeoutError is an OSError
            if part.ending is not Ending.CLAIMS:
                raise
        await asyncio.sleep(chance.uniform(0, 0.5))
    if part.undone_from is not None:
        await scope.undo_to_async(SAVEPOINT, reason="it changed its mind", within="20s")
    if part.is_final:
        await final(name)
    if part.ending is Ending.BREAKS:
        raise Broken(name)
    if part.ending is Ending.CANCELLED:
        raise asyncio.CancelledError
    await last(name, part.ending is Ending.REFUSED)


async def have_done(child: str, part: Part, chance: random.Random, scope: workflow, own: str) -> None:
    """Have a child run by another process. Raises ChildFailed, OSError, unless all errors are swallowed."""
    try:
        said = await hand_over(child, await scope.reference_async(), own, chance)
        if said != SUCCEEDED:
            raise ChildFailed(said)
    except (OSError, ChildFailed):
        if part.ending is not Ending.CLAIMS:
            raise


async def run(seed: int, name: str, own: str, reference: str | None = None) -> str:
    """Run one workflow in the process `own`, as a child if there is a reference; return how it ended, as the agent was
    told."""
    chance = random.Random(f"{seed} {name} pace")
    try:
        async with workflow(name, agent="chaos", lease=LEASE, parent=reference) as scope:
            await act(name, part_of(seed, name), chance, scope, own)
        return type(scope.outcome).__name__
    except asyncio.CancelledError:
        return "cancelled"
    except (Refused, Broken, ChildFailed, Unavailable, OSError) as failed:
        return f"failed {type(failed).__name__}"
    except AmendsError as told:
        return f"told {type(told).__name__}"


async def told_run(seed: int, name: str, own: str, reference: str | None = None) -> str:
    """As `run`, and say what begins and how it ends."""
    print(f"{name} begins", flush=True)
    said = await run(seed, name, own, reference)
    print(f"{name} {said}", flush=True)
    return said


async def agent(seed: int, name: str, own: str, stop: asyncio.Event) -> None:
    count = 0
    while not stop.is_set():
        count += 1
        workflow_id = f"{name}-{count}"
        await told_run(seed, workflow_id, own)
        await asyncio.sleep(random.Random(f"{seed} {workflow_id} rest").uniform(0.2, 2.0))


async def main(seed: int, name: str, agents: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_door(name, lambda child, reference: told_run(seed, child, name, reference)):
        await asyncio.gather(*(agent(seed, f"{name}-{number}", name, stop) for number in range(agents)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
