"""What agents want to do: drawn from a seed, each feature from a stream of its own, so that one does not move the
others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.simulation.world import KINDS, ODD_KINDS, Tool


@dataclass(frozen=True, slots=True)
class Back:
    """An agent changes its mind after one of its calls, once, and has everything undone since a savepoint."""

    after: int
    to: int


@dataclass(frozen=True, slots=True)
class Script:
    """What an agent wants to do."""

    workflow_id: str
    tools: tuple[Tool, ...]
    fails_at_the_end: bool
    tries_max: int = 2
    on_trouble: str = "fail"  # or "skip": go on with the next call; or "back": undo to the last savepoint, and go on
    thinks_ms: int = 0  # at most, before each call
    bases: tuple[tuple[int, ...], ...] = ()  # by call: the earlier calls whose ids are among its arguments, if known
    told: tuple[tuple[int, ...], ...] = ()  # by call: the earlier calls that it says it is built on
    savepoints: frozenset[int] = frozenset()  # calls before which a savepoint is taken
    backs: tuple[Back, ...] = ()
    is_careful: bool = True  # goes on from the first call that was undone, not from where it had asked for


def script_of(workflow_id: str, chance: Random, flow: Random, *, hammered: bool) -> Script:
    count = chance.choice((1, 1, 2, 3) if hammered else (1, 2, 3, 4))
    accounts = ("", "", "a", "b")
    tools = tuple(
        Tool(f"{workflow_id}-tool{number}", chance.choice(KINDS), flow.choice(accounts)) for number in range(count)
    )
    fails, tries = chance.random() < (0.9 if hammered else 0.5), chance.choice((1, 2, 3))
    thinks_ms = chance.choice((0, 0, 20, 300, 3_000))
    on_trouble = chance.choice(("fail", "skip"))
    bases = tuple(_some_before(number, flow, 0.4) for number in range(count))
    told = tuple(_some_before(number, flow, 0.1) for number in range(count))
    return Script(workflow_id, tools, fails, tries, on_trouble, thinks_ms, bases, told)


def with_savepoints(script: Script, chance: Random) -> Script:
    """Let the agent take savepoints, go back to them, and go on."""
    count = len(script.tools)
    savepoints = frozenset(n for n in range(count) if chance.random() < 0.5) or frozenset({chance.randrange(count)})
    backs = []
    for _ in range(chance.choice((0, 1, 1, 2, 2))):
        to = chance.choice(sorted(savepoints))
        backs.append(Back(chance.randrange(to, count), to))
    on_trouble = "back" if chance.random() < 0.4 else script.on_trouble
    return replace(
        script,
        savepoints=savepoints,
        backs=tuple(backs),
        on_trouble=on_trouble,
        is_careful=chance.random() < 0.8,
        fails_at_the_end=script.fails_at_the_end and chance.random() < 0.5,
    )


def with_odd_tools(script: Script, chance: Random) -> Script:
    """Let the agent use tools whose keys age, whose windows close, that overwrite, or that can't be undone."""
    tools = (Tool(t.name, chance.choice(ODD_KINDS), t.account) if chance.random() < 0.6 else t for t in script.tools)
    return replace(script, tools=tuple(tools))


def _some_before(number: int, flow: Random, rate: float) -> tuple[int, ...]:
    return tuple(base for base in range(number) if flow.random() < rate)
