"""The aggregate that the fold works on: one workflow's header and steps, and the indexes that keep a fact cheap.

Replacing a step costs the same whether the workflow has three steps or two thousand: what is open, unsure or owed is
kept by step number and brought up to date for the one step that changed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from amends.processors.agenda import NOTHING_DUE, Agenda
from amends.processors.chain import STEPS_MAX, Chain
from amends.processors.dependencies import WINDOW_OPEN, Dependencies
from amends.processors.elsewhere import Coverage, is_covered_by_another, may_have_undone
from amends.processors.policies import policy_of
from amends.processors.state import (
    ABSENT,
    CLOSED_UNDO,
    OPEN,
    PRESENT,
    TURNED_PHASES,
    UNDO_DEAD,
    UNDO_DUE,
    UNDO_OPEN,
    UNKNOWN,
    Header,
    Step,
    Trouble,
    has_open_attempt,
    is_condemned,
    open_trouble,
    owed,
    replace,
    standing,
)
from amends.processors.windows import Timetable, closes_at_ms, next_at_ms
from amends.schemas.contract import Contract, Effect
from amends.schemas.policy import Around

_SETS = ("live", "unsure", "undoing", "troubled", "asked", "condemned", "owing", "climbing")
_LIVE, _UNSURE, _UNDOING, _TROUBLED, _ASKED, _CONDEMNED, _OWING, _CLIMBING = (1 << bit for bit in range(len(_SETS)))
_MARKED = [[(1 << bit, name) for bit, name in enumerate(_SETS) if marks >> bit & 1] for marks in range(1 << len(_SETS))]
"""The sets that a number of marks names."""


class Contracts(Protocol):
    """Contracts by digest, kept once per partition."""

    def get(self, digest: str, /) -> Contract | None: ...


@dataclass(slots=True)
class Workflow:
    """Header and steps. `changed` names what a changelog has to take: None is the header, a number a step."""

    header: Header
    contracts: Contracts
    steps: list[Step] = field(default_factory=list[Step])
    by_id: dict[str, int] = field(default_factory=dict[str, int])
    live: set[int] = field(default_factory=set[int])  # steps with an open attempt
    unsure: set[int] = field(default_factory=set[int])  # steps that are OPEN or UNKNOWN
    condemned: set[int] = field(default_factory=set[int])  # steps that a turn says are to be undone
    owing: set[int] = field(default_factory=set[int])  # condemned steps of which something is still owed
    undoing: set[int] = field(default_factory=set[int])  # steps whose undo is OPEN
    climbing: set[int] = field(default_factory=set[int])  # owing steps that time alone may bring on
    troubled: set[int] = field(default_factory=set[int])  # steps that are or were an incident
    asked: set[int] = field(default_factory=set[int])  # steps of which a person was asked to approve the call
    windows: Timetable = field(default_factory=Timetable)  # owing steps whose undo window closes
    probes: Agenda = NOTHING_DUE  # unknown steps, by when they can be probed
    ladders: Agenda = NOTHING_DUE  # unknown and climbing steps, by when they leave the ladder
    _marks: dict[int, int] = field(default_factory=dict[int, int])  # which of the sets above a step is in
    _dependencies: Dependencies | None = None
    _moved: set[int] = field(default_factory=set[int])  # steps that changed since the order was last asked for
    _names_data: bool = False  # whether any step says what it names: then what was built on what is no chain
    coverage: Coverage = field(default_factory=Coverage)  # who may undo whom beside its own undo
    order: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # (first offset, number), ascending
    changed: set[int | None] = field(default_factory=set[int | None])

    @property
    def is_turned(self) -> bool:
        """Whether nobody goes on in it. A workflow that was undone to a savepoint goes on, its plan beside it."""
        return self.header.phase in TURNED_PHASES

    @property
    def is_unwinding(self) -> bool:
        """Whether something condemned is still owed, in whatever phase."""
        return bool(self.owing) or not self.undoing.isdisjoint(self.condemned)

    def is_condemned(self, step: Step) -> bool:
        """Whether this step is to be undone."""
        return is_condemned(step, self.header.turns)

    def expected(self) -> set[int]:
        """Return the steps that are open or unknown and that nobody wants undone."""
        return self.unsure - self.condemned

    def contract_of(self, step: Step) -> Contract | None:
        return self.contracts.get(step.contract) if step.contract else None

    def find(self, step_id: str) -> Step | None:
        number = self.by_id.get(step_id)
        return None if number is None else self.steps[number]

    def put_header(self, header: Header) -> None:
        self.header = header
        self.changed.add(None)

    def put(self, step: Step) -> None:
        """Replace the step of this number, or add it as the last."""
        if step.number == len(self.steps):
            self.steps.append(step)
            self.by_id[step.step_id] = step.number
            insort(self.order, (step.first_offset, step.number))
            self.put_header(replace(self.header, steps=len(self.steps)))
        else:
            before = self.steps[step.number]
            if before is step:
                return
            if before.first_offset != step.first_offset:
                self.order.remove((before.first_offset, step.number))
                insort(self.order, (step.first_offset, step.number))
            self.steps[step.number] = step
        self.changed.add(step.number)
        self.index(step)

    def index(self, step: Step) -> None:
        """Bring the sets up to date for one step."""
        undo = step.undo
        what = standing(step)
        if what is PRESENT and self._is_unknown_again(step):
            what = UNKNOWN
        if what is OPEN:
            marks = _LIVE | _UNSURE
        elif what is PRESENT:
            marks = _LIVE if has_open_attempt(step) else 0
        else:  # an open attempt would have made it open
            marks = _UNSURE if what is UNKNOWN else 0
        if undo is not None and undo.state is UNDO_OPEN:
            marks |= _UNDOING
        if step.troubles:
            marks |= _TROUBLED
        if step.approval is not None:
            marks |= _ASKED
        if self.header.turns:
            marks |= self._index_condemned(step, marks)
        if step.flow is not None:
            self._names_data = True
        self._mark(step.number, marks)
        if what is UNKNOWN or marks & _CLIMBING or step.number in self.ladders.known:
            self._index_due(step.number, what is UNKNOWN, marks)

    def _is_unknown_again(self, step: Step) -> bool:
        """Whether what was present has been undone, and of an attempt since then nobody knows."""
        if step.undo is None or step.undo.state not in CLOSED_UNDO or not is_condemned(step, self.header.turns):
            return False
        return owed(step, self.contract_of(step)) is UNKNOWN

    def _index_due(self, number: int, is_unknown: bool, marks: int) -> None:
        """Bring up to date who is to be asked when: of steps that are unknown, or climb, or did."""
        if self.ladders is NOTHING_DUE:
            self.ladders = Agenda()
        if is_unknown and self.probes is NOTHING_DUE:
            self.probes = Agenda()
        if is_unknown:
            self.probes.touch(number)
        elif number in self.probes.known:
            self.probes.drop(number)
        if is_unknown or marks & _CLIMBING:
            self.ladders.touch(number)
        else:
            self.ladders.drop(number)

    def _index_condemned(self, step: Step, marks: int) -> int:
        """Bring up to date what is only kept once something is condemned, and return the marks of that. It runs for
        each fact of an undo: what nobody declared costs a look at the contract."""
        number, contract = step.number, self.contract_of(step)
        condemned = is_condemned(step, self.header.turns)
        owing = condemned and owed(step, contract) is not ABSENT
        terms = contract.undo if contract is not None else None
        if condemned and terms is not None and (terms.covers or terms.agent_tool):
            self.coverage.note(step, contract)
        more = (_CONDEMNED if condemned else 0) | (_OWING if owing else 0)
        covered = False
        if owing and self.coverage.is_used:
            self._mark(number, marks | more)  # who is covered by whom is asked of the sets
            covered = is_covered_by_another(self, step)
        if owing and not covered and _is_climbing(step):
            more |= _CLIMBING
        if terms is not None and terms.window_ms is not None:
            self.windows.set(number, next_at_ms(step, contract) if owing and not covered else None)
        self._moved.add(number)
        return more

    def _mark(self, number: int, marks: int) -> None:
        """Put a step into the sets that `marks` names, and take it out of the others. Mostly nothing moves: then no set
        is touched."""
        moved = self._marks.get(number, 0) ^ marks
        if not moved:
            return
        self._marks[number] = marks
        for mark, name in _MARKED[moved]:
            numbers: set[int] = getattr(self, name)
            if marks & mark:
                numbers.add(number)
            else:
                numbers.discard(number)

    def reindex(self) -> None:
        """Rebuild every index, after a restore or a turn."""
        self.by_id = {step.step_id: step.number for step in self.steps}
        self.order = sorted((step.first_offset, step.number) for step in self.steps)
        self._dependencies, self.coverage = None, Coverage()
        for step in self.steps:
            self.index(step)

    def order_of_undoing(self) -> Dependencies | Chain:
        """Return what was built on what, true as of the last fact. Kept from the first time it is asked for; facts
        between two plans cost it nothing but the steps they changed. What is but a chain is made anew."""
        if self._dependencies is None:
            if self.is_in_one_order:
                self._moved.clear()
                in_order = (self.steps[number] for _, number in self.order)
                return Chain((step, self._holds(step), self._closes_at_ms(step)) for step in in_order)
            self._dependencies = Dependencies(lifo=not policy_of(self.header).parallel_undos)
            self._dependencies.build(
                (step, self._told(step), self._holds(step), self._closes_at_ms(step)) for step in self.steps
            )
        else:
            for number in sorted(self._moved):
                step = self.steps[number]
                self._dependencies.put(step, self._told(step), self._holds(step), self._closes_at_ms(step))
        self._moved.clear()
        return self._dependencies

    @property
    def is_in_one_order(self) -> bool:
        """Whether each step was built on the one before it, as `order_of_undoing` has it."""
        if self._dependencies is not None or len(self.steps) > STEPS_MAX:
            return False
        return not self._names_data or not policy_of(self.header).parallel_undos

    def first_in_order(self) -> Step | None:
        """Return the step that holds all others that stand in one order; None if nothing is to be undone."""
        for _, number in reversed(self.order):
            if self._holds(self.steps[number]):
                return self.steps[number]
        return None

    def _told(self, step: Step) -> Sequence[int]:
        """Return the steps that this one says it was built on."""
        if step.flow is None or not step.flow.after:
            return ()
        return [self.by_id[name] for name in step.flow.after if name in self.by_id]

    def _holds(self, step: Step) -> bool:
        """Whether a step is to be brought to its end before what it was built on. One that is covered is undone with
        that; one with which an agent may have undone it, and nobody knows, holds it whatever it is."""
        if not self.coverage.is_used:
            return self._is_pending(step)
        if is_covered_by_another(self, step):
            return False
        return self._is_pending(step) or (step.number in self.owing and may_have_undone(self, step))

    def _is_pending(self, step: Step) -> bool:
        """Whether what this step was built on waits for it. A failed undo never blocks, unless its policy says so."""
        if step.number not in self.owing or step.undo is None or step.undo.state is not UNDO_DEAD:
            return step.number in self.owing
        policy = policy_of(self.header)
        halts = policy.before_irreversible if step.effect is Effect.IRREVERSIBLE else policy.around_waiting
        return halts is Around.HALT

    def _closes_at_ms(self, step: Step) -> int:
        closes_ms = closes_at_ms(step, self.contract_of(step))
        return WINDOW_OPEN if closes_ms is None else closes_ms

    def open_troubles(self) -> list[tuple[Step | None, Trouble]]:
        """Every open incident, those of the workflow itself first."""
        found: list[tuple[Step | None, Trouble]] = [(None, t) for t in self.header.troubles if t.closed_at_ms is None]
        if self.troubled:
            found.extend((s, t) for s in self.troubled_steps() for t in s.troubles if t.closed_at_ms is None)
        return found

    def troubled_steps(self) -> list[Step]:
        """Return the steps that are or were an incident, in the order of first sight."""
        return [self.steps[number] for number in sorted(self.troubled)]

    def with_trouble(self, kind: str, reason: str, offset: int, at_ms: int) -> None:
        """Open an incident of the workflow itself, unless one of this kind is open."""
        if open_trouble(self.header.troubles, kind) is not None:
            return
        version = 1 + max((t.version for t in self.header.troubles if t.kind == kind), default=0)
        kept = tuple(t for t in self.header.troubles if t.kind != kind)
        self.put_header(replace(self.header, troubles=(*kept, Trouble(kind, version, reason, offset, at_ms))))

    def without_trouble(self, kind: str, at_ms: int, by: str) -> None:
        troubles = tuple(
            replace(t, closed_at_ms=at_ms, closed_by=by) if t.kind == kind and t.closed_at_ms is None else t
            for t in self.header.troubles
        )
        self.put_header(replace(self.header, troubles=troubles))


def _is_climbing(step: Step) -> bool:
    """Whether a step that is owed may be brought on by time alone: it climbs the ladder, or its undo may be forgotten
    by the remote."""
    undo = step.undo
    return undo is None or undo.state in CLOSED_UNDO or (undo.state is UNDO_DUE and undo.doubt)
