"""What was built on what, in one workflow: the order in which its steps may be undone.

A step names ids and keys (`state.DataFlow`). Of two steps the later one, by offset of STARTED, was built on the earlier

- as told: it says so (`after`);
- by data: the earlier one made an id that the later one uses;
- by shared resource: both touch a key that their tools declare;
- by a shared id, where one of the two tools declares no resources: who does not say what it touches may have changed
  whatever it names. Two tools that both declare theirs are not ordered by an id that both were only given;
- because nobody can tell: a step whose input names nothing, or more than was kept, or of which nobody looked, stands
  in order (LIFO) with all others; one whose output was not seen may have made whatever a later step uses.

A step that is known not to have happened has no place in the order.

Theory of operation. A step *claims* what it names, as a writer or as a reader, like locks: of one name writers are in
order with everybody, readers with writers only. So each claim has a neighbour or two, and n steps have some n edges,
not n²; what lies further off is reached by a path. An edge leads from a step to one that was built on it. A step is
*held* while a step that was built on it, by any path, is still to be undone; it is *ready* when it is to be undone
itself and nothing holds it. Both are kept by counting, so that a fact costs what the edges of its own step cost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from amends.processors.state import DataFlow, Standing, Step, standing
from amends.schemas.data_flow import UNKNOWN_ID

ANY = "*"
"""What every step claims: as a writer if it must stand in order with all."""
Place = tuple[int, int]
"""First offset and number of a step: the order of steps."""
Rank = tuple[int, int, int]
"""The less, the sooner: when the window closes, then the later step."""
WINDOW_OPEN = 1 << 62
"""When a window closes that never does."""
_FIRST, _LAST = (-2, -1), (1 << 62, 0)


class Role(Enum):
    WRITES = "writes"
    READS = "reads"
    MAKES = "makes"  # whatever comes later may be built on it; it reads what is before


class Claim(NamedTuple):
    name: str
    role: Role


_BARRIER = frozenset({Claim(ANY, Role.WRITES)})


def claims_of(step: Step) -> frozenset[Claim]:
    """Return what a step claims, as far as it is known now."""
    if step.undo is None and standing(step) is Standing.ABSENT:
        return frozenset()
    flow = step.flow
    if flow is None or not _is_known(flow):
        return _BARRIER
    made = flow.makes or ()
    given = Role.READS if flow.touches else Role.WRITES
    claims = {Claim(name, given) for name in flow.uses if name not in made}
    claims.update(Claim(name, Role.WRITES) for name in made if name != UNKNOWN_ID)
    claims.update(Claim(f"key {name}", Role.WRITES) for name in flow.touches)
    seen = flow.makes is not None and UNKNOWN_ID not in made
    claims.add(Claim(ANY, Role.READS if seen else Role.MAKES))
    return frozenset(claims)


def _is_known(flow: DataFlow) -> bool:
    named = (*flow.uses, *flow.touches)
    return bool(named) and UNKNOWN_ID not in named


@dataclass(slots=True)
class _Name:
    """Who claims one name, in order."""

    writers: list[Place] = field(default_factory=list[Place])
    readers: list[Place] = field(default_factory=list[Place])
    makers: list[Place] = field(default_factory=list[Place])

    def of(self, role: Role) -> list[Place]:
        return {Role.WRITES: self.writers, Role.READS: self.readers, Role.MAKES: self.makers}[role]

    def after(self, place: Place, role: Role) -> Iterator[int]:
        """Yield the nearest that are built on who claims at `place`."""
        writer = _next(self.writers, place)
        if role is not Role.READS:
            writer = min(writer, _next(self.makers, place))
            yield from _between(self.readers, place, writer)
        if writer is not _LAST:
            yield writer[1]

    def before(self, place: Place, role: Role) -> Iterator[int]:
        """Yield the nearest that who claims at `place` is built on."""
        writer, maker = _previous(self.writers, place), _previous(self.makers, place)
        if role is Role.WRITES:
            yield from _between(self.readers, writer, place)
        nearest = max(writer, maker)
        if nearest is not _FIRST:
            yield nearest[1]


def _next(places: list[Place], place: Place) -> Place:
    at = bisect_right(places, place)
    return places[at] if at < len(places) else _LAST


def _previous(places: list[Place], place: Place) -> Place:
    at = bisect_left(places, place)
    return places[at - 1] if at else _FIRST


def _between(places: list[Place], low: Place, high: Place) -> Iterator[int]:
    for at in range(bisect_right(places, low), bisect_left(places, high)):
        yield places[at][1]


@dataclass(slots=True)
class _Node:
    place: Place
    claims: frozenset[Claim]
    queue: str = ""
    rank: Rank = (0, 0, 0)
    told_before: set[int] = field(default_factory=set[int])  # steps it was built on, as told
    told_after: set[int] = field(default_factory=set[int])
    pending: bool = False  # still to be undone
    held_by: int = 0  # how many of the nearest that are built on it hold it


class Dependencies:
    """The order of undoing, of the steps put here by number. With `lifo`, all stand in one order.

    `ready` are the steps that are to be undone while nothing that was built on them is: by tool, soonest first.
    """

    def __init__(self, *, lifo: bool = False) -> None:
        self._lifo = lifo
        self._names: dict[str, _Name] = {}
        self._nodes: dict[int, _Node] = {}
        self.ready: dict[str, list[Rank]] = {}

    # --- asking -----------------------------------------------------------------------------------------------------

    def built_on(self, number: int) -> set[int]:
        """Return the nearest steps that were built on this one."""
        node = self._nodes[number]
        found = {n for n in node.told_after if self._nodes[n].place > node.place}
        for claim in node.claims:
            found.update(self._names[claim.name].after(node.place, claim.role))
        return found

    def bases_of(self, number: int) -> set[int]:
        """Return the nearest steps that this one was built on."""
        node = self._nodes[number]
        found = {n for n in node.told_before if self._nodes[n].place < node.place}
        for claim in node.claims:
            found.update(self._names[claim.name].before(node.place, claim.role))
        return found

    def holds(self, number: int) -> bool:
        """Whether this step is to be undone before what it was built on: itself, or something built on it."""
        node = self._nodes[number]
        return node.pending or node.held_by > 0

    def is_pending(self, number: int) -> bool:
        return self._nodes[number].pending

    def held_by(self, number: int) -> int:
        """Return how many of the nearest steps that were built on this one hold it."""
        return self._nodes[number].held_by

    def rank_of(self, number: int) -> Rank:
        return self._nodes[number].rank

    def claim(self, name: str) -> Iterator[int]:
        """Yield the steps that claim a name."""
        found = self._names.get(name)
        if found is not None:
            for places in (found.writers, found.readers, found.makers):
                yield from (number for _, number in places)

    # --- keeping ----------------------------------------------------------------------------------------------------

    def build(self, steps: Iterable[tuple[Step, Iterable[int], bool, int]]) -> None:
        """Take all steps of a workflow: (step, those it was built on as told, whether it is to be undone, when the
        window for that closes)."""
        self._names, self._nodes, self.ready = {}, {}, {}
        for step, told, pending, closes_at_ms in steps:
            node = self._node(step, closes_at_ms)
            node.claims, node.pending = self._claims(step), pending
            self._add(node.place, node.claims)
            self._tell(step.number, told)
        for number in sorted(self._nodes, key=lambda n: self._nodes[n].place, reverse=True):
            self._count(number)

    def put(self, step: Step, told: Iterable[int], pending: bool, closes_at_ms: int = WINDOW_OPEN) -> None:
        """Bring one step up to date, or add it."""
        number, place = step.number, (step.first_offset, step.number)
        node = self._nodes.get(number)
        if node is None:
            node = self._node(step, closes_at_ms)
        claims = self._claims(step)
        if node.place != place or node.claims != claims or any(t not in node.told_before for t in told):
            self._move(number, node, place, claims, told)
        rank = (closes_at_ms, -step.first_offset, number)
        if node.rank != rank or node.queue != step.tool_name:
            self._mark(node, ready=False)
            node.rank, node.queue = rank, step.tool_name
        if node.pending is not pending:
            held = self.holds(number)
            node.pending = pending
            self._spread(number, held)
        else:
            self._mark(node, ready=pending and not node.held_by)

    def _node(self, step: Step, closes_at_ms: int) -> _Node:
        number = step.number
        rank = (closes_at_ms, -step.first_offset, number)
        node = _Node((step.first_offset, number), frozenset(), step.tool_name, rank)
        self._nodes[number] = node
        return node

    def _claims(self, step: Step) -> frozenset[Claim]:
        claims = _BARRIER if step.flow is None and step.undo is not None else claims_of(step)
        return _BARRIER if claims and self._lifo else claims

    def _move(self, number: int, node: _Node, place: Place, claims: frozenset[Claim], told: Iterable[int]) -> None:
        """Change what a step claims. Only the counts of its neighbours change, by what is claimed anew or no more."""
        gone = node.claims if node.place != place else node.claims - claims
        new = claims if node.place != place else claims - node.claims
        touched = {number, *self._before(node.place, gone), *node.told_before}
        for claim in gone:
            self._names[claim.name].of(claim.role).remove(node.place)
        node.place, node.claims = place, claims
        self._add(place, new)
        self._tell(number, told)
        touched.update(self._before(place, new), node.told_before)
        for each in sorted(touched, key=lambda n: self._nodes[n].place, reverse=True):
            held = self.holds(each)
            self._count(each)
            self._spread(each, held)

    def _add(self, place: Place, claims: Iterable[Claim]) -> None:
        for claim in claims:
            insort(self._names.setdefault(claim.name, _Name()).of(claim.role), place)

    def _before(self, place: Place, claims: Iterable[Claim]) -> Iterator[int]:
        for claim in claims:
            yield from self._names[claim.name].before(place, claim.role)

    def _tell(self, number: int, told: Iterable[int]) -> None:
        """Take what a step says it was built on. What stands after it can't be, and does not count."""
        node = self._nodes[number]
        node.told_before = {base for base in told if base in self._nodes and base != number}
        for base in node.told_before:
            self._nodes[base].told_after.add(number)

    def _count(self, number: int) -> None:
        node = self._nodes[number]
        node.held_by = sum(1 for other in self.built_on(number) if self.holds(other))
        self._remark(number)

    def _mark(self, node: _Node, *, ready: bool) -> None:
        queue = self.ready.get(node.queue)
        if queue is None:
            if not ready:
                return
            queue = self.ready[node.queue] = []
        at = bisect_left(queue, node.rank)
        there = at < len(queue) and queue[at] == node.rank
        if ready and not there:
            queue.insert(at, node.rank)
        elif there and not ready:
            del queue[at]

    def _remark(self, number: int) -> None:
        node = self._nodes[number]
        self._mark(node, ready=node.pending and not node.held_by)

    def _spread(self, number: int, held: bool) -> None:
        """Tell the bases of a step that it holds them, or does no more; `held` is what they know."""
        self._remark(number)
        holds = self.holds(number)
        waiting = [number] if holds is not held else []
        while waiting:
            for base in self.bases_of(waiting.pop()):
                node, before = self._nodes[base], self.holds(base)
                node.held_by += 1 if holds else -1
                self._remark(base)
                if self.holds(base) is not before:
                    waiting.append(base)
