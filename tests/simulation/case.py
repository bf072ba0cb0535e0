"""What stands on the ledger: folded from its beginning without a crash, and told anew where the judge must not trust
the fold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from typing import TypeGuard

from tests.simulation.decoding import decoded

from amends.processors.memory import StoredRecord
from amends.processors.partition import Partition
from amends.processors.state import NOWHERE, Turn, UndoState
from amends.processors.terms import Terms
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase
from amends.schemas.facts import (
    Decision,
    Fact,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    Timeout,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)
from amends.schemas.family import AS_OF, CHILD_STARTED_OFFSET, number_of
from amends.schemas.keys import forward_key

TRIGGERS = frozenset({WorkflowStatus.FAILED, WorkflowStatus.ROLLBACK_REQUESTED})
_DEAD = UndoState.DEAD
ENDS = frozenset({StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.NOT_EXECUTED})


def _names_another(fact: Fact, epoch: int) -> TypeGuard[WorkflowEvent | Timeout]:
    """Whether a trigger, which names the epoch that it wants to end, ended another."""
    if isinstance(fact, Timeout):
        return fact.epoch != epoch
    if not isinstance(fact, WorkflowEvent):
        return False
    return fact.status in TRIGGERS and fact.writer is Party.AGENT and fact.epoch != epoch


def instances_of(fold: Partition, workflow_id: str) -> list[Workflow]:
    """Return what a partition has folded under an id, the newest last."""
    slots = fold._slots
    held = [slots.hot(slot) for slot in slots.of(workflow_id.encode()) if slot.parked is None]
    return [workflow for workflow in held if workflow.header.started_offset != NOWHERE]


def fold_one(fold: Partition, record: StoredRecord, ledger: list[StoredRecord], start: int) -> None:
    """Fold a record of a ledger that begins at `start`, of which all that ever stood on it is given."""
    fold.fold(record)
    while (stretch := fold.refolding()) is not None:  # a forgotten workflow, or a child that its parent asks for
        if stretch.from_ms is not None:
            at = (r.offset for r in ledger[start:] if r.appended_at_ms >= stretch.from_ms)
            stretch.located(next(at, len(ledger)))
        stretch.begins_at(start)
        for each in ledger[stretch.from_offset : stretch.to_offset + 1]:
            stretch.take(each)
        fold.refolded(stretch)


class Case:
    """The ledger of one partition. An instance of a workflow is known by where it began. `reached` are the deliveries
    of undos that came to ask a remote: the others were stale, lost or late, and left it alone."""

    def __init__(self, ledger: list[StoredRecord], terms: Terms, reached: Set[str], number: int = 0) -> None:
        self.number = number
        self.fold = Partition(number, terms)
        self.steps: dict[str, str] = {}  # forward key -> step
        self.workflow_ids: dict[str, str] = {}  # by step
        self.started: dict[str, int] = {}  # step -> offset of its first STARTED
        self.undo_started: dict[str, list[tuple[int, str, int]]] = defaultdict(list)  # step -> (offset, owner, number)
        self.dead: dict[int, list[tuple[int, list[str]]]] = defaultdict(list)  # instance -> (offset, dead steps)
        self.told: dict[str, frozenset[str]] = {}  # step -> steps it says it was built on
        self.absent: dict[str, int] = {}  # attempt -> when it was proven absent
        self.contained: list[tuple[str, int]] = []  # instances that a person asked to be undone
        self.asked: set[str] = set()  # workflows whose undoing a person asked for
        self.starts: dict[str, list[tuple[int, int]]] = defaultdict(list)  # step -> (epoch, offset) of each STARTED
        self.sure: dict[str, dict[str, int]] = defaultdict(dict)  # step -> attempt -> since when its end is known
        self.present: dict[str, list[int]] = defaultdict(list)  # step -> where it is said to be present
        self.attempted: dict[str, tuple[str, int]] = {}  # attempt -> its step, and where its STARTED stands
        self.triggers: dict[int, list[tuple[int, int]]] = defaultdict(list)  # instance -> (epoch it ended, offset)
        self.turns: dict[int, list[tuple[Turn, int]]] = defaultdict(list)  # instance -> each, and where
        self.stale: dict[int, list[str]] = defaultdict(list)  # instance -> triggers that named another epoch
        self.approved: dict[str, list[tuple[int, int, int]]] = defaultdict(list)  # step -> (offset, epoch, until)
        self.began: dict[str, tuple[int, int, int]] = {}  # attempt -> offset, epoch and append time of its STARTED
        self.announced: list[tuple[int, str, str]] = []  # CHILD_STARTED: where, of which parent, which child
        self.succeeded: dict[int, int] = {}  # instance -> where it did
        self.born: dict[int, tuple[str, int]] = {}  # instance of a child -> its parent, and where that announced it
        self.opened: dict[str, int] = {}  # process -> where it began or resumed its workflow
        self.answers: dict[int, list[tuple[int, int]]] = defaultdict(list)  # announcement -> (where, as of where)
        self.begun_dead: set[tuple[str, str]] = set()  # step and owner: begun when its undo was a person's already
        self.unknowable: set[int] = set()  # instances that a ledger which forgets lets nobody know
        self.most_under_way: dict[str, int] = {}  # undos at once: by tool, and of all ("")
        self._under_way: dict[tuple[str, int, int], tuple[str, str]] = {}  # attempts started: tool and owner
        self._ended: set[tuple[str, int, int]] = set()
        self._undone: set[tuple[str, int]] = set()  # step and generation
        self._epochs: dict[int, int] = {}
        self._reached = reached
        self._ledger = ledger
        for record in ledger:
            self._take(record)

    @property
    def ledger(self) -> list[StoredRecord]:
        """All that ever stood on it."""
        return self._ledger

    def instances(self, workflow_id: str) -> list[Workflow]:
        """Return what was folded under an id, the newest last."""
        return instances_of(self.fold, workflow_id)

    def workflow_of(self, step_id: str) -> Workflow:
        """Return the instance that a step belongs to."""
        return next(w for w in self.instances(self.workflow_ids[step_id]) if w.find(step_id) is not None)

    def _take(self, record: StoredRecord) -> None:
        fold_one(self.fold, record, self._ledger, 0)
        fact: Fact = decoded(record.value)  # type: ignore[assignment]
        workflow_id = (record.key or b"").decode()
        if isinstance(fact, StepEvent):
            self._take_step(workflow_id, fact, record.offset)
            if fact.status is StepStatus.STARTED:
                self.began.setdefault(fact.attempt, (record.offset, fact.epoch, record.appended_at_ms))
        elif isinstance(fact, UndoEvent):
            self._take_undo(fact, record.offset)
        elif isinstance(fact, Timeout) and fact.step_id:
            for ended in [ended for ended in self._under_way if ended[0] == fact.step_id]:
                del self._under_way[ended]
                self._ended.add(ended)
        elif isinstance(fact, Resolution) and fact.decision in (Decision.ABSENT, Decision.PRESENT):
            for attempt in fact.attempts:
                self.sure[fact.step_id or ""].setdefault(attempt, record.offset)
                if fact.decision is Decision.PRESENT:
                    self.present[fact.step_id or ""].append(record.offset)
                else:
                    self.absent.setdefault(attempt, record.appended_at_ms)
        elif isinstance(fact, Resolution) and fact.decision is Decision.APPROVE:
            granted = (record.offset, -1 if fact.step_epoch is None else fact.step_epoch, fact.expires_at_ms or 0)
            self.approved[fact.step_id or ""].append(granted)
        elif isinstance(fact, WorkflowEvent):
            self._take_workflow(workflow_id, fact, record.offset)
        slots = self.fold._slots
        for slot in slots.of(record.key or b""):
            if slot.parked is None:
                workflow = slots.hot(slot)
                if workflow.header.folded_to == record.offset and workflow.header.started_offset != NOWHERE:
                    self._look_at(workflow, fact, record.offset)

    def _take_undo(self, fact: UndoEvent, offset: int) -> None:
        attempt = (fact.step_id, fact.generation, fact.attempt)
        if fact.status is not UndoStatus.STARTED:
            self._ended.add(attempt)
            self._under_way.pop(attempt, None)
            if fact.status is UndoStatus.UNDONE:
                self._close(attempt[:2])
            return
        if all(fact.owner != owner for _, owner, _ in self.undo_started[fact.step_id]):  # a repeat began nothing
            self.undo_started[fact.step_id].append((offset, fact.owner, fact.generation))
            if self._is_dead(fact.step_id):
                self.begun_dead.add((fact.step_id, fact.owner))
        if attempt in self._ended or attempt[:2] in self._undone or fact.owner not in self._reached:
            return  # nothing is under way where no remote was asked: places are what a remote bears (decision 0027)
        self._under_way.setdefault(attempt, (fact.tool_name, fact.owner))  # who comes later does nothing
        at_once = set(self._under_way.values())  # a run does one after another, though all may be STARTED
        of_tool = [owner for tool, owner in at_once if tool == fact.tool_name]
        for tool, count in ((fact.tool_name, len(of_tool)), ("", len({owner for _, owner in at_once}))):
            self.most_under_way[tool] = max(count, self.most_under_way.get(tool, 0))

    def _is_dead(self, step_id: str) -> bool:
        undos = (w.find(step_id) for w in self.instances(self.workflow_ids.get(step_id, "")))
        return any(step.undo.state is _DEAD for step in undos if step is not None and step.undo is not None)

    def _close(self, undo: tuple[str, int]) -> None:
        """An undo is over, whichever attempt took: a callback, or a compensator that was away, says so of an older one.
        Its place is free from then on. Who begins the attempt that was granted meanwhile reads the end back and does
        nothing; who had begun it, and lives, is at it beside whoever has the place, until its lease ends at most."""
        self._undone.add(undo)
        for attempt in [each for each in self._under_way if each[:2] == undo]:
            del self._under_way[attempt]

    def _take_workflow(self, workflow_id: str, fact: WorkflowEvent, offset: int) -> None:
        if fact.status is WorkflowStatus.STARTED:
            self.opened.setdefault(fact.instance, offset)
        if fact.status is WorkflowStatus.ROLLBACK_REQUESTED and fact.writer is not Party.AGENT:
            self.asked.add(workflow_id)
            if fact.writer is Party.PERSON and fact.workflow_offset != NOWHERE:
                self.contained.append((workflow_id, fact.workflow_offset))
        elif fact.status is WorkflowStatus.CHILD_STARTED and not fact.detached:
            self.announced.append((offset, workflow_id, fact.child_workflow_id or ""))
        elif fact.status is WorkflowStatus.STARTED and fact.parent_workflow_id and not fact.detached:
            announced = (fact.parent_workflow_id, number_of(fact, CHILD_STARTED_OFFSET))
            is_new = any(w.header.started_offset == offset for w in self.instances(workflow_id))
            if is_new and announced not in self.born.values():  # a repeat behind the grace begins nobody's child
                self.born.setdefault(offset, announced)
        elif fact.status is WorkflowStatus.CHILD_CLOSED:
            self.answers[number_of(fact, CHILD_STARTED_OFFSET)].append((offset, number_of(fact, AS_OF)))

    def _take_step(self, workflow_id: str, fact: StepEvent, offset: int) -> None:
        step_id = fact.step_id
        if fact.status in ENDS:
            self.sure[step_id].setdefault(fact.attempt, offset)
        if fact.status is StepStatus.SUCCEEDED:
            self.present[step_id].append(offset)
        if fact.status is not StepStatus.STARTED:
            return
        self.steps.setdefault(forward_key(step_id), step_id)
        self.workflow_ids.setdefault(step_id, workflow_id)
        self.started.setdefault(step_id, offset)
        self.told.setdefault(step_id, frozenset(fact.after))
        if fact.attempt in self.attempted:  # a repeat says nothing
            return
        self.attempted[fact.attempt] = (step_id, offset)
        if not self.present[step_id]:  # nor has another send of what is there an effect of its own
            self.starts[step_id].append((fact.epoch, offset))

    def _look_at(self, workflow: Workflow, fact: Fact, offset: int) -> None:
        header = workflow.header
        if header.phase is Phase.SUCCEEDED:
            self.succeeded.setdefault(header.started_offset, offset)
        if header.epoch != self._epochs.get(header.started_offset, 0):
            self._epochs[header.started_offset] = header.epoch
            if _names_another(fact, header.epoch - 1):
                words = f"a {fact.status if isinstance(fact, WorkflowEvent) else fact.kind} of epoch {fact.epoch}"
                self.stale[header.started_offset].append(f"{words} ended epoch {header.epoch - 1}")
            is_parents = isinstance(fact, WorkflowEvent) and fact.writer is Party.PARENT
            is_unborn = header.family is not None and header.family.unborn
            if is_parents and not is_unborn and header.started_offset not in self.born:
                self.stale[header.started_offset].append("its undoing was asked for by a parent, and it stands alone")
            self.triggers[header.started_offset].append((header.epoch - 1, offset))
            if header.turns:
                self.turns[header.started_offset].append((header.turns[-1], offset))
        if not header.turns and header.started_offset not in self.dead:
            return  # nothing is to be undone
        dead = [step.step_id for step in workflow.steps if step.undo is not None and step.undo.state is _DEAD]
        kept = self.dead[header.started_offset]
        if not kept or kept[-1][1] != dead:
            kept.append((offset, dead))

    def epoch_of(self, reference: str) -> int:
        """Return the epoch in which the step of a deed was first started."""
        return self.starts[self.steps[reference]][0][0]

    def condemned_by(self, turn: Turn, step_id: str) -> bool:
        """The protocol's own words: a STARTED of an ended epoch, behind the savepoint if there is one."""
        if turn.final and turn.offset == NOWHERE:
            return True
        return any(at > turn.offset and (turn.final or epoch <= turn.epoch) for epoch, at in self.starts[step_id])

    def is_condemned(self, workflow: Workflow, step_id: str) -> bool:
        return any(self.condemned_by(turn, step_id) for turn in workflow.header.turns)

    def was_condemned(self, instance: int, step_id: str, offset: int) -> bool:
        """Whether a turn that had been asked for by then condemns a step."""
        return any(at < offset and self.condemned_by(turn, step_id) for turn, at in self.turns[instance])

    def given_up_at(self, instance: int, offset: int) -> frozenset[str]:
        """Return the steps that were incidents at some time up to there: they do not block."""
        found: set[str] = set()
        for at, dead in self.dead[instance]:
            if at <= offset:
                found.update(dead)
        return frozenset(found)
