"""The fold: state after a fact, and nothing else. `fold(workflow, fact, …)` is total and decides everything.

Theory of operation. Every fact about a workflow stands on one ledger partition, in one order; the state is the fold of
them. The fold turns on the trigger itself and counts the epoch; no separate record decides it. Turning condemns every
step, whenever its facts land. From then on each step is brought to its end one fact at a time: present or unknown steps
become undos that are due, unknown ones climb the ladder first, what no machine may do is an incident, and when nothing
is owed any more the workflow is closed. A late effect opens it again.

No I/O, clock, chance: `at_ms` is the append time of the fact, given by the broker.
"""

from __future__ import annotations

import dataclasses
from typing import assert_never

from amends.processors import attempts, diagnosis, undos
from amends.processors.diagnosis import Action
from amends.processors.ladder import Rung, climb, last_end_offset
from amends.processors.state import (
    CLOSED_UNDO,
    DEFAULT_WORKFLOW_LEASE_MS,
    NOWHERE,
    AttemptState,
    Standing,
    Step,
    UndoState,
    has_open_attempt,
    in_words,
    owed,
    replace,
    settles_at_ms,
    standing,
)
from amends.processors.timers import Silences
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase
from amends.schemas.contract import DECLARED, Effect
from amends.schemas.facts import (
    UNKNOWN_OFFSET,
    Carry,
    Decision,
    Fact,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    Timeout,
    TimeoutKind,
    UndoEvent,
    WorkflowEvent,
    WorkflowStatus,
)

REVIVABLE = frozenset({"unknown", "arguments_missing", "unclassified", "no_undo"})
"""Given up on for want of something that may still come: certainty, an output, or the STARTED with the contract."""


def fold(workflow: Workflow, fact: Fact, contract: str, offset: int, at_ms: int, silences: Silences) -> None:
    """Bring `workflow` to the state after `fact`, which stands at `offset` and was appended at `at_ms`.

    Args:
        contract: digest of the contract that the fact carried, "" if none.
        silences: the partition's, `at_ms` recorded already.
    """
    header = workflow.header
    if offset <= header.folded_to:
        return
    if _renews(workflow, fact):
        workflow.put_header(replace(header, folded_to=offset, armed_offset=offset, armed_at_ms=at_ms))
    else:
        workflow.put_header(replace(header, folded_to=offset))
    if isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.STARTED:
        _fold_start(workflow, fact, offset, at_ms)
        return
    if isinstance(fact, Resolution) and fact.unread_offset is not None:
        was_read(workflow, fact.unread_offset, at_ms, fact.by)  # of a workflow whose start could not be read, too
        return
    if not _belongs(workflow, fact, offset, at_ms):
        return
    match fact:
        case StepEvent():
            _fold_step(workflow, fact, contract, offset, at_ms)
        case WorkflowEvent():
            _fold_workflow(workflow, fact, offset, at_ms)
        case UndoEvent():
            _fold_undo(workflow, fact, offset, at_ms)
        case Resolution():
            _fold_resolution(workflow, fact, offset, at_ms)
        case Timeout():
            _fold_timeout(workflow, fact, offset, at_ms, silences)
        case Carry():
            pass
        case _:
            assert_never(fact)
    _close(workflow, offset, at_ms)


def fold_unread(workflow: Workflow, offset: int, at_ms: int, reason: str) -> None:
    """A record of this workflow could not be read: it stays open, an incident, until it is read or ruled on."""
    header = workflow.header
    if offset <= header.folded_to:
        return
    workflow.put_header(replace(header, folded_to=offset, unread=(*header.unread, offset)))
    workflow.with_trouble("unreadable", f"the record at offset {offset} could not be read: {reason}", offset, at_ms)
    if header.phase in (Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS):
        workflow.put_header(replace(workflow.header, phase=Phase.TURNED))


def was_read(workflow: Workflow, unread_offset: int, at_ms: int, by: str) -> None:
    """An unreadable record was read after all (its redrive was folded), or a person ruled on it."""
    unread = tuple(o for o in workflow.header.unread if o != unread_offset)
    if unread == workflow.header.unread:
        return
    workflow.put_header(replace(workflow.header, unread=unread))
    if not unread:
        workflow.without_trouble("unreadable", at_ms, by)
        _close(workflow, workflow.header.folded_to, at_ms)


# --- whose fact it is -------------------------------------------------------------------------------------------------


def _belongs(workflow: Workflow, fact: Fact, offset: int, at_ms: int) -> bool:
    header = workflow.header
    if header.phase is Phase.NONE:
        workflow.with_trouble("stray", f"a {type(fact).__name__} of a workflow whose start nobody knows", offset, at_ms)
        return False
    if fact.workflow_offset not in (UNKNOWN_OFFSET, header.started_offset):
        workflow.with_trouble(
            "stray",
            f"a {type(fact).__name__} of the instance that began at offset {fact.workflow_offset}, which is not held",
            offset,
            at_ms,
        )
        return False
    return True


def _renews(workflow: Workflow, fact: Fact) -> bool:
    """Any fact of the owner renews its heartbeat. Who is refused the id of a workflow is not its owner."""
    header = workflow.header
    if header.phase is not Phase.RUNNING or not isinstance(fact, StepEvent | WorkflowEvent):
        return False
    if fact.writer is not Party.AGENT or fact.workflow_offset not in (UNKNOWN_OFFSET, header.started_offset):
        return False
    if isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.STARTED:
        return fact.attributes.get("on_existing") == "resume"
    return fact.epoch == header.epoch


# --- facts of the workflow --------------------------------------------------------------------------------------------


def _fold_start(workflow: Workflow, fact: WorkflowEvent, offset: int, at_ms: int) -> None:
    header = workflow.header
    if header.phase is not Phase.NONE:  # a resume, or a refusal to be: the echo answers it
        workflow.put_header(replace(header, asked_offset=offset))
        return
    workflow.put_header(
        replace(
            header,
            folded_to=offset,
            started_offset=offset,
            started_at_ms=at_ms,
            phase=Phase.RUNNING,
            agent_id=in_words(fact.agent_id),
            instance=in_words(fact.instance),
            lease_ms=fact.lease_ms or DEFAULT_WORKFLOW_LEASE_MS,
            deadline_ms=fact.deadline_ms,
            armed_offset=offset,
            armed_at_ms=at_ms,
            asked_offset=offset,
            traceparent=fact.traceparent,
            observe=fact.attributes.get("mode") == "observe",
        )
    )


def _fold_workflow(workflow: Workflow, fact: WorkflowEvent, offset: int, at_ms: int) -> None:
    if fact.status is WorkflowStatus.HEARTBEAT and fact.lease_ms and workflow.header.armed_offset == offset:
        workflow.put_header(replace(workflow.header, lease_ms=fact.lease_ms))
    found = diagnosis.signal_of(workflow.header, fact)
    if found is None:
        return
    signal, reason = found
    match diagnosis.action_for(workflow.header.phase, signal):
        case Action.TURN:
            _turn(workflow, reason, offset, at_ms)
        case Action.FINISH:
            workflow.put_header(replace(workflow.header, phase=Phase.FINISHING))
        case Action.INCIDENT:
            workflow.with_trouble("failed_after_success", f"it had succeeded; then {reason}", offset, at_ms)
        case Action.NOTHING:
            pass


def _turn(workflow: Workflow, reason: str, offset: int, at_ms: int) -> None:
    """Stop going forward and condemn every step."""
    header = workflow.header
    workflow.put_header(
        replace(header, phase=Phase.TURNED, epoch=header.epoch + 1, turned_at_ms=at_ms, turned_reason=reason)
    )
    workflow.reindex()
    for number in range(len(workflow.steps)):
        _bring_on(workflow, number, offset, at_ms)


def _fold_timeout(workflow: Workflow, fact: Timeout, offset: int, at_ms: int, silences: Silences) -> None:
    step = workflow.find(fact.step_id) if fact.step_id is not None else None
    match fact.kind:
        case TimeoutKind.HEARTBEAT | TimeoutKind.DEADLINE:
            reason = diagnosis.ran_out(workflow.header, fact, silences, at_ms)
            if reason is not None:
                _turn(workflow, reason, offset, at_ms)
        case TimeoutKind.STEP:
            if step is not None and fact.attempt is not None and _is_step_due(step, fact, at_ms):
                _put(workflow, attempts.time_out(step, fact.attempt, offset, at_ms), offset, at_ms)
        case TimeoutKind.UNDO:
            if step is not None and _is_undo_due(step, at_ms):
                generation, attempt = fact.generation or 0, fact.undo_attempt or 0
                contract = workflow.contract_of(step)
                after = undos.undo_timed_out(step, generation, attempt, contract, offset, at_ms)
                _put(workflow, after, offset, at_ms)
        case TimeoutKind.LADDER:
            if step is not None and fact.armed_offset == last_end_offset(step):
                _leave_ladder(workflow, step, offset, at_ms)


def _is_step_due(step: Step, fact: Timeout, at_ms: int) -> bool:
    return any(
        a.name == fact.attempt
        and a.state is AttemptState.OPEN
        and a.armed_offset == fact.armed_offset
        and at_ms >= a.armed_at_ms + a.lease_ms
        for a in step.attempts
    )


def _is_undo_due(step: Step, at_ms: int) -> bool:
    undo = step.undo
    return undo is not None and (undo.state is UndoState.DUE or at_ms >= undo.opened_at_ms + undo.lease_ms)


# --- facts of a step and its undo -------------------------------------------------------------------------------------


def _fold_step(workflow: Workflow, fact: StepEvent, contract: str, offset: int, at_ms: int) -> None:
    step = workflow.find(fact.step_id)
    if step is None:
        if fact.status is StepStatus.HEARTBEAT:
            return
        step = Step(len(workflow.steps), fact.step_id, in_words(fact.tool_name), fact.epoch, offset, at_ms)
    if contract and not step.contract:
        step = replace(step, contract=contract)
    before_known = step.number < len(workflow.steps)
    after = attempts.fold_step_event(step, fact, workflow.contract_of(step), offset, at_ms)
    if workflow.header.phase is Phase.SUCCEEDED and fact.status is StepStatus.STARTED and not before_known:
        reason = f"{step.tool_name} was started after the workflow had succeeded"
        after = attempts.with_trouble(after, "effect_after_success", reason, offset, at_ms)
    _put(workflow, after, offset, at_ms)


def _fold_undo(workflow: Workflow, fact: UndoEvent, offset: int, at_ms: int) -> None:
    step = workflow.find(fact.step_id)
    if step is None:
        workflow.with_trouble("stray", f"an undo of step {fact.step_id}, of which nothing is known", offset, at_ms)
        return
    _put(workflow, undos.fold_undo_event(step, fact, workflow.contract_of(step), offset, at_ms), offset, at_ms)


def _fold_resolution(workflow: Workflow, fact: Resolution, offset: int, at_ms: int) -> None:
    if fact.decision is Decision.REPLAY_PLAN:
        for dead in [s for s in workflow.steps if s.undo is not None and s.undo.state is UndoState.DEAD]:
            retry = dataclasses.replace(fact, decision=Decision.RETRY, version=None)
            ruled = undos.fold_ruling(dead, retry, workflow.contract_of(dead), offset, at_ms)
            _put(workflow, ruled, offset, at_ms)
        return
    step = workflow.find(fact.step_id) if fact.step_id is not None else None
    if step is None:
        return
    if fact.decision in (Decision.PRESENT, Decision.ABSENT, Decision.UNKNOWN, Decision.MARK_ABSENT):
        after = attempts.fold_evidence(step, fact, offset, at_ms)
    else:
        after = undos.fold_ruling(step, fact, workflow.contract_of(step), offset, at_ms)
    _put(workflow, after, offset, at_ms)


def _put(workflow: Workflow, step: Step, offset: int, at_ms: int) -> None:
    workflow.put(step)
    _bring_on(workflow, step.number, offset, at_ms)


def _bring_on(workflow: Workflow, number: int, offset: int, at_ms: int) -> None:
    """Take one step of a turned workflow as far as what is known of it allows."""
    if not workflow.is_turned or workflow.header.observe:
        return
    step = workflow.steps[number]
    what = owed(step, workflow.contract_of(step))
    if what is Standing.ABSENT:
        workflow.put(_given_up_in_vain(step, at_ms))
        return
    if _is_given_up_unseen(step):
        reason = f"{step.tool_name} came to light after its undo had been given up on and it was said to be absent"
        step = undos.with_undo_dead(step, "undo_failed", reason, offset, at_ms)
        workflow.put(step)
    if what is Standing.PRESENT and not _is_blocked(step):
        workflow.put(_with_undo(workflow, step, offset, at_ms))


def _is_blocked(step: Step) -> bool:
    """No undo while an attempt of the step is open: its end decides whether there is something (new) to undo."""
    return has_open_attempt(step)


def _is_given_up_unseen(step: Step) -> bool:
    """Whether something is owed again that was given up on, and the incident was closed because nothing was there."""
    dead = step.undo is not None and step.undo.state is UndoState.DEAD
    return dead and all(t.closed_at_ms is not None or t.kind == "contradiction" for t in step.troubles)


def _given_up_in_vain(step: Step, at_ms: int) -> Step:
    """What was given up on turned out not to be there: the incident is over."""
    undo = step.undo
    if undo is None or undo.state is not UndoState.DEAD:
        return step
    for trouble in step.troubles:
        step = attempts.without_trouble(step, trouble.kind, at_ms, "proven absent")
    if undo.started:
        return step
    if undo.generation == 0:
        return replace(step, undo=None)
    return replace(step, undo=replace(undo, state=UndoState.NOTHING, evidence="proven absent"))


def _with_undo(workflow: Workflow, step: Step, offset: int, at_ms: int) -> Step:
    """Make the undo of a present step due, or an incident where no machine may do it."""
    undo = step.undo
    if undo is not None and undo.state not in CLOSED_UNDO and undo.state is not UndoState.DEAD:
        return step
    if undo is not None and undo.state is UndoState.DEAD:
        return _revived(workflow, step, offset, at_ms)
    due = undos.with_undo_due(step, at_ms)
    obstacle = _obstacle(workflow, step, at_ms)
    if obstacle is None:
        return due
    kind, reason = obstacle
    if kind == "resend":
        return step
    return undos.with_undo_dead(due, kind, reason, offset, at_ms)


def _revived(workflow: Workflow, step: Step, offset: int, at_ms: int) -> Step:
    """A step given up on while unknown, or for want of arguments, is present now, with arguments: its undo is due."""
    undo = step.undo
    assert undo is not None
    if undo.started or all(t.kind not in REVIVABLE or t.closed_at_ms for t in step.troubles):
        return step
    if _obstacle(workflow, step, at_ms) is not None:
        return step
    for trouble in step.troubles:
        step = attempts.without_trouble(step, trouble.kind, at_ms, "it came to light")
    return replace(step, undo=replace(undo, state=UndoState.DUE, not_before_ms=at_ms, version=undo.version + 1))


def _obstacle(workflow: Workflow, step: Step, at_ms: int) -> tuple[str, str] | None:
    """Why no machine may or can undo this step: (kind of incident, reason). None if it can be undone.

    The kind "resend" is no incident: sending the call again under its key may still bring the missing output.
    """
    contract = workflow.contract_of(step)
    if step.effect is Effect.IRREVERSIBLE:
        return "irreversible", f"{step.tool_name} is irreversible (class I): only a person can decide"
    if contract is not None and contract.undo is None and DECLARED in contract.attributes:
        declared = contract.attributes[DECLARED]
        return "unclassified", f"{step.tool_name} is declared {declared} and has no undo declared"
    if contract is None or step.effect is Effect.UNCLASSIFIED:
        return "unclassified", f"{step.tool_name} has no declared class: nobody said how it is undone"
    if contract.undo is None:
        return "no_undo", f"{step.tool_name} has no undo declared"
    if step.undo_arguments is None:
        rung = climb(step, Standing.PRESENT, contract, condemned=True, now_ms=at_ms).rung
        if rung is Rung.RESEND:
            return "resend", ""
        why = "needs an output that was never seen: its arguments can't be resolved"
        if step.outcome_offset != NOWHERE:
            why = "can't be run: its arguments could not be resolved from the output (missing there, null or too large)"
        return "arguments_missing", f"the undo of {step.tool_name} {why}"
    return None


def _leave_ladder(workflow: Workflow, step: Step, offset: int, at_ms: int) -> None:
    """The step has settled and stands on the last rungs: undo as it is, or an incident."""
    contract = None if workflow.header.observe else workflow.contract_of(step)  # who only looks on asks nobody
    what = owed(step, contract) if workflow.is_turned else standing(step)
    if what is Standing.PRESENT:  # a re-send that could have brought the missing output is no longer possible
        _bring_on(workflow, step.number, offset, at_ms)
    if what is not Standing.UNKNOWN or has_open_attempt(step) or at_ms < settles_at_ms(step, contract):
        return
    if step.undo is not None and step.undo.state not in CLOSED_UNDO:
        return
    rung = climb(step, what, contract, condemned=workflow.is_turned, now_ms=at_ms).rung
    reason = f"nobody can say whether {step.tool_name} happened: no answer from probe or re-send is left to wait for"
    if rung is Rung.UNDO:
        _put(workflow, undos.with_undo_due(step, at_ms), offset, at_ms)
    elif rung is Rung.INCIDENT and workflow.is_turned:
        due = undos.with_undo_due(step, at_ms)
        _put(workflow, undos.with_undo_dead(due, "unknown", reason, offset, at_ms), offset, at_ms)
    elif rung is Rung.INCIDENT and workflow.header.phase is Phase.FINISHING:
        _put(workflow, attempts.with_trouble(step, "unknown", reason, offset, at_ms), offset, at_ms)


# --- closing ----------------------------------------------------------------------------------------------------------


def _close(workflow: Workflow, offset: int, at_ms: int) -> None:
    """Close what has nothing open, and open again what has."""
    header = workflow.header
    if header.phase is Phase.FINISHING:
        _finish(workflow, offset, at_ms)
    if not workflow.is_turned:
        return
    phase = _closing_phase(workflow)
    if phase is not workflow.header.phase:
        closed_at_ms = 0 if phase is Phase.TURNED else at_ms
        workflow.put_header(replace(workflow.header, phase=phase, closed_at_ms=closed_at_ms))


def _closing_phase(workflow: Workflow) -> Phase:
    """COMPENSATED only if every candidate is undone or proven absent; where only looked on, what is owed is a loss."""
    header = workflow.header
    if header.unread or (workflow.live if header.observe else workflow.owing or workflow.undoing):
        return Phase.TURNED
    lost = workflow.owing or any(s.undo is not None and s.undo.state is UndoState.LOSS for s in workflow.steps)
    return Phase.CLOSED_WITH_LOSS if lost else Phase.COMPENSATED


def _finish(workflow: Workflow, offset: int, at_ms: int) -> None:
    """A claim of success is judged when nothing is open or unknown."""
    header = workflow.header
    if workflow.unsure or header.unread:
        return
    denied = next((s for s in workflow.steps if _is_denied(s, workflow)), None)
    if denied is not None:
        _turn(workflow, f"a false claim of success: {denied.tool_name} is proven not to have happened", offset, at_ms)
        return
    for step in workflow.steps:
        workflow.put(attempts.without_trouble(step, "unknown", at_ms, "it came to light"))
    workflow.put_header(replace(workflow.header, phase=Phase.SUCCEEDED, closed_at_ms=at_ms))


def _is_denied(step: Step, workflow: Workflow) -> bool:
    """Evidence says that a call the agent could not be sure of did not happen, and the tool was not called again.

    A FAILED step is no objection: the agent was told and went another way.
    """
    if standing(step) is not Standing.ABSENT or not any(a.absent for a in step.attempts):
        return False
    return not any(
        other.tool_name == step.tool_name
        and other.first_offset > step.first_offset
        and standing(other) is Standing.PRESENT
        for other in workflow.steps
    )
