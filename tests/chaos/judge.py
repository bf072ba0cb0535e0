"""Did amends keep its promises to one workflow? Judged from the remotes' record and the ledger alone. Pure.

The numbers are those of the promises. What cannot be seen from outside (5, 8) is seen in what follows from it: nothing
left, nothing undone that stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.chaos.outside import Effect

from amends.schemas.commands import Incident, Phase, WorkflowEcho
from amends.schemas.facts import (
    Decision,
    Fact,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)

DOUBTFUL = ("chaos.blind", "chaos.final")
"""Tools of the remotes that nobody can ask, or whose effects nothing takes back: a person has to be asked."""
UNASKED = ("chaos.natural", "chaos.record")
"""Tools without a probe."""


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known about one workflow. `facts` in the order of the ledger, with their offsets."""

    name: str
    effects: Sequence[Effect]
    facts: Sequence[tuple[int, Fact]]
    echo: WorkflowEcho | None
    incidents: Sequence[Incident]
    said: str | None
    open_incidents: Sequence[Incident] = field(default=())
    parent: Case | None = None  # of the workflow that had this one done, as a child of its own


def judge(case: Case) -> list[str]:
    """Return what is wrong."""
    if case.echo is None:
        return _unknown_to_the_fold(case)
    wrong = [*_left_or_twice(case), *_told_lies(case), *_needless(case), *_out_of_order(case), *_of_family(case)]
    if case.echo.phase is Phase.SUCCEEDED:
        wrong += _missing_of_a_success(case)
    return wrong


def _unknown_to_the_fold(case: Case) -> list[str]:
    if any(not is_asked_by_parent(fact) for _, fact in case.facts):
        return ["6: the ledger has facts of it, and no echo answers"]
    return ["1: the ledger never knew it, and it has effects"] if case.effects else []


def is_asked_by_parent(fact: object) -> bool:
    """Whether this is what a parent asks of a child; of one that was never begun it is all there is."""
    return isinstance(fact, WorkflowEvent) and fact.writer is Party.PARENT


def _left_or_twice(case: Case) -> Iterable[str]:
    assert case.echo is not None
    excused = {incident.tool_name.removeprefix("chaos.") for incident in case.open_incidents}
    for effect in case.effects:
        if len(effect.undone_serials) > 1:
            yield f"2: {effect.identity} was undone {len(effect.undone_serials)} times"
        may_stand = _may_stand(case) and not _is_condemned(case, effect.kind)
        if effect.stands and not may_stand and effect.kind not in excused:
            yield f"1: {effect.identity} is left, {case.echo.phase}, and no open incident says so"


def _may_stand(case: Case) -> bool:
    """Whether the workflow succeeded, or claims it and waits for a person: to say how an unknown call of it ended, or
    to see to an undo, behind a savepoint, that was given up on."""
    assert case.echo is not None
    waits = case.echo.phase is Phase.FINISHING and bool(case.open_incidents)
    return waits or case.echo.phase is Phase.SUCCEEDED


def _is_condemned(case: Case, kind: str) -> bool:
    """Whether a call of this kind stands behind a savepoint that the workflow was undone to. None is made twice."""
    calls = [
        (fact.epoch, offset)
        for offset, fact in case.facts
        if isinstance(fact, StepEvent) and fact.status is StepStatus.STARTED and fact.tool_name == f"chaos.{kind}"
    ]
    return _is_behind_a_turn(case, calls)


def _is_behind_a_turn(case: Case, places: Iterable[tuple[int, int]]) -> bool:
    """Whether one of these (epoch, offset) is behind a savepoint that the workflow was undone to."""
    assert case.echo is not None
    return any(epoch <= turn.epoch and offset > turn.offset for epoch, offset in places for turn in case.echo.turns)


def _undone_by_parent(case: Case) -> bool:
    """Whether the parent undoes all that this child did, for it undoes itself, or what it did since a savepoint."""
    parent = case.parent
    if parent is None or parent.echo is None:
        return False
    begun = [
        (fact.epoch, offset)
        for offset, fact in parent.facts
        if isinstance(fact, WorkflowEvent)
        and fact.status is WorkflowStatus.CHILD_STARTED
        and fact.child_workflow_id == case.name
    ]
    return bool(begun) and (not _may_stand(parent) or _is_behind_a_turn(parent, begun))


def _of_family(case: Case) -> Iterable[str]:
    """What a parent undoes has no child that succeeds; and where all of a child was done before its parent went on,
    all of it is undone before what the parent did earlier."""
    assert case.echo is not None
    if not _undone_by_parent(case):
        return
    assert case.parent is not None
    if case.echo.phase is Phase.SUCCEEDED:
        yield f"1: it succeeded, and its parent {case.parent.name} undoes what it did"
    if case.said != "Succeeded" or case.incidents or case.parent.incidents:
        return
    for mine in case.effects:
        for earlier in case.parent.effects:
            if earlier.made_serial < mine.made_serial and _was_undone_before(earlier, mine):
                yield f"3: its parent's {earlier.identity} was undone before {mine.identity}, which was made after it"


def _was_undone_before(first: Effect, second: Effect) -> bool:
    if first.stands or second.stands:
        return not first.stands
    return first.undone_serials[0] < second.undone_serials[0]


def _missing_of_a_success(case: Case) -> Iterable[str]:
    kept = [effect for effect in case.effects if not _is_condemned(case, effect.kind)]
    for effect in kept:
        if not effect.stands:
            yield f"4: {effect.identity} was undone, and the workflow succeeded"
    if case.said is None or case.said != "Succeeded":
        return
    kinds = [effect.kind for effect in kept]
    for kind in set(kinds):
        if kinds.count(kind) > 1:
            yield f"5: {kind} was done {kinds.count(kind)} times in a workflow that succeeded"


def _told_lies(case: Case) -> Iterable[str]:
    assert case.echo is not None
    phase, said = case.echo.phase, case.said or ""
    if said == "Succeeded" and phase is not Phase.SUCCEEDED and not _undone_by_parent(case):
        yield f"7: the agent was told of a success, and it is {phase}"
    if said.startswith("failed") and phase is Phase.SUCCEEDED:
        yield f"7: the agent failed ({said}), and it is {phase}"
    if "WorkflowTurned" in said and phase is Phase.SUCCEEDED:
        yield f"7: the agent was told that it turned, and it is {phase}"
    if "AlreadyRunning" in said:
        yield "7: the agent was told that its id is in use, and nobody else used it"


def _needless(case: Case) -> Iterable[str]:
    """Only a remote that nobody can ask leaves anything to a person; the others can be asked until they answer.

    Over a claim of success nothing is sent again, so there a call that has no probe and is in doubt stays in doubt.
    """
    for incident in case.incidents:
        if incident.kind == "child_waits":
            continue  # with the child's own, of which each is looked at
        of_a_claim = incident.tool_name in UNASKED and incident.kind == "unknown" and _claimed(case)
        if incident.tool_name not in DOUBTFUL and not of_a_claim:
            yield f"6: an incident that no one needs: {incident.kind}: {incident.summary}"


def _out_of_order(case: Case) -> Iterable[str]:
    """An effect is undone before what was made after it, as far as the ledger knew when the undo started.

    A call that was sent again, to learn what became of it, stands in the order where it was first made.
    """
    made = sorted(case.effects, key=lambda effect: effect.made_serial)
    for place, first in enumerate(made):
        if first.stands:
            continue
        began = _undo_began(case, first.kind)
        for later in made[place + 1 :]:
            waits = later.stands or later.undone_serials[0] > first.undone_serials[0]
            if _called_at(case, later.kind) < _called_at(case, first.kind):
                continue
            if waits and _was_owed(case, later.kind, began):
                yield f"3: {first.identity} was undone before {later.identity}, which was made after it"


def _called_at(case: Case, kind: str) -> int:
    """Return the offset at which a call of a kind began first."""
    tool, began = f"chaos.{kind}", StepStatus.STARTED
    calls = (o for o, f in case.facts if isinstance(f, StepEvent) and f.tool_name == tool and f.status is began)
    return min(calls, default=-1)


def _claimed(case: Case) -> bool:
    return any(isinstance(f, WorkflowEvent) and f.status is WorkflowStatus.SUCCEEDED for _, f in case.facts)


def _undo_began(case: Case, kind: str) -> int:
    """Return the offset at which the undo of a kind that took started. Who starts behind its end has lost."""
    undos = [(o, f.status) for o, f in case.facts if isinstance(f, UndoEvent) and f.tool_name == f"chaos.{kind}"]
    end = min((offset for offset, status in undos if status is UndoStatus.UNDONE), default=None)
    starts = [o for o, status in undos if status is UndoStatus.STARTED and (end is None or o < end)]
    return max(starts, default=-1)


def _was_owed(case: Case, kind: str, before: int) -> bool:
    """Whether the ledger knew, before an offset, of a call of this kind, and neither that it was absent nor that a
    person must decide."""
    tool = f"chaos.{kind}"
    if any(incident.tool_name == tool for incident in case.incidents):
        return False
    steps = {fact.step_id for _, fact in case.facts if isinstance(fact, StepEvent) and fact.tool_name == tool}
    known = [fact for offset, fact in case.facts if offset < before]
    started = any(isinstance(f, StepEvent) and f.step_id in steps and f.status is StepStatus.STARTED for f in known)
    absent = any(isinstance(f, Resolution) and f.step_id in steps and f.decision is Decision.ABSENT for f in known)
    ended = any(
        isinstance(f, UndoEvent) and f.step_id in steps and f.status in (UndoStatus.UNDONE, UndoStatus.NOTHING_TO_UNDO)
        for f in known
    )
    failed = any(isinstance(f, StepEvent) and f.step_id in steps and f.status in _NOTHING for f in known)
    return started and not absent and not ended and not failed


_NOTHING = (StepStatus.FAILED, StepStatus.NOT_EXECUTED)
