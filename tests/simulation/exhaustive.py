"""One four-step workflow, killed at every point there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice

from tests.simulation.chances import Chance, FaultsAt, Mix
from tests.simulation.run import Run, Scenario, Verdict
from tests.simulation.schedule import Fault, Kill
from tests.simulation.scripts import Back, Script
from tests.simulation.world import KINDS, Tool

STEPS = 4
ROLES = ("agent", "processor", "compensator")


def orders() -> Iterator[tuple[int, ...]]:
    """Yield which kind of remote each step has, so that every kind is at every place once."""
    for first in range(len(KINDS)):
        yield tuple((first + 3 * place) % len(KINDS) for place in range(STEPS))


def play_with(
    kinds: tuple[int, ...], faults: dict[tuple[str, int], Fault], *, tell: bool = False, goes_back: bool = False
) -> Verdict:
    """Play the workflow, which fails after its last step, with these faults and no other. Every other order of kinds
    has steps that are built on one another; in the others all may be undone side by side. One that goes back undoes
    its last two steps, does them again, and succeeds."""
    in_order = kinds[0] % 2 == 0
    tools = tuple(Tool(f"tool{place}", KINDS[kind]) for place, kind in enumerate(kinds))
    bases = tuple(tuple(range(place)) for place in range(STEPS)) if in_order else ()
    script = Script("w", tools, fails_at_the_end=not goes_back, bases=bases)
    if goes_back:
        script = replace(script, savepoints=frozenset({STEPS - 2}), backs=(Back(STEPS - 1, STEPS - 2),))
    scenario = Scenario((script,), Mix.none(), FaultsAt(faults), resumes=1.0 if goes_back else 0.0)
    return Run(scenario, Chance(0), tell=tell).play()


def points_of(kinds: tuple[int, ...], *, goes_back: bool = False) -> dict[str, int]:
    """Return how many points each role passes when nothing happens."""
    return play_with(kinds, {}, goes_back=goes_back).points


def single_kills(kinds: tuple[int, ...], *, goes_back: bool = False) -> Iterator[dict[tuple[str, int], Fault]]:
    for role, count in points_of(kinds, goes_back=goes_back).items():
        for point in range(count):
            yield {(role, point): Kill()}


def double_kills(kinds: tuple[int, ...], share: int, shares: int) -> Iterator[dict[tuple[str, int], Fault]]:
    """Yield every `shares`-th pair of kills: of the same role or of two."""
    points = [(role, point) for role, count in points_of(kinds).items() for point in range(count)]
    pairs = combinations(points, 2)
    for first, second in islice(pairs, share, None, shares):
        yield {first: Kill(), second: Kill()}
