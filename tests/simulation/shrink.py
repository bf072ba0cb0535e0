"""A failing run made short: what went wrong, and what agents wanted, is left out while the promise stays broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.simulation.chances import Chance, Mishaps, RandomFaults
from tests.simulation.run import Run, Scenario, Verdict, drawn
from tests.simulation.scripts import Script

TRIES_MAX = 600
CALMER: tuple[dict[str, object], ...] = (
    {"people": 0.0},
    {"flushes": 0, "rollbacks": 0},
    {"rebalances": 0},
    {"outages": 0},
    {"lives": 0},
    {"others": 0.0},
    {"skew_ms": 0},
    {"repeated": 0.0},
    {"duplicate": 0.0},
    {"jitter_ms": 0},
    {"slow": 0.0},
    {"faults_max": 0},
)
"""What of a mix may not matter."""


@dataclass(slots=True)
class Shrinking:
    """One failing run, and the shortest that was found of it so far."""

    scenario: Scenario
    state: object  # of the run's chance, after its scenario was drawn
    promises: frozenset[int]
    left_out: frozenset[int] = frozenset()
    mishaps: int = 0
    tries: int = 0

    def still_fails(self, scenario: Scenario, left_out: frozenset[int]) -> bool:
        """Keep this variant if one of the promises is still broken."""
        if self.tries >= TRIES_MAX:
            return False
        self.tries += 1
        mishaps = Mishaps(left_out)
        verdict = self._play(scenario, mishaps, tell=False)
        if not self.promises & {broken.promise for broken in verdict.broken}:
            return False
        self.scenario, self.left_out, self.mishaps = scenario, left_out, mishaps.count
        return True

    def told(self) -> Verdict:
        return self._play(self.scenario, Mishaps(self.left_out), tell=True)

    def _play(self, scenario: Scenario, mishaps: Mishaps, *, tell: bool) -> Verdict:
        chance, mix = Chance(), replace(scenario.mix)
        chance.setstate(self.state)  # type: ignore[arg-type]
        again = replace(scenario, mix=mix, faults=RandomFaults(mix, chance, mishaps))
        return Run(again, chance, tell=tell).play()


def shrunk(seed: int, *, keeps_a1: bool = True) -> Verdict | None:
    """Return the short version of the run of a seed, with its story; None if no promise is broken in it."""
    scenario, chance = drawn(seed, keeps_a1=keeps_a1)
    state = chance.getstate()
    verdict = Run(scenario, chance, tell=False).play()
    if not verdict.broken:
        return None
    found = Shrinking(scenario, state, frozenset(broken.promise for broken in verdict.broken))
    found.still_fails(scenario, frozenset())
    again = True
    while again:
        again = False
        for variant in _simpler(found.scenario):
            if found.still_fails(variant, found.left_out):
                again = True
                break
    _leave_out(found)
    return found.told()


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    for number in range(len(scenario.scripts) if len(scenario.scripts) > 1 else 0):
        yield replace(scenario, scripts=scenario.scripts[:number] + scenario.scripts[number + 1 :])
    for number, script in enumerate(scenario.scripts):
        for simpler in _simpler_scripts(script):
            yield replace(scenario, scripts=(*scenario.scripts[:number], simpler, *scenario.scripts[number + 1 :]))
    for calmer in CALMER:
        if any(getattr(scenario.mix, name) != value for name, value in calmer.items()):
            yield replace(scenario, mix=replace(scenario.mix, **calmer))  # type: ignore[arg-type]
    if scenario.resumes:
        yield replace(scenario, resumes=0.0)


def _simpler_scripts(script: Script) -> Iterator[Script]:
    count = len(script.tools)
    if count > 1:
        backs = tuple(back for back in script.backs if back.after < count - 1)
        savepoints = frozenset(n for n in script.savepoints if n < count - 1)
        cut = replace(script, tools=script.tools[:-1], backs=backs, savepoints=savepoints)
        yield replace(cut, bases=script.bases[: count - 1], told=script.told[: count - 1])
    for back in script.backs:
        yield replace(script, backs=tuple(b for b in script.backs if b is not back))
    for number in script.savepoints:
        if all(back.to != number for back in script.backs):
            yield replace(script, savepoints=script.savepoints - {number})
    if script.thinks_ms:
        yield replace(script, thinks_ms=0)
    if any(script.told):
        yield replace(script, told=())


def _leave_out(found: Shrinking) -> None:
    """Leave out stretches of what went wrong, then single mishaps, the last ones first: what comes before them stays
    as it was."""
    size = max(1, found.mishaps // 2)
    while True:
        end = found.mishaps
        while end > 0:
            stretch = frozenset(range(max(0, end - size), end)) - found.left_out
            if stretch:
                found.still_fails(found.scenario, found.left_out | stretch)
            end -= size
        if size == 1:
            return
        size //= 2
