"""The judge: reads the world and the ledger, and nothing else, and says which promise of `protocol.md` was broken."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tests.simulation.lives import Belief, Heard, Told
from tests.simulation.world import BY_HAND, Deed, World

from amends.processors.memory import StoredRecord
from amends.processors.partition import Partition
from amends.processors.state import NOWHERE, Standing, Step, Turn, UndoState, standing
from amends.processors.terms import Terms
from amends.processors.workflow import Workflow
from amends.producers import scope_flow
from amends.schemas.codec import decode
from amends.schemas.commands import Phase
from amends.schemas.contract import Effect, Idempotency
from amends.schemas.facts import Decision, Resolution, StepEvent, StepStatus, UndoEvent, UndoStatus
from amends.schemas.keys import forward_key
from amends.tools.errors import WorkflowTurned

JITTER_MS = 20
CLOSED = (Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS, Phase.SUCCEEDED)
ENDS = frozenset({StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.NOT_EXECUTED})


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that was not kept."""

    promise: int
    words: str

    def __str__(self) -> str:
        return f"promise {self.promise}: {self.words}"


class Case:
    """The ledger, folded from its beginning without a crash, and what stood where."""

    def __init__(self, ledger: list[StoredRecord], terms: Terms) -> None:
        self.fold = Partition(0, terms)
        self.steps: dict[str, tuple[str, str]] = {}  # forward key -> (workflow, step)
        self.started: dict[str, int] = {}  # step -> offset of its first STARTED
        self.undo_started: dict[str, list[tuple[int, str, int]]] = defaultdict(list)  # step -> (offset, owner, number)
        self.dead: dict[str, list[tuple[int, frozenset[str]]]] = defaultdict(list)  # workflow -> (offset, dead steps)
        self.told: dict[str, frozenset[str]] = {}  # step -> steps it says it was built on
        self.absent: dict[str, int] = {}  # attempt -> when it was proven absent
        self.asked: set[str] = set()  # workflows whose undoing a person asked for
        self.starts: dict[str, list[tuple[int, int]]] = defaultdict(list)  # step -> (epoch, offset) of each STARTED
        self.sure: dict[str, dict[str, int]] = defaultdict(dict)  # step -> attempt -> since when its end is known
        self.present: dict[str, list[int]] = defaultdict(list)  # step -> where it is said to be present
        self.over: dict[str, list[int]] = defaultdict(list)  # step -> where a turn condemned it
        self.attempted: dict[str, dict[str, tuple[str, int]]] = defaultdict(dict)  # workflow -> attempt -> STARTED
        self.triggers: dict[str, list[tuple[int, int]]] = defaultdict(list)  # workflow -> (epoch it ended, offset)
        self._turns: dict[str, int] = {}
        for record in ledger:
            self._take(record)

    def _take(self, record: StoredRecord) -> None:
        self.fold.fold(record)
        fact = decode(record.value or b"")
        workflow_id = (record.key or b"").decode()
        if isinstance(fact, StepEvent) and fact.status in ENDS:
            self.sure[fact.step_id].setdefault(fact.attempt, record.offset)
            if fact.status is StepStatus.SUCCEEDED:
                self.present[fact.step_id].append(record.offset)
        if isinstance(fact, StepEvent) and fact.status is StepStatus.STARTED:
            if fact.attempt not in self.attempted[workflow_id]:  # a repeat says nothing
                self.attempted[workflow_id][fact.attempt] = (fact.step_id, record.offset)
                if not self.present[fact.step_id]:  # nor has another send of what is there an effect of its own
                    self.starts[fact.step_id].append((fact.epoch, record.offset))
            self.steps.setdefault(forward_key(fact.step_id), (workflow_id, fact.step_id))
            self.started.setdefault(fact.step_id, record.offset)
            self.told.setdefault(fact.step_id, frozenset(fact.after))
        elif isinstance(fact, UndoEvent) and fact.status is UndoStatus.STARTED:
            self.undo_started[fact.step_id].append((record.offset, fact.owner, fact.generation))
        elif isinstance(fact, Resolution) and fact.decision in (Decision.ABSENT, Decision.PRESENT):
            for attempt in fact.attempts:
                self.sure[fact.step_id or ""].setdefault(attempt, record.offset)
                if fact.decision is Decision.PRESENT:
                    self.present[fact.step_id or ""].append(record.offset)
                else:
                    self.absent.setdefault(attempt, record.appended_at_ms)
        elif getattr(fact, "writer", None) == "person" and getattr(fact, "status", None) is not None:
            self.asked.add(workflow_id)
        workflow = self.fold.workflow(workflow_id)
        if workflow is not None:
            steps, turns = workflow.steps, workflow.header.turns
            if len(turns) != self._turns.get(workflow_id, 0):
                self._turns[workflow_id] = len(turns)
                self.triggers[workflow_id].append((turns[-1].epoch if turns else -1, record.offset))
                for step in steps:
                    if turns and self.condemned_by(turns[-1], step.step_id):
                        self.over[step.step_id].append(record.offset)
            dead = frozenset(s.step_id for s in steps if s.undo is not None and s.undo.state is UndoState.DEAD)
            kept = self.dead[workflow_id]
            if not kept or kept[-1][1] != dead:
                kept.append((record.offset, dead))

    def condemned_by(self, turn: Turn, step_id: str) -> bool:
        """The protocol's own words: a STARTED of an ended epoch, behind the savepoint if there is one."""
        if turn.final and turn.offset == NOWHERE:
            return True
        return any(at > turn.offset and (turn.final or epoch <= turn.epoch) for epoch, at in self.starts[step_id])

    def is_condemned(self, workflow: Workflow, step_id: str) -> bool:
        return any(self.condemned_by(turn, step_id) for turn in workflow.header.turns)

    def given_up_at(self, workflow_id: str, offset: int) -> frozenset[str]:
        """Return the steps that were incidents at some time up to there: they do not block."""
        found: set[str] = set()
        for at, dead in self.dead[workflow_id]:
            if at <= offset:
                found |= dead
        return frozenset(found)


def judge(
    world: World, ledger: list[StoredRecord], terms: Terms, beliefs: dict[str, Belief], *, keeps_a1: bool
) -> list[Broken]:
    """Return what was broken, nothing if all promises are kept."""
    case = Case(ledger, terms)
    broken: list[Broken] = []
    for deed in world.deeds:
        broken.extend(_of_deed(case, deed, keeps_a1=keeps_a1))
        broken.extend(_of_order(case, world, deed))
    broken.extend(Broken(2, words) for words in world.overwritten)
    for workflow_id, belief in beliefs.items():
        workflow = case.fold.workflow(workflow_id)
        if workflow is not None and workflow.header.phase is not Phase.NONE:
            broken.extend(_of_end(case, workflow))
            broken.extend(_of_savepoints(case, workflow))
            for heard in belief.stories:
                broken.extend(_of_story(case, world, workflow, heard))
            broken.extend(_of_belief(case, world, workflow, belief))
    return broken


def _of_deed(case: Case, deed: Deed, *, keeps_a1: bool) -> list[Broken]:
    found = case.steps.get(deed.reference)
    if found is None:
        return [Broken(1, f"deed {deed.number} of {deed.tool} has no intent on the ledger")]
    workflow = case.fold.workflow(found[0])
    assert workflow is not None
    step = workflow.find(found[1])
    assert step is not None
    phase, count = workflow.header.phase, len(deed.undone)
    broken: list[Broken] = []
    absent_at_ms = case.absent.get(deed.attempt)
    if absent_at_ms is not None and deed.landed_at_ms > absent_at_ms + JITTER_MS and keeps_a1:
        words = (
            f"deed {deed.number} of {deed.tool} landed {deed.landed_at_ms - absent_at_ms} ms after it was proven absent"
        )
        broken.append(Broken(5, words))
    contract = workflow.contract_of(step)
    by_verify = contract is not None and contract.verify is not None
    if count > 1 and (keeps_a1 or not by_verify):
        broken.append(Broken(2, f"deed {deed.number} of {deed.tool} was undone {count} times: {deed.undone}"))
    broken.extend(_of_fence(case, workflow, step, deed))
    condemned = case.is_condemned(workflow, step.step_id)
    if count and not condemned:
        words = f"deed {deed.number} of {deed.tool} was undone, and nothing says that it is to be (it is {phase})"
        broken.append(Broken(4, words))
    lost = step.undo is not None and step.undo.state is UndoState.LOSS
    told = lost or (_is_incident(step) and phase is not Phase.COMPENSATED)
    if condemned and not count and not told and keeps_a1:
        words = f"deed {deed.number} of {deed.tool} is still there, and nobody is told (it is {phase})"
        broken.append(Broken(1, words))
    if lost and phase is Phase.COMPENSATED and not count:
        broken.append(Broken(1, f"deed {deed.number} of {deed.tool} is a loss, and its workflow is COMPENSATED"))
    return broken


def _of_fence(case: Case, workflow: Workflow, step: Step, deed: Deed) -> list[Broken]:
    """No trigger of its epoch stands before the STARTED of a call that can't be undone."""
    workflow_id = workflow.header.workflow_id
    started = case.attempted[workflow_id].get(deed.attempt)
    if step.effect is not Effect.IRREVERSIBLE or started is None:
        return []
    epoch = next((e for e, at in case.starts[step.step_id] if at == started[1]), None)
    if epoch is not None and any(ended >= epoch and at < started[1] for ended, at in case.triggers[workflow_id]):
        return [Broken(1, f"deed {deed.number} of {deed.tool}, irreversible, was begun after its epoch had ended")]
    return []


def _is_incident(step: Step) -> bool:
    return any(t.closed_at_ms is None for t in step.troubles)


def _of_order(case: Case, world: World, deed: Deed) -> list[Broken]:
    """Nothing is undone before what was built on it, as far as the ledger knew when the undo started."""
    if not deed.undone or deed.reference not in case.steps:
        return []
    workflow_id, step_id = case.steps[deed.reference]
    done = deed.undone[0]
    if done.key == BY_HAND:
        return []
    starts = [offset for offset, owner, _ in case.undo_started[step_id] if owner == done.by]
    if not starts:
        return [Broken(2, f"{done.by} undid deed {deed.number} without a STARTED on the ledger")]
    since = starts[-1]
    given_up = case.given_up_at(workflow_id, since)
    workflow = case.fold.workflow(workflow_id)
    assert workflow is not None
    broken: list[Broken] = []
    for other in world.deeds:
        found = case.steps.get(other.reference)
        if other is deed or found is None or found[0] != workflow_id or found[1] in given_up:
            continue
        if not case.started[step_id] < case.started[found[1]] < since or other.landed_at_ms > done.at_ms:
            continue
        if not (_is_built_on(other, deed) or step_id in case.told[found[1]]):
            continue
        if not case.is_condemned(workflow, found[1]):
            continue  # its agent went on beside what was given up on; a person had that tried again
        if not other.undone or other.undone[0].at_ms > done.at_ms:
            words = f"deed {deed.number} ({deed.tool}) was undone while deed {other.number} ({other.tool}) was there"
            broken.append(Broken(3, words))
    return broken


def _is_built_on(later: Deed, base: Deed) -> bool:
    """Whether the world shows that one deed was built on another: it names it, or both are of one account."""
    return base.id in later.names or bool(base.account and base.account == later.account)


def _of_savepoints(case: Case, workflow: Workflow) -> list[Broken]:
    """Nobody goes back to a savepoint that was taken while a call was open or unknown."""
    broken: list[Broken] = []
    for turn in workflow.header.turns:
        if turn.offset in (NOWHERE, workflow.header.started_offset):
            continue
        for attempt, (step_id, at) in case.attempted[workflow.header.workflow_id].items():
            known_at = case.sure[step_id].get(attempt)
            known = known_at is not None and known_at < turn.offset
            if at < turn.offset and not known and not _was_sure(case, step_id, turn.offset):
                words = f"it went back to the savepoint at {turn.offset}, taken while attempt {attempt} was not known"
                broken.append(Broken(5, words))
    return broken


def _was_sure(case: Case, step_id: str, offset: int) -> bool:
    """Whether a step was known to be present, whatever became of another attempt, or had been condemned."""
    known = any(at < offset for at in case.present[step_id])
    return known or any(at < offset for at in case.over[step_id])


def _of_story(case: Case, world: World, workflow: Workflow, heard: Heard) -> list[Broken]:
    """What an agent is told was undone is not there, unless it is told that, too."""
    turns = workflow.header.turns
    number = next((n for n, turn in enumerate(turns) if turn.epoch == heard.epoch - 1 and not turn.final), None)
    if number is None:
        return []  # a turn of the whole came after it, which condemns all that this one did
    broken: list[Broken] = []
    for deed in world.deeds:
        found = case.steps.get(deed.reference)
        if found is None or found[0] != workflow.header.workflow_id or deed.landed_at_ms > heard.at_ms:
            continue
        before = any(case.condemned_by(turn, found[1]) for turn in turns[:number])
        if before or not case.condemned_by(turns[number], found[1]) or found[1] in heard.left:
            continue
        if not deed.undone or deed.undone[0].at_ms > heard.at_ms:
            words = f"deed {deed.number} of {deed.tool} was there when the agent was told that it was undone"
            broken.append(Broken(7, words))
    return broken


def _of_end(case: Case, workflow: Workflow) -> list[Broken]:
    header, broken = workflow.header, []
    told = bool(workflow.open_troubles())
    if header.phase not in CLOSED and not told:
        broken.append(Broken(6, f"{header.workflow_id} is {header.phase} for ever, and nobody is told"))
    if header.phase in CLOSED:
        for step in workflow.steps:
            if step.undo is not None and step.undo.state in (UndoState.DUE, UndoState.OPEN, UndoState.DEAD):
                broken.append(Broken(6, f"{header.workflow_id} is {header.phase}, an undo of {step.tool_name} is open"))
            if standing(step) is Standing.OPEN:
                broken.append(Broken(6, f"{header.workflow_id} is {header.phase}, a call of {step.tool_name} is open"))
            surely = case.is_condemned(workflow, step.step_id) or standing(step) is not Standing.UNKNOWN
            if header.phase is Phase.SUCCEEDED and not surely:
                broken.append(Broken(5, f"{header.workflow_id} succeeded, {step.tool_name} is unknown"))
    return broken


def _of_belief(case: Case, world: World, workflow: Workflow, belief: Belief) -> list[Broken]:
    """The agent was told the truth."""
    header, broken = workflow.header, []
    asked = header.workflow_id in case.asked
    for _, end in belief.ends:
        if isinstance(end, scope_flow.Succeeded) and header.phase is not Phase.SUCCEEDED and not asked:
            broken.append(
                Broken(7, f"{header.workflow_id}: the agent was told that it succeeded; it is {header.phase}")
            )
        if isinstance(end, scope_flow.Turned | WorkflowTurned) and not header.turns:
            broken.append(Broken(7, f"{header.workflow_id}: the agent was told that it turned; it is {header.phase}"))
    if header.phase is not Phase.SUCCEEDED:
        return broken
    for call_id, told in belief.calls.items():
        subject = f"{header.workflow_id}/{call_id}"
        there = [d for d in world.deeds if d.call == subject and d.is_there]
        there = [d for d in there if not case.is_condemned(workflow, case.steps[d.reference][1])]
        if told is Told.DONE and not there:
            broken.append(Broken(7, f"{subject}: told that it was done, and it is not there"))
        if told in (Told.REFUSED, Told.NOT_CALLED) and there and belief.processes == 1:
            broken.append(Broken(7, f"{subject}: {told.value}, the agent was told, and it is there"))
        if len(there) > 1 and any(_kind_of(case, d) is not Idempotency.NEITHER for d in there):
            broken.append(Broken(2, f"{subject} was done {len(there)} times"))
    return broken


def of_the_living(fold: Partition, beliefs: dict[str, Belief]) -> list[Broken]:
    """No agent that lived and was heard is failed for its silence, not even after an outage of the ledger."""
    broken: list[Broken] = []
    for workflow_id, belief in beliefs.items():
        workflow = fold.workflow(workflow_id)
        if (
            workflow is None
            or belief.disturbed
            or not belief.ends
            or "went silent" not in workflow.header.turned_reason
        ):
            continue
        if all(isinstance(end, scope_flow.Turned | WorkflowTurned) for _, end in belief.ends):
            broken.append(Broken(4, f"{workflow_id}: a live agent was failed: {workflow.header.turned_reason}"))
    return broken


def _kind_of(case: Case, deed: Deed) -> Idempotency | None:
    workflow_id, step_id = case.steps[deed.reference]
    workflow = case.fold.workflow(workflow_id)
    step = workflow.find(step_id) if workflow is not None else None
    contract = workflow.contract_of(step) if workflow is not None and step is not None else None
    return contract.call.idempotency if contract is not None else None
