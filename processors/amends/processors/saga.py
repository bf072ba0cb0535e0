"""The fold: state after a fact, and nothing else. `fold(workflow, fact, …)` is total and decides everything.

Theory of operation. Every fact about a workflow stands on one ledger partition, in one order; the state is the fold of
them. The fold turns on the trigger itself and counts the epoch; no separate record decides it (`turning`). A turn
condemns steps, whenever their facts land: all of them, or those after a savepoint. From then on each of these is
brought to its end one fact at a time (`condemned`): present or unknown steps become undos that are due, unknown ones
climb the ladder first, what no machine may do is an incident. When nothing is owed any more a turned workflow is closed
(`closing`); one that was turned to a savepoint has been running all the while. A late effect opens either again.

No I/O, clock, chance: `at_ms` is the append time of the fact, given by the broker.
"""

from __future__ import annotations

import dataclasses
from typing import Final, assert_never

from amends.processors import (
    acknowledging,
    approving,
    asking,
    attempts,
    children,
    closing,
    diagnosis,
    editing,
    failing,
    turning,
    undos,
)
from amends.processors.condemned import leave_ladder, put, window_ran_out
from amends.processors.diagnosis import Action, Signal
from amends.processors.ladder import last_end_offset
from amends.processors.policies import kept_policy, policy_trouble
from amends.processors.state import (
    ABSENT,
    ATTEMPT_OPEN,
    BLANK_STEP,
    DEFAULT_WORKFLOW_LEASE_MS,
    NOWHERE,
    RUNNING,
    Family,
    Header,
    Step,
    UndoState,
    in_words,
    open_trouble,
    replace,
    standing,
)
from amends.processors.timers import Silences
from amends.processors.windows import armed_offset
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase
from amends.schemas.decisions import KIND
from amends.schemas.facts import (
    BEHIND,
    FENCE,
    SCOPE,
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
from amends.schemas.family import number_of
from amends.schemas.policy import FailedBy

_STARTED: Final = StepStatus.STARTED
_HEARTBEAT: Final = StepStatus.HEARTBEAT
_FAILED: Final = StepStatus.FAILED
_SUCCEEDED: Final = Phase.SUCCEEDED
_WORKFLOW_STARTED: Final = WorkflowStatus.STARTED
_AGENT: Final = Party.AGENT
_UNBEGUN: Final = Phase.NONE

EFFECT_AFTER_SUCCESS = "effect_after_success"
UNREAD_MAX = 64
"""Records of one workflow that could not be read and are remembered one by one; of those beyond the count is kept."""


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
        if header.troubles:
            _heard_again(workflow, at_ms)
    else:
        workflow.put_header(replace(header, folded_to=offset))
    if isinstance(fact, WorkflowEvent) and fact.status is _WORKFLOW_STARTED:
        _fold_start(workflow, fact, offset, at_ms)
        return
    if isinstance(fact, Resolution) and fact.unread_offset is not None:
        was_read(workflow, fact.unread_offset, at_ms, fact.by)  # of a workflow whose start could not be read, too
        return
    if isinstance(fact, Resolution) and KIND in fact.attributes:
        acknowledging.acknowledge(workflow, fact, at_ms)  # a stray's workflow has no start either
        closing.close(workflow, offset, at_ms)
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
            if is_last_part(fact):
                workflow.put_header(replace(workflow.header, carried_at_ms=at_ms, carried_to=fact.folded_to))
        case _:
            assert_never(fact)
    closing.close(workflow, offset, at_ms)
    if workflow.asked:
        approving.lapse(workflow, at_ms)


def fold_unread(workflow: Workflow, offset: int, at_ms: int, reason: str) -> None:
    """A record of this workflow could not be read: it stays open, an incident, until it is read or ruled on."""
    header = workflow.header
    if offset <= header.folded_to:
        return
    full = len(header.unread) >= UNREAD_MAX
    unread = header.unread if full else (*header.unread, offset)
    beyond = header.unread_beyond + 1 if full else 0
    workflow.put_header(replace(header, folded_to=offset, unread=unread, unread_beyond=beyond))
    workflow.with_trouble("unreadable", f"the record at offset {offset} could not be read: {reason}", offset, at_ms)
    if header.phase in (Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS):
        workflow.put_header(replace(workflow.header, phase=Phase.TURNED))
    asking.answer(workflow)


def was_read(workflow: Workflow, unread_offset: int, at_ms: int, by: str) -> None:
    """An unreadable record was read after all (its redrive was folded), or a person ruled on it."""
    header, beyond = workflow.header, workflow.header.unread_beyond
    unread = tuple(o for o in header.unread if o != unread_offset)
    if unread == header.unread:
        if beyond and unread_offset > unread[-1]:
            beyond -= 1
        elif unread == (NOWHERE,):
            unread = ()
        else:
            return
    elif not unread and beyond:  # one of those beyond, of which nobody knows where it stands, is left
        unread, beyond = (NOWHERE,), beyond - 1
    workflow.put_header(replace(header, unread=unread, unread_beyond=beyond))
    if not unread:
        workflow.without_trouble("unreadable", at_ms, by)
        closing.close(workflow, workflow.header.folded_to, at_ms)


# --- whose fact it is -------------------------------------------------------------------------------------------------


def _belongs(workflow: Workflow, fact: Fact, offset: int, at_ms: int) -> bool:
    header = workflow.header
    if header.phase is not _UNBEGUN and fact.workflow_offset in (header.started_offset, UNKNOWN_OFFSET):
        return True
    if header.phase is _UNBEGUN and header.started_offset != NOWHERE:
        reason = f"it began at offset {header.started_offset}, which the ledger no longer holds: nothing is folded"
        workflow.with_trouble("start_gone", reason, offset, at_ms)
        return False
    if header.phase is _UNBEGUN:
        workflow.with_trouble("stray", f"a {type(fact).__name__} of a workflow whose start nobody knows", offset, at_ms)
        return False
    reason = f"a {type(fact).__name__} of the instance that began at offset {fact.workflow_offset}, which is not held"
    workflow.with_trouble("stray", reason, offset, at_ms)
    return False


def _renews(workflow: Workflow, fact: Fact) -> bool:
    """Any fact of the owner renews its heartbeat. Who is refused the id of a workflow is not its owner; who has not
    heard yet of the epoch it is in (the fold was down, or late) still is."""
    header = workflow.header
    if header.phase is not RUNNING or not isinstance(fact, (StepEvent, WorkflowEvent)):
        return False
    if fact.writer is not _AGENT or fact.workflow_offset not in (UNKNOWN_OFFSET, header.started_offset):
        return False
    if isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.STARTED:
        return fact.attributes.get("on_existing") == "resume"
    if fact.epoch == header.epoch:
        return True
    named = fact.instance if isinstance(fact, WorkflowEvent) else ""
    return fact.epoch < header.epoch and named != "" and in_words(named) == header.instance


# --- facts of the workflow --------------------------------------------------------------------------------------------


def _fold_start(workflow: Workflow, fact: WorkflowEvent, offset: int, at_ms: int) -> None:
    header = workflow.header
    if header.phase is not Phase.NONE:  # a resume, or a refusal to be: the echo answers it
        workflow.put_header(replace(header, asked_offset=offset))
        if header.armed_offset == offset:
            failing.take_over(workflow, in_words(fact.instance), at_ms)
        asking.resumed(workflow, fact)
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
            scope=in_words(fact.attributes.get(SCOPE, "")),
            lease_ms=fact.lease_ms or DEFAULT_WORKFLOW_LEASE_MS,
            deadline_ms=fact.deadline_ms,
            armed_offset=offset,
            armed_at_ms=at_ms,
            asked_offset=offset,
            traceparent=fact.traceparent,
            observe=fact.attributes.get("mode") == "observe",
            policy=kept_policy(fact.policy),
            family=asking.family_of(fact),
        )
    )
    if (unread := policy_trouble(workflow.header)) is not None:
        workflow.with_trouble("policy_unreadable", f"{unread}; the default policy is kept", offset, at_ms)


def _heard_again(workflow: Workflow, at_ms: int) -> None:
    """An agent whose silence is no failure speaks again."""
    if open_trouble(workflow.header.troubles, "agent_silent") is not None:
        workflow.without_trouble("agent_silent", at_ms, "the agent")


def _fold_workflow(workflow: Workflow, fact: WorkflowEvent, offset: int, at_ms: int) -> None:
    if fact.status is WorkflowStatus.HEARTBEAT and fact.lease_ms and workflow.header.armed_offset == offset:
        workflow.put_header(replace(workflow.header, lease_ms=fact.lease_ms))
    if fact.status is WorkflowStatus.SAVEPOINT:
        turning.take_savepoint(workflow, fact.savepoint or "", fact.epoch, offset, number_of(fact, BEHIND))
        return
    if fact.status in (WorkflowStatus.CHILD_STARTED, WorkflowStatus.CHILD_CLOSED):
        told = children.announced if fact.status is WorkflowStatus.CHILD_STARTED else children.answered
        child = told(workflow, fact, offset, at_ms)
        if child is not None:
            put(workflow, child, offset, at_ms)
        return
    if asking.is_request(fact):
        if not asking.is_asked(workflow.header.family, fact):
            parent = in_words(fact.parent_workflow_id or "")
            workflow.with_trouble("stray", f"{parent} asks for its undoing, and is not its parent", offset, at_ms)
            return
        asking.asked(workflow, fact, offset)
    found = diagnosis.signal_of(workflow.header, fact)
    if found is None:
        if _waits_for_its_plan(fact):
            workflow.put_header(replace(workflow.header, fenced_offset=offset))
        return
    signal, reason = found
    match diagnosis.action_for(workflow.header.phase, signal):
        case Action.TURN:
            if fact.status is WorkflowStatus.FAILED:
                failing.fail(workflow, FailedBy.ERROR, reason, offset, at_ms)
            else:
                _turn(workflow, signal, reason, fact.savepoint, offset, at_ms)
        case Action.FINISH:
            workflow.put_header(replace(workflow.header, phase=Phase.FINISHING))
        case Action.INCIDENT:
            workflow.with_trouble("failed_after_success", f"it had succeeded; then {reason}", offset, at_ms)
        case Action.NOTHING:
            pass


def _waits_for_its_plan(fact: WorkflowEvent) -> bool:
    """Whether an agent that asked for undoing back to a savepoint waits until the echo speaks as of there: where its
    epoch had ended already, what it did in between is condemned all the same."""
    asks = fact.status is WorkflowStatus.ROLLBACK_REQUESTED and fact.writer is _AGENT
    return asks and fact.savepoint is not None


def _turn(workflow: Workflow, signal: Signal, reason: str, savepoint: str | None, offset: int, at_ms: int) -> None:
    """Turn the workflow, or what came after its savepoint. Of a savepoint nobody knows: what its own agent asks for is
    a turn of the whole, for it would go on from a place that is not known; what others ask for is an incident."""
    target = None if savepoint is None else turning.target_of(workflow, savepoint)
    if savepoint is None or target is not None:
        turning.turn(workflow, reason, offset, at_ms, target)
        return
    why = in_words(f"{reason}; no savepoint {savepoint!r} is known")
    if signal is Signal.REQUEST:
        workflow.with_trouble("savepoint_unknown", f"{why}: nothing was undone", offset, at_ms)
    else:
        turning.turn(workflow, why, offset, at_ms)


def _fold_timeout(workflow: Workflow, fact: Timeout, offset: int, at_ms: int, silences: Silences) -> None:
    step = workflow.find(fact.step_id) if fact.step_id is not None else None
    match fact.kind:
        case TimeoutKind.HEARTBEAT | TimeoutKind.DEADLINE:
            reason = diagnosis.ran_out(workflow.header, fact, silences, at_ms)
            if reason is None:
                return
            if workflow.header.is_vacant and fact.kind is TimeoutKind.HEARTBEAT:
                workflow.with_trouble("unfinished", reason, offset, at_ms)
                return
            by = FailedBy.SILENCE if fact.kind is TimeoutKind.HEARTBEAT else FailedBy.DEADLINE
            failing.fail(workflow, by, reason, offset, at_ms)
        case TimeoutKind.STEP:
            if step is not None and fact.attempt is not None and _is_step_due(step, fact, at_ms):
                after = attempts.time_out(step, fact.attempt, workflow.contract_of(step), offset, at_ms)
                put(workflow, after, offset, at_ms)
        case TimeoutKind.UNDO:
            if step is not None and _is_undo_due(step, at_ms):
                generation, attempt = fact.generation or 0, fact.undo_attempt or 0
                contract = workflow.contract_of(step)
                after = undos.undo_timed_out(step, generation, attempt, contract, offset, at_ms)
                put(workflow, after, offset, at_ms)
        case TimeoutKind.LADDER:
            if step is not None and fact.armed_offset == last_end_offset(step):
                leave_ladder(workflow, step, offset, at_ms)
        case TimeoutKind.WINDOW:
            if step is not None and step.number in workflow.owing and fact.armed_offset == armed_offset(step):
                window_ran_out(workflow, step, offset, at_ms)


def _is_step_due(step: Step, fact: Timeout, at_ms: int) -> bool:
    return any(
        a.name == fact.attempt
        and a.state is ATTEMPT_OPEN
        and a.armed_offset == fact.armed_offset
        and at_ms >= a.armed_at_ms + a.lease_ms
        for a in step.attempts
    )


def _is_undo_due(step: Step, at_ms: int) -> bool:
    undo = step.undo
    return undo is not None and (undo.state is UndoState.DUE or at_ms >= undo.opened_at_ms + undo.lease_ms)


def born_turned(workflow: Workflow, asked: Header, offset: int, at_ms: int) -> None:
    """A child was begun, or resumed, by a STARTED that its parent had asked to be undone before: `asked`."""
    family = workflow.header.family
    if family is None or asked.family is None or family[:2] != asked.family[:2]:
        return  # the STARTED was refused: the id is somebody else's
    known = {ask.announced for ask in family.asks}  # a repeat of its STARTED adds nothing
    asks = (*family.asks, *(ask for ask in asked.family.asks if ask.announced not in known))
    workflow.put_header(replace(workflow.header, family=family._replace(asks=asks)))
    turning.turn(workflow, asked.turned_reason, offset, at_ms)
    closing.close(workflow, offset, at_ms)


def born_late(workflow: Workflow, fact: WorkflowEvent, family: Family | None, offset: int, at_ms: int) -> None:
    """A child was begun, or resumed, so late after its parent announced it that what the parent asked since may be
    forgotten. What begins or is resumed so is turned. Nor does that announcement name it: `family`, whose child it was
    before, stays; the parent's requests mean one that began in time."""
    names_nobody(workflow, family)
    header = workflow.header
    if header.armed_offset != offset:
        return  # the STARTED was refused, or what it meant is closed
    if header.started_offset != offset and not asking.is_of(family, fact):
        return
    why = f"begun too late after {fact.parent_workflow_id} announced it: begin it again there, under another id"
    turning.turn(workflow, in_words(why), offset, at_ms)
    closing.close(workflow, offset, at_ms)


def names_nobody(workflow: Workflow, family: Family | None) -> None:
    """The announcement that the last STARTED names does not name this child: it is of the `family` it was of before."""
    if workflow.header.family != family:
        workflow.put_header(replace(workflow.header, family=family))


# --- facts of a step and its undo -------------------------------------------------------------------------------------


def _fold_step(workflow: Workflow, fact: StepEvent, contract: str, offset: int, at_ms: int) -> None:
    step = workflow.find(fact.step_id)
    if step is None:
        if fact.status is _HEARTBEAT:
            return
        step = replace(
            BLANK_STEP,
            number=len(workflow.steps),
            step_id=fact.step_id,
            tool_name=in_words(fact.tool_name),
            epoch=fact.epoch,
            first_offset=offset,
            first_at_ms=at_ms,
            contract=contract,
        )
    elif contract and not step.contract:
        step = replace(step, contract=contract)
    after = attempts.fold_step_event(step, fact, workflow.contract_of(step), offset, at_ms)
    started = fact.status is _STARTED
    if workflow.header.phase is _SUCCEEDED and not workflow.is_condemned(after):
        after = _after_success(step, after, offset, at_ms)
    if fact.status is not _HEARTBEAT:
        after = approving.after_step_event(workflow, after, fact, offset, at_ms)
    if started and FENCE in fact.attributes:
        workflow.put_header(replace(workflow.header, fenced_offset=offset))
    failed = fact.status is _FAILED and failing.has_failed_anew(step, after, fact.attempt)
    put(workflow, after, offset, at_ms)
    if failed:
        failing.count_failed_call(workflow, after, fact.epoch, offset, at_ms)


def _after_success(before: Step, after: Step, offset: int, at_ms: int) -> Step:
    """Return the step after a fact of a workflow that has succeeded: another send is an incident until it is known to
    have done nothing. Nobody waits for its end, and it climbs no ladder."""
    attempt = after.attempts[-1] if len(after.attempts) > len(before.attempts) else None
    if attempt is not None and not attempt.repeats and standing(after) is not ABSENT:
        reason = f"{after.tool_name} was started after the workflow had succeeded"
        return attempts.with_trouble(after, EFFECT_AFTER_SUCCESS, reason, offset, at_ms)
    return _unless_absent(after, at_ms)


def _unless_absent(step: Step, at_ms: int) -> Step:
    """Return the step without the incident of a call behind the success that turned out not to have been made."""
    if not step.troubles or standing(step) is not ABSENT:
        return step
    return attempts.without_trouble(step, EFFECT_AFTER_SUCCESS, at_ms, "it did not happen")


def _fold_undo(workflow: Workflow, fact: UndoEvent, offset: int, at_ms: int) -> None:
    step = workflow.find(fact.step_id)
    if step is None:
        workflow.with_trouble("stray", f"an undo of step {fact.step_id}, of which nothing is known", offset, at_ms)
        return
    put(workflow, undos.fold_undo_event(step, fact, workflow.contract_of(step), offset, at_ms), offset, at_ms)


def _fold_resolution(workflow: Workflow, fact: Resolution, offset: int, at_ms: int) -> None:
    if fact.decision is Decision.REPLAY_PLAN:
        for dead in [s for s in workflow.steps if s.undo is not None and s.undo.state is UndoState.DEAD]:
            retry = dataclasses.replace(fact, decision=Decision.RETRY, version=None)
            ruled = undos.fold_ruling(dead, retry, workflow.contract_of(dead), offset, at_ms)
            put(workflow, ruled, offset, at_ms)
        return
    step = workflow.find(fact.step_id) if fact.step_id is not None else None
    if step is None:
        return
    if fact.decision in (Decision.PRESENT, Decision.ABSENT, Decision.UNKNOWN, Decision.MARK_ABSENT):
        after = _unless_absent(attempts.fold_evidence(step, fact, offset, at_ms), at_ms)
    elif fact.decision in (Decision.APPROVE, Decision.REJECT):
        after = approving.after_ruling(workflow, step, fact, at_ms)
    elif fact.decision is Decision.EDIT_ARGS:
        after = editing.fold_edit(step, fact, workflow.contract_of(step), offset, at_ms)
    else:
        after = undos.fold_ruling(step, fact, workflow.contract_of(step), offset, at_ms)
    put(workflow, after, offset, at_ms)


def is_last_part(carry: Carry) -> bool:
    """A state that does not fit into a record comes in parts."""
    return carry.attributes.get("part", "0") == str(int(carry.attributes.get("parts", "1")) - 1)
