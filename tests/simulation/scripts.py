"""What agents want to do: drawn from a seed, each feature from a stream of its own, so that one does not move the
others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from tests.simulation.world import GUARDED_KINDS, KINDS, ODD_KINDS, SLOW_KINDS, Tool

GENERATIONS_MAX = 2
"""How deep children have children."""


@dataclass(frozen=True, slots=True)
class Back:
    """An agent changes its mind after one of its calls, once, and has everything undone since a savepoint."""

    after: int
    to: int


class Alone(Enum):
    """How a workflow that is begun inside another stands alone."""

    UNTOLD = "nothing is written of it"  # as the SDK does
    TOLD = "CHILD_STARTED and STARTED say that it is detached"


@dataclass(frozen=True, slots=True)
class Child:
    """A workflow that an agent begins as a child of its own, before one of its calls."""

    before: int
    script: Script
    waits: bool  # for its end, before it goes on
    alone: Alone | None = None  # it is no child of its, only begun by it


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
    children: tuple[Child, ...] = ()
    plans: bool = False  # a model's: each call has an id of its plan, and planned again it has another
    doubles: frozenset[int] = frozenset()  # calls that it plans once more, though they were made


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


def with_slow_tools(script: Script, chance: Random) -> Script:
    """Let the agent use remotes that do later what they take."""
    tools = (Tool(t.name, chance.choice(SLOW_KINDS), t.account) if chance.random() < 0.6 else t for t in script.tools)
    return replace(script, tools=tuple(tools))


def with_guarded_tools(script: Script, chance: Random) -> Script:
    """Let the agent make calls that a person approves."""
    guarded = (
        Tool(t.name, chance.choice(GUARDED_KINDS), t.account) if chance.random() < 0.5 else t for t in script.tools
    )
    return replace(script, tools=tuple(guarded))


def with_children(script: Script, chance: Random, depth: int = 1) -> Script:
    """Let the agent begin children, which may begin children of their own."""
    children = []
    for number in range(chance.choice((0, 1, 1, 2) if depth == 1 else (0, 0, 1))):
        child = script_of(f"{script.workflow_id}c{number}", chance, chance, hammered=False)
        count = min(len(child.tools), 2)
        child = replace(
            child,
            tools=child.tools[:count],
            bases=child.bases[:count],
            told=child.told[:count],
            fails_at_the_end=chance.random() < 0.15,
            on_trouble=chance.choice(("skip", "skip", "fail")),
        )
        child = with_children(child, chance, depth + 1) if depth < GENERATIONS_MAX else child
        children.append(Child(chance.randrange(len(script.tools)), child, waits=chance.random() < 0.7))
    return replace(script, children=tuple(children))


def with_plans(script: Script, chance: Random) -> Script:
    """Let a model plan the calls, and some of them twice."""
    doubles = frozenset(number for number in range(len(script.tools)) if chance.random() < 0.5)
    kinds = [kind for kind in KINDS if not kind.from_input]  # two effects of one call must be told apart
    tools = (Tool(t.name, chance.choice(kinds), t.account) if t.kind.from_input else t for t in script.tools)
    return replace(script, tools=tuple(tools), plans=True, doubles=doubles)


def with_some_alone(script: Script, chance: Random) -> Script:
    """Let some of the workflows that an agent begins be no children of its own."""
    children = tuple(
        replace(
            child,
            script=with_some_alone(child.script, chance),
            alone=chance.choice((None, Alone.UNTOLD, Alone.TOLD)),
        )
        for child in script.children
    )
    return replace(script, children=children)


def everybody(scripts: Iterable[Script]) -> list[Script]:
    """Return the scripts with those of all their children, parents first."""
    return [one for script in scripts for one in (script, *everybody(child.script for child in script.children))]


def _some_before(number: int, flow: Random, rate: float) -> tuple[int, ...]:
    return tuple(base for base in range(number) if flow.random() < rate)
