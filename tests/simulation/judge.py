"""The judge: reads the world and the ledger, and nothing else, and says which promise of `protocol.md` was broken."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, fields, replace

from tests.simulation.case import Case, fold_one, instances_of
from tests.simulation.forgetting import CLOSED
from tests.simulation.lives import Belief, Heard, Told
from tests.simulation.people import EDITED_BY
from tests.simulation.world import BY_HAND, Deed, World

from amends.processors.partition import Partition
from amends.processors.state import NOWHERE, AttemptState, Header, Standing, Step, UndoState, standing
from amends.processors.terms import Terms
from amends.processors.workflow import Workflow
from amends.producers import scope_flow
from amends.schemas.commands import Phase
from amends.schemas.contract import Effect, Idempotency
from amends.schemas.keys import undo_key
from amends.schemas.payload import decode_payload
from amends.tools.errors import WorkflowTurned

JITTER_MS = 20


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that was not kept."""

    promise: int
    words: str

    def __str__(self) -> str:
        return f"promise {self.promise}: {self.words}"


def judge(world: World, cases: Sequence[Case], beliefs: Sequence[dict[str, Belief]], *, keeps_a1: bool) -> list[Broken]:
    """Return what was broken, nothing if all promises are kept. Of each partition its case, and who believes what."""
    broken = [Broken(2, words) for words in (*world.overwritten, *world.asked_otherwise)]
    for deed in world.deeds:
        case = next((case for case in cases if deed.reference in case.steps), None)
        if case is None:
            broken.append(Broken(1, f"deed {deed.number} of {deed.tool} has no intent on the ledger"))
            continue
        broken.extend(_of_deed(case, deed, keeps_a1=keeps_a1))
        broken.extend(_of_order(case, world, deed))
        broken.extend(_of_edit(case, world, deed))
    for case, believed in zip(cases, beliefs, strict=True):
        broken.extend(_of_workflows(case, world, believed))
    return broken


def _of_workflows(case: Case, world: World, beliefs: dict[str, Belief]) -> list[Broken]:
    broken: list[Broken] = []
    for workflow_id, belief in beliefs.items():
        instances = case.instances(workflow_id)
        broken.extend(Broken(2, f"{workflow_id}: {words}") for words in belief.doubled)
        for workflow in instances:
            if workflow.header.started_offset not in case.unknowable:
                broken.extend(_of_end(case, workflow))
            broken.extend(_of_containment(case, workflow))
            broken.extend(_of_savepoints(case, workflow))
            stale = case.stale[workflow.header.started_offset]
            broken.extend(Broken(4, f"{workflow_id}: {words}") for words in stale)
        if len(instances) == 1:
            for heard in belief.stories:
                broken.extend(_of_story(case, world, instances[0], heard))
            broken.extend(_of_belief(case, world, instances[0], belief))
    return broken


def _of_containment(case: Case, workflow: Workflow) -> list[Broken]:
    """What a person asked to be undone, as it stood, is turned as a whole, a success too."""
    header = workflow.header
    is_asked = (header.workflow_id, header.started_offset) in case.contained
    if not is_asked or any(turn.final for turn in header.turns):
        return []
    return [Broken(1, f"{header.workflow_id} was to be undone, and is {header.phase}")]


def of_the_owner(case: Case, owner: Partition, beliefs: dict[str, Belief], *, gone: bool = False) -> list[Broken]:
    """Whatever was killed, restored and fenced off: what is held follows from the ledger, and from nothing else.
    `gone`: that ledger forgets its beginning, so nothing is known of what was closed there, once it is forgotten."""
    broken: list[Broken] = []
    for workflow_id in beliefs:
        told = {workflow.header.started_offset: workflow for workflow in case.instances(workflow_id)}
        slots = owner._slots
        there = {slot.started for slot in slots.of(workflow_id.encode())}
        families = (workflow.header.family for started, workflow in told.items() if started not in there)
        forgotten = {at for family in families if family is not None for at in family.announced}
        for held in [slots.hot(slot) for slot in slots.of(workflow_id.encode()) if slot.parked is None]:
            expected = told.get(held.header.started_offset)
            if expected is None or (gone and held.header.phase is Phase.NONE and expected.header.phase in CLOSED):
                continue
            if expected.header.started_offset in case.unknowable:
                continue
            header, known = _whenever_asked(held.header, forgotten), _whenever_asked(expected.header, forgotten)
            if header != known or held.steps != expected.steps:
                what = _difference(header, known) or "its steps"
                broken.append(Broken(1, f"{workflow_id} is not what the ledger makes of it: {what}"))
    for name, gate in case.fold._admission._tools.items() if not gone else ():
        expected_breaker, breaker = replace(gate.breaker, announced=0), owner._admission.breaker(name)
        if replace(breaker, announced=0) != expected_breaker:
            broken.append(Broken(6, f"the breaker of {name} is {breaker}; the ledger makes it {expected_breaker}"))
    return broken


def of_the_ledger(case: Case, start: int, terms: Terms, beliefs: dict[str, Belief]) -> list[Broken]:
    """What is open follows from what a ledger that has forgotten its beginning still holds."""
    anew = Partition(case.number, terms)
    for record in case.ledger[start:] if start else ():
        anew.recall(record)
    anew.restored(start - 1)
    for record in case.ledger[start:]:
        fold_one(anew, record, case.ledger, start)
    broken: list[Broken] = []
    for workflow_id in beliefs:
        held = {workflow.header.started_offset: workflow for workflow in instances_of(anew, workflow_id)}
        for expected in case.instances(workflow_id):
            if expected.header.phase in CLOSED or expected.header.started_offset in case.unknowable:
                continue
            found = held.get(expected.header.started_offset)
            if found is None:
                broken.append(Broken(1, f"{workflow_id} is open, and the ledger that begins at {start} has lost it"))
            elif (found.header, found.steps) != (expected.header, expected.steps):
                what = _difference(found.header, expected.header) or "its steps"
                broken.append(
                    Broken(1, f"{workflow_id} is not what the ledger that begins at {start} makes of it: {what}")
                )
    return broken


def of_budgets(case: Case, terms: Terms) -> list[Broken]:
    """Where a partition kept its owner, no more undos are under way at once than a tool and a lane may have."""
    tool_max, lane_max = terms.share(terms.tool_undos_max), terms.share(terms.lane_undos_max)
    broken = [
        Broken(6, f"{count} undos of {tool} were under way at once, {tool_max} may be")
        for tool, count in case.most_under_way.items()
        if count > tool_max and tool
    ]
    most = case.most_under_way.get("", 0)
    return broken + [Broken(6, f"{most} undos were under way at once, {lane_max} may be")] * (most > lane_max)


def _whenever_asked(header: Header, forgotten: Set[int]) -> Header:
    """The same, but for where its parent asked last under an announcement that a forgotten instance bears, too: that
    one hears the repeats no more, and who is held hears them in its place. The case forgets nobody."""
    if header.family is None or forgotten.isdisjoint(header.family.announced):
        return header
    asks = (a._replace(offset=NOWHERE, as_of=NOWHERE) if a.announced in forgotten else a for a in header.family.asks)
    return replace(header, family=header.family._replace(asks=tuple(asks)), folded_to=NOWHERE)


def _difference(held: Header, expected: Header) -> str:
    names = [f.name for f in fields(Header) if getattr(held, f.name) != getattr(expected, f.name)]
    return ", ".join(f"{n} {getattr(held, n)!r}, not {getattr(expected, n)!r}" for n in names)


def _of_deed(case: Case, deed: Deed, *, keeps_a1: bool) -> list[Broken]:
    step_id = case.steps[deed.reference]
    workflow = case.workflow_of(step_id)
    step = workflow.find(step_id)
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
    broken.extend(
        Broken(
            6, f"{done.by} undid deed {deed.number} of {deed.tool}, which had been given to a person before it began"
        )
        for done in deed.undone
        if (step_id, done.by) in case.begun_dead
    )
    broken.extend(_of_fence(case, workflow, step, deed))
    if contract is not None and contract.approval_ms is not None and not _is_approved(case, step.step_id, deed):
        broken.append(Broken(8, f"deed {deed.number} of {deed.tool} was made, and nobody had approved it"))
    condemned = case.is_condemned(workflow, step.step_id)
    if count and not condemned:
        words = f"deed {deed.number} of {deed.tool} was undone, and nothing says that it is to be (it is {phase})"
        broken.append(Broken(4, words))
    lost = step.undo is not None and step.undo.state is UndoState.LOSS
    told = lost or (_is_incident(step) and phase is not Phase.COMPENSATED)
    if condemned and deed.is_there and not told and keeps_a1:
        words = f"deed {deed.number} of {deed.tool} is still there, and nobody is told (it is {phase})"
        broken.append(Broken(1, words))
    if lost and phase is Phase.COMPENSATED and not count:
        broken.append(Broken(1, f"deed {deed.number} of {deed.tool} is a loss, and its workflow is COMPENSATED"))
    return broken


def _of_edit(case: Case, world: World, deed: Deed) -> list[Broken]:
    """An undo to which a person gave other arguments was asked for with these, and a ruling of his stands there."""
    step = case.workflow_of(case.steps[deed.reference]).find(case.steps[deed.reference])
    undo = None if step is None else step.undo
    if step is None or undo is None or undo.edited_offset == NOWHERE or undo.state in (UndoState.LOSS, UndoState.DEAD):
        return []
    given = decode_payload(undo.edited_arguments.encode())
    asked = world.asked.get(undo_key(step.step_id, undo.generation), given)
    if asked == given and undo.edited_by == given.get(EDITED_BY):
        return []
    return [Broken(2, f"deed {deed.number} of {deed.tool} was to be undone with {given}, and was with {asked}")]


def _is_approved(case: Case, step_id: str, deed: Deed) -> bool:
    """Whether a person had approved the call, for this epoch and for then, when it was sent, or first sent."""
    if not deed.attempt.startswith("agent"):
        return True  # what a compensator sends again is to be undone
    last = case.began[deed.attempt][0]
    sends = [case.began[name] for name, (of, _) in case.attempted.items() if of == step_id]
    return any(
        at < offset <= last and epoch == for_epoch and at_ms < until_ms
        for offset, epoch, at_ms in sends
        for at, for_epoch, until_ms in case.approved[step_id]
    )


def _of_fence(case: Case, workflow: Workflow, step: Step, deed: Deed) -> list[Broken]:
    """No trigger of its epoch stands before the STARTED of a call that can't be undone."""
    started = case.attempted.get(deed.attempt)
    if step.effect is not Effect.IRREVERSIBLE or started is None:
        return []
    epoch = next((e for e, at in case.starts[step.step_id] if at == started[1]), None)
    if epoch is not None and any(
        ended >= epoch and at < started[1] for ended, at in case.triggers[workflow.header.started_offset]
    ):
        return [Broken(1, f"deed {deed.number} of {deed.tool}, irreversible, was begun after its epoch had ended")]
    return []


def _is_incident(step: Step) -> bool:
    return any(t.closed_at_ms is None for t in step.troubles)


def _of_order(case: Case, world: World, deed: Deed) -> list[Broken]:
    """Nothing is undone before what was built on it, as far as the ledger knew when the undo started."""
    if not deed.undone or deed.reference not in case.steps:
        return []
    step_id = case.steps[deed.reference]
    done = deed.undone[0]
    if done.key == BY_HAND:
        return []
    starts = [offset for offset, owner, _ in case.undo_started[step_id] if owner == done.by]
    if not starts:
        return [Broken(2, f"{done.by} undid deed {deed.number} without a STARTED on the ledger")]
    since = starts[-1]
    workflow = case.workflow_of(step_id)
    given_up = case.given_up_at(workflow.header.started_offset, since)
    broken: list[Broken] = []
    for other in world.deeds:
        later = case.steps.get(other.reference)
        if other is deed or later is None or workflow.find(later) is None or later in given_up:
            continue
        if not case.started[step_id] < case.started[later] < since or other.landed_at_ms > done.at_ms:
            continue
        if not (_is_built_on(other, deed) or step_id in case.told[later]):
            continue
        if not case.was_condemned(workflow.header.started_offset, later, since):
            continue  # its agent went on beside what was given up on; a person had that tried again
        if other.gone_at_ms is None or other.gone_at_ms > done.at_ms:
            words = f"deed {deed.number} ({deed.tool}) was undone while deed {other.number} ({other.tool}) was there"
            broken.append(Broken(3, words))
    return broken


def _is_built_on(later: Deed, base: Deed) -> bool:
    """Whether the world shows that one deed was built on another: it names it, or both are of one account."""
    return base.id in later.names or bool(base.account and base.account == later.account)


def _of_savepoints(case: Case, workflow: Workflow) -> list[Broken]:
    """Nobody goes back to a savepoint that was taken while a call was open or unknown."""
    broken: list[Broken] = []
    header = workflow.header
    for turn in header.turns:
        if turn.offset in (NOWHERE, header.started_offset):
            continue
        for attempt, (step_id, at) in case.attempted.items():
            if workflow.find(step_id) is None:
                continue
            known_at = case.sure[step_id].get(attempt)
            known = known_at is not None and known_at < turn.offset
            if at < turn.offset and not known and not _was_sure(case, header.started_offset, step_id, turn.offset):
                words = f"it went back to the savepoint at {turn.offset}, taken while attempt {attempt} was not known"
                broken.append(Broken(5, words))
    return broken


def _was_sure(case: Case, instance: int, step_id: str, offset: int) -> bool:
    """Whether a step was known to be present, whatever became of another attempt, or was condemned by then: by a turn
    that came after it, or, begun late in an ended epoch, by one before it."""
    known = any(at < offset for at in case.present[step_id])
    return known or case.was_condemned(instance, step_id, offset)


def _of_story(case: Case, world: World, workflow: Workflow, heard: Heard) -> list[Broken]:
    """What an agent is told was undone is not there, unless it is told that, too."""
    turns = workflow.header.turns
    number = next((n for n, turn in enumerate(turns) if turn.epoch == heard.epoch - 1 and not turn.final), None)
    if number is None:
        return []  # a turn of the whole came after it, which condemns all that this one did
    broken: list[Broken] = []
    for deed in world.deeds:
        step_id = case.steps.get(deed.reference)
        if step_id is None or workflow.find(step_id) is None or deed.landed_at_ms > heard.at_ms:
            continue
        before = any(case.condemned_by(turn, step_id) for turn in turns[:number])
        if before or not case.condemned_by(turns[number], step_id) or step_id in heard.left:
            continue
        began_at = case.attempted.get(deed.attempt, (step_id, case.started[step_id]))[1]
        if began_at > heard.as_of and not deed.attempt.startswith(f"{heard.who}/"):
            continue  # another's late call of the ended epoch, of which the ledger said nothing when the story was told
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
            if _has_open_undo(step) and not _is_a_persons_behind(case, workflow, step):
                broken.append(Broken(6, f"{header.workflow_id} is {header.phase}, an undo of {step.tool_name} is open"))
            if standing(step) is Standing.OPEN:
                broken.append(Broken(6, f"{header.workflow_id} is {header.phase}, a call of {step.tool_name} is open"))
            surely = case.is_condemned(workflow, step.step_id) or standing(step) is not Standing.UNKNOWN
            if header.phase is Phase.SUCCEEDED and not surely and not _is_told_behind(case, workflow, step):
                broken.append(Broken(5, f"{header.workflow_id} succeeded, {step.tool_name} is unknown"))
    return broken


def _has_open_undo(step: Step) -> bool:
    """Whether something of an undo is still to come. One that was given up on is over where the call proved absent."""
    if step.undo is None or step.undo.state not in (UndoState.DUE, UndoState.OPEN, UndoState.DEAD):
        return False
    return step.undo.state is not UndoState.DEAD or standing(step) is not Standing.ABSENT or _is_incident(step)


def _is_a_persons_behind(case: Case, workflow: Workflow, step: Step) -> bool:
    """Whether a call, or a child, of an epoch that is over was begun behind the success of its workflow, and a person
    is told that its undo is theirs: what had succeeded stays so."""
    if workflow.header.phase is not Phase.SUCCEEDED or step.undo is None or step.undo.state is not UndoState.DEAD:
        return False
    return step.first_offset > case.succeeded[workflow.header.started_offset] and _is_incident(step)


def _is_told_behind(case: Case, workflow: Workflow, step: Step) -> bool:
    """Whether all that is unknown of a step was begun behind the success of its workflow, and a person is told.

    No fence stops a process that sleeps between its last look and its STARTED, so the protocol's table has an incident
    for "SUCCEEDED, new STARTED". What that success said was known, and is: nothing was rounded. Of a call begun before
    it none of this holds, whatever incident is open.
    """
    succeeded_at = case.succeeded[workflow.header.started_offset]
    unknown = (a for a in step.attempts if a.state is AttemptState.UNKNOWN and not a.absent)
    return _is_incident(step) and all(case.attempted[a.name][1] > succeeded_at for a in unknown)


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
        there = [d for d in world.deeds if d.call == subject and not d.undone]
        there = [d for d in there if not case.is_condemned(workflow, case.steps[d.reference])]
        if told is Told.DONE and not there and not _was_taken_back(case, world, workflow, subject, belief):
            broken.append(Broken(7, f"{subject}: told that it was done, and it is not there"))
        if told in (Told.REFUSED, Told.NOT_CALLED) and there and belief.processes == 1:
            broken.append(Broken(7, f"{subject}: {told.value}, the agent was told, and it is there"))
        # Processes that run one workflow side by side share a key within an epoch; between epochs nothing is atomic.
        makers = {(d.attempt.rpartition("/")[0], case.epoch_of(d.reference)) for d in there}
        apart = len({who for who, _ in makers}) == len({epoch for _, epoch in makers}) == len(there)
        if belief.plans:
            apart = not any(_knew(case, one, other) for one in there for other in there if one is not other)
        if len(there) > 1 and not apart and any(_kind_of(case, d) is not Idempotency.NEITHER for d in there):
            broken.append(Broken(2, f"{subject} was done {len(there)} times"))
    return broken


def _was_taken_back(case: Case, world: World, workflow: Workflow, subject: str, belief: Belief) -> bool:
    """Whether another process of the workflow has had a call undone since: who was told was told the truth."""
    done = (d for d in world.deeds if d.call == subject and d.undone)
    return belief.processes > 1 and any(case.is_condemned(workflow, case.steps[d.reference]) for d in done)


def _knew(case: Case, earlier: Deed, later: Deed) -> bool:
    """Whether who made a planned call must have known of an equal one: it was its own, or known to be done before it
    opened its scope. Between processes that run side by side the guard does what it can. Equal is what asks for the
    same: a call built on an id that the process before had not been given yet is another (decision 0024)."""
    if earlier.names != later.names:
        return False
    makers = [deed.attempt.rpartition("/")[0] for deed in (earlier, later)]
    done = min(case.present[case.steps[earlier.reference]], default=None)
    if done is None or done > case.attempted.get(later.attempt, ("", -1))[1]:
        return False
    return makers[0] == makers[1] or done < case.opened.get(makers[1], -1)


def of_the_living(case: Case, beliefs: dict[str, Belief]) -> list[Broken]:
    """No agent that lived and was heard is failed for its silence, not even after an outage of the ledger."""
    broken: list[Broken] = []
    for workflow_id, belief in beliefs.items():
        instances = case.instances(workflow_id)
        if (
            len(instances) != 1
            or belief.disturbed
            or not belief.ends
            or not instances[0].header.turned_reason.startswith("the agent went silent")  # its own, not its parent's
        ):
            continue
        turned_at_ms = instances[0].header.turned_at_ms
        if all(
            isinstance(end, scope_flow.Turned | WorkflowTurned) and at_ms > turned_at_ms - JITTER_MS
            for at_ms, end in belief.ends
        ):
            broken.append(Broken(4, f"{workflow_id}: a live agent was failed: {instances[0].header.turned_reason}"))
    return broken


def _kind_of(case: Case, deed: Deed) -> Idempotency | None:
    step_id = case.steps[deed.reference]
    workflow = case.workflow_of(step_id)
    step = workflow.find(step_id)
    contract = workflow.contract_of(step) if step is not None else None
    return contract.call.idempotency if contract is not None else None
