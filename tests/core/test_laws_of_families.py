"""Laws of families, by chance: whoever dies or is forgotten in between, a root that fails has its whole family undone,
nothing before what was built on it, and nobody else."""

from __future__ import annotations

import random

import pytest
from tests.core.families import PAY, Families

from amends.processors.terms import Terms

GRACE_MS = 60_000
SEEDS = 40
MOVES = 24


class Play:
    """One family, grown and disturbed by a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.families = Families(Terms(grace_ms=GRACE_MS))
        self.open: list[str] = ["root"]
        self.steps: dict[str, tuple[str, int]] = {}  # (workflow, order of its start)
        self.children: list[tuple[str, str, int]] = []  # (parent, child, order)
        self.announced: dict[str, tuple[str, int]] = {}  # children whose STARTED is under way
        self.late_steps: dict[str, str] = {}
        self.strangers: set[str] = set()
        self.families.start("root")
        self._order = 0

    def move(self) -> None:
        moves = (self.step, self.child, self.announce, self.arrive, self.stranger, self.succeed, self.fail)
        disturbances = (self.some, self.crash, self.late)
        self.chance.choices((*moves, *disturbances), weights=(8, 4, 2, 1, 1, 3, 1, 4, 2, 1))[0]()

    def _next(self) -> int:
        self._order += 1
        return self._order

    def step(self) -> None:
        id = self.chance.choice(self.open)
        order = self._next()
        self.steps[f"s{order}"] = (id, order)
        self.families.did(id, f"s{order}", PAY)

    def child(self) -> None:
        parent = self.chance.choice(self.open)
        order = self._next()
        self.families.child(parent, f"c{order}")
        self.children.append((parent, f"c{order}", order))
        self.open.append(f"c{order}")

    def announce(self) -> None:
        """A child's STARTED is late."""
        parent, order = self.chance.choice(self.open), self._next()
        self.announced[f"c{order}"] = (parent, self.families.announce(parent, f"c{order}"))
        self.children.append((parent, f"c{order}", order))

    def arrive(self) -> None:
        """A late STARTED is there, and with it a call, whatever became of the parent."""
        if not self.announced:
            return
        id = self.chance.choice(sorted(self.announced))
        parent, at = self.announced.pop(id)
        self.families.start(id, parent=parent, announced=at)
        order = self._next()
        self.late_steps[f"s{order}"] = id
        self.families.did(id, f"s{order}", PAY)

    def stranger(self) -> None:
        parent, order = self.chance.choice(self.open), self._next()
        self.families.announce(parent, f"d{order}", detached=True)
        self.families.start(f"d{order}")
        self.families.did(f"d{order}", f"s{order}", PAY)
        self.strangers.add(f"s{order}")

    def _end(self) -> str | None:
        ends = [id for id in self.open if id != "root"]
        if not ends:
            return None
        id = self.chance.choice(ends)
        self.open.remove(id)
        return id

    def succeed(self) -> None:
        if (id := self._end()) is not None:
            self.families.succeeded(id)

    def fail(self) -> None:
        if (id := self._end()) is not None:
            self.families.failed(id)
            self._turn(id)

    def _turn(self, id: str) -> None:
        """What a turned workflow has as children makes no more calls."""
        for parent, child, _ in self.children:
            if parent == id:
                if child in self.open:
                    self.open.remove(child)
                self._turn(child)

    def some(self) -> None:
        """Some partitions are behind."""
        there = {p for p in range(self.families.partitions) if self.chance.random() < 0.6}
        self.families.settle(only=lambda partition: partition in there)

    def crash(self) -> None:
        number = self.chance.randrange(2)
        engine = self.families.engines[number]
        for partition in engine.partitions:
            for _ in range(self.chance.randrange(6)):
                engine.fold_next(partition)
                if self.chance.random() < 0.5:
                    engine.send_next(partition)
        self.families.crash(number)

    def late(self) -> None:
        """The grace of what is closed runs out, and the ledger shows it."""
        self.announced.clear()  # half a lease is over: what has not begun never does
        self.families.settle()
        self.families.now_ms += GRACE_MS + 1
        for partition in range(self.families.partitions):
            self.families.start(self.families.other_id(partition))
        self.families.settle()

    def end(self) -> None:
        self.families.failed("root")
        self.some()
        self.crash()
        for _ in range(8):
            self.families.wait(6_000, step_ms=3_000)
            self.arrive()
        self.families.wait(6_000, step_ms=3_000)

    def below(self, id: str) -> set[str]:
        found = {id}
        for parent, child, _ in self.children:
            if parent in found:
                found.add(child)
        return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_root_that_fails_has_its_whole_family_undone_in_order_and_nobody_else(seed: int) -> None:
    play = Play(seed)
    for _ in range(MOVES):
        play.move()
    play.end()
    undone, families = play.families.undone, play.families
    assert sorted(undone) == sorted([*play.steps, *play.late_steps]), f"seed {seed}"
    assert len(undone) == len(set(undone))
    assert families.phase("root") == "COMPENSATED", f"seed {seed}"
    assert {families.phase(id) for _, id, _ in play.children} <= {"COMPENSATED", ""}, f"seed {seed}"
    for parent, child, order in play.children:
        members = play.below(child)
        theirs = [undone.index(step) for step, (id, _) in play.steps.items() if id in members]
        earlier = [undone.index(step) for step, (id, at) in play.steps.items() if id == parent and at < order]
        assert not theirs or not earlier or max(theirs) < min(earlier), f"seed {seed}: {parent} before {child}"
