"""The judge of families: what a parent's turn meant for its children, read from their ledgers and from the world."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.simulation.case import Case
from tests.simulation.judge import JITTER_MS, Broken
from tests.simulation.world import BY_HAND, Deed, World

from amends.processors.children import step_id_of
from amends.processors.state import Step, UndoState
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase


@dataclass(frozen=True, slots=True)
class Bond:
    """A child that a parent announced, and that began."""

    offset: int  # of CHILD_STARTED
    parent: Workflow
    record: Step  # what the parent keeps of it
    child: Workflow
    child_case: Case

    @property
    def is_told(self) -> bool:
        """Whether a person is told that something of the child is left, or has accepted that."""
        undo = self.record.undo
        return any(t.closed_at_ms is None for t in self.record.troubles) or (
            undo is not None and undo.state is UndoState.LOSS
        )


def of_families(
    world: World, cases: Sequence[Case], partition_of: Callable[[str], int], *, keeps_a1: bool
) -> list[Broken]:
    """Return what was broken between parents and children."""
    broken: list[Broken] = []
    for case in cases:
        for bond in _bonds(case, cases, partition_of):
            if any(_condemns(turn.epoch, turn.offset, bond, final=turn.final) for turn in bond.parent.header.turns):
                broken.extend(_of_child(bond))
                if keeps_a1:
                    broken.extend(_of_leftovers(world, bond))
                broken.extend(_of_order(case, world, bond))
    return broken


def _bonds(case: Case, cases: Sequence[Case], partition_of: Callable[[str], int]) -> Iterator[Bond]:
    for offset, parent_id, child_id in case.announced:
        child_case = cases[partition_of(child_id)]
        for parent in case.instances(parent_id):
            record = parent.find(step_id_of(child_id, offset))
            for child in child_case.instances(child_id) if record is not None else ():
                if child_case.born.get(child.header.started_offset) == (parent_id, offset):
                    assert record is not None
                    yield Bond(offset, parent, record, child, child_case)


def _condemns(epoch: int, offset: int, bond: Bond, *, final: bool) -> bool:
    """As `Case.condemned_by`: a child is announced in an epoch, behind the savepoint or before it."""
    return bond.offset > offset and (final or bond.record.epoch <= epoch)


def _of_child(bond: Bond) -> list[Broken]:
    header = bond.child.header
    if header.turns or bond.is_told:
        return []
    words = f"{header.workflow_id} is {header.phase}, though its parent {bond.parent.header.workflow_id} turned"
    return [Broken(1, words)]


def _deeds(world: World, bond: Bond) -> Iterator[tuple[Deed, str]]:
    for deed in world.deeds:
        step_id = bond.child_case.steps.get(deed.reference)
        if step_id is not None and bond.child.find(step_id) is not None:
            yield deed, step_id


def _of_leftovers(world: World, bond: Bond) -> list[Broken]:
    """No parent is COMPENSATED while something of its child is there."""
    if bond.parent.header.phase is not Phase.COMPENSATED:
        return []
    return [
        Broken(1, f"{bond.parent.header.workflow_id} is COMPENSATED, deed {deed.number} of its child is there")
        for deed, _ in _deeds(world, bond)
        if deed.is_there
    ]


def _of_order(case: Case, world: World, bond: Bond) -> list[Broken]:
    """What the parent did before it began the child is not undone before what the child did, as far as the parent had
    been told when that undo started."""
    broken: list[Broken] = []
    instance = bond.parent.header.started_offset
    for base in world.deeds:
        step_id = case.steps.get(base.reference)
        if not base.undone or step_id is None or bond.parent.find(step_id) is None or base.undone[0].key == BY_HAND:
            continue
        starts = [offset for offset, owner, _ in case.undo_started[step_id] if owner == base.undone[0].by]
        if not starts or not case.started[step_id] < bond.offset < starts[-1]:
            continue
        if bond.record.step_id in case.given_up_at(instance, starts[-1]):
            continue
        turns = (turn for turn, at in case.turns[instance] if at < starts[-1])
        if not any(_condemns(turn.epoch, turn.offset, bond, final=turn.final) for turn in turns):
            continue  # as in `judge`: a person had what was given up on tried again, and the child went on beside it
        told = max((as_of for at, as_of in case.answers[bond.offset] if at < starts[-1]), default=None)
        for deed, of_child in _deeds(world, bond):
            known = [at for at in bond.child_case.present[of_child] if told is None or at <= told]
            landed_late = deed.landed_at_ms > base.undone[0].at_ms - JITTER_MS
            given_up = of_child in bond.child_case.given_up_at(bond.child.header.started_offset, 1 << 62)
            if not known or landed_late or given_up:
                continue
            if not deed.undone or deed.undone[0].at_ms > base.undone[0].at_ms:
                words = f"deed {base.number} was undone while deed {deed.number}, of a child begun after it, was there"
                broken.append(Broken(3, words))
    return broken
