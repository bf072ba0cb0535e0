"""What becomes of one condemned step: brought on as far as each fact allows, in any phase of its workflow.

A present one gets an undo that is due, or an incident where no machine may undo it; an unknown one climbs the ladder.
A step that nobody condemned is left alone, save that a claim of success asks what became of it.
"""

from __future__ import annotations

from amends.processors import attempts, children, elsewhere, undos, windows
from amends.processors.ladder import Rung, climb
from amends.processors.state import (
    ABSENT,
    CLOSED_UNDO,
    NOWHERE,
    PRESENT,
    UNDO_DEAD,
    UNDO_DUE,
    Standing,
    Step,
    Undo,
    UndoState,
    arguments_of,
    has_open_attempt,
    owed,
    replace,
    settles_at_ms,
    standing,
)
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase
from amends.schemas.contract import DECLARED, Contract, Effect

REVIVABLE = frozenset({"unknown", "arguments_missing", "unclassified", "no_undo"})
"""Given up on for want of something that may still come: certainty, an output, or the STARTED with the contract."""


def put(workflow: Workflow, step: Step, offset: int, at_ms: int) -> None:
    """Replace a step, and bring it on if it is condemned, and with it those that wait for it."""
    number = step.number
    before = workflow.steps[number].undo if number < len(workflow.steps) else None
    workflow.put(step)
    if number not in workflow.condemned or workflow.header.observe:
        return
    if not workflow.coverage.is_used:
        bring_on(workflow, number, offset, at_ms)
        return
    elsewhere.close_undone_by_agent(workflow, workflow.steps[number], offset, at_ms)
    bring_on(workflow, number, offset, at_ms)
    _tell_covered(workflow, number, before, offset, at_ms)
    elsewhere.close_if_agent_undid(workflow, workflow.steps[number], offset, at_ms)


def bring_all_on(workflow: Workflow, offset: int, at_ms: int) -> None:
    """Bring on every condemned step."""
    if workflow.header.observe:
        return
    if not workflow.coverage.is_used:
        for number in sorted(workflow.condemned):
            bring_on(workflow, number, offset, at_ms)
        return
    for number in sorted(workflow.condemned):
        before = workflow.steps[number].undo
        elsewhere.close_undone_by_agent(workflow, workflow.steps[number], offset, at_ms)
        bring_on(workflow, number, offset, at_ms)
        _tell_covered(workflow, number, before, offset, at_ms)


def _tell_covered(workflow: Workflow, number: int, before: Undo | None, offset: int, at_ms: int) -> None:
    """Where the undo of a step covers others and has changed: they wait for it, are closed with it, or go on alone."""
    step = workflow.steps[number]
    contract = workflow.contract_of(step)
    if contract is None or contract.undo is None or not contract.undo.covers:
        return
    if (before and before.state) is (step.undo and step.undo.state):
        return
    elsewhere.close_covered(workflow, step, at_ms)
    for other in [workflow.steps[n] for n in sorted(workflow.owing) if n != number]:
        if other.tool_name in contract.undo.covers:
            workflow.index(other)
            bring_on(workflow, other.number, offset, at_ms)


def bring_on(workflow: Workflow, number: int, offset: int, at_ms: int) -> None:
    """Take one condemned step as far as what is known of it allows."""
    if number not in workflow.condemned or workflow.header.observe:
        return
    step = workflow.steps[number]
    undo, what = step.undo, owed(step, workflow.contract_of(step))
    if step.child is not None:
        workflow.put(children.brought_on(step, what, at_ms))
        return
    if what is ABSENT:
        if step.troubles or (undo is not None and undo.state in (UNDO_DUE, UNDO_DEAD)):
            workflow.put(_without_warning(_given_up_in_vain(_granted_in_vain(step), at_ms), at_ms))
        return
    if undo is not None and undo.state is UNDO_DEAD and _is_given_up_unseen(step):
        reason = f"{step.tool_name} came to light after its undo had been given up on and it was said to be absent"
        step = undos.with_undo_dead(step, "undo_failed", reason, offset, at_ms)
        workflow.put(step)
    if what is PRESENT and not _is_blocked(step):
        step = _with_undo(workflow, step, offset, at_ms)
    if step.undo is not None and step.undo.state is UNDO_DEAD:
        step = _without_warning(step, at_ms)
    workflow.put(step)


def _without_warning(step: Step, at_ms: int) -> Step:
    """What a person was warned of is decided: by the undo, or by the incident that is open now."""
    return attempts.without_trouble(step, windows.CLOSING, at_ms, "it is decided")


def window_ran_out(workflow: Workflow, step: Step, offset: int, at_ms: int) -> None:
    """The window of a step is nearly over, or over, and its undo still waits."""
    contract, undo = workflow.contract_of(step), step.undo
    closes_ms, warned_ms = windows.closes_at_ms(step, contract), windows.warned_at_ms(step, contract)
    if closes_ms is None or warned_ms is None or at_ms < warned_ms:
        return
    if undo is not None and undo.state is UndoState.DUE and at_ms >= closes_ms:
        _, reason = _window_closed(step, contract)
        put(workflow, undos.with_undo_dead(step, windows.CLOSED, reason, offset, at_ms), offset, at_ms)
    elif undo is None or undo.state is not UndoState.OPEN:
        left_s = max(0, closes_ms - at_ms) / 1000
        reason = f"{step.tool_name} can be undone for {left_s:g} s more, and its undo still waits"
        put(workflow, attempts.with_trouble(step, windows.CLOSING, reason, offset, at_ms), offset, at_ms)


def _window_closed(step: Step, contract: Contract | None) -> tuple[str, str]:
    window_ms = contract.undo.window_ms if contract is not None and contract.undo is not None else None
    limit = f"{(window_ms or 0) / 1000:g} s"
    return windows.CLOSED, f"{step.tool_name} could be undone within {limit} of its call, and they are over"


def _is_blocked(step: Step) -> bool:
    """No undo while an attempt of the step is open: its end decides whether there is something (new) to undo."""
    return has_open_attempt(step)


def _is_given_up_unseen(step: Step) -> bool:
    """Whether the incident of what was given up on, and is owed, was closed because nothing was there."""
    return all(t.closed_at_ms is not None or t.kind == "contradiction" for t in step.troubles)


def _granted_in_vain(step: Step) -> Step:
    """What an undo was granted for turned out not to be there: no attempt follows, and one begun late has no effect."""
    undo = step.undo
    if undo is None or undo.state is not UNDO_DUE:
        return step
    return replace(step, undo=replace(undo, state=UndoState.NOTHING, evidence="proven absent", owner=""))


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
    if undo is not None and undo.state not in CLOSED_UNDO and undo.state is not UNDO_DEAD:
        return step
    if undo is not None and undo.state is UNDO_DEAD:
        return _revived(workflow, step, offset, at_ms)
    due = undos.with_undo_due(step, at_ms)
    obstacle = _obstacle(workflow, step, at_ms)
    if obstacle is None:
        return due
    if elsewhere.is_covered_by_another(workflow, step):
        return step
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
    if windows.is_closed(step, contract, at_ms):
        return _window_closed(step, contract)
    if arguments_of(step) is None:
        rung = climb(step, Standing.PRESENT, contract, condemned=True, now_ms=at_ms).rung
        if rung is Rung.RESEND:
            return "resend", ""
        why = "needs an output that was never seen: its arguments can't be resolved"
        if step.outcome_offset != NOWHERE:
            why = "can't be run: its arguments could not be resolved from the output (missing there, null or too large)"
        return "arguments_missing", f"the undo of {step.tool_name} {why}"
    return None


def leave_ladder(workflow: Workflow, step: Step, offset: int, at_ms: int) -> None:
    """The step has settled and stands on the last rungs: undo as it is, or an incident."""
    contract = None if workflow.header.observe else workflow.contract_of(step)  # who only looks on asks nobody
    condemned = step.number in workflow.condemned and not workflow.header.observe
    what = owed(step, contract) if condemned else standing(step)
    if what is Standing.PRESENT:  # a re-send that could have brought the missing output is no longer possible
        bring_on(workflow, step.number, offset, at_ms)
    if what is not Standing.UNKNOWN or has_open_attempt(step) or at_ms < settles_at_ms(step, contract):
        return
    if step.undo is not None and step.undo.state not in CLOSED_UNDO:
        return
    rung = climb(step, what, contract, condemned=condemned, now_ms=at_ms).rung
    reason = f"nobody can say whether {step.tool_name} happened: no answer from probe or re-send is left to wait for"
    if rung is Rung.UNDO:
        put(workflow, undos.with_undo_due(step, at_ms), offset, at_ms)
    elif rung is Rung.INCIDENT and condemned:
        due = undos.with_undo_due(step, at_ms)
        put(workflow, undos.with_undo_dead(due, "unknown", reason, offset, at_ms), offset, at_ms)
    elif rung is Rung.INCIDENT and workflow.header.phase is Phase.FINISHING:
        put(workflow, attempts.with_trouble(step, "unknown", reason, offset, at_ms), offset, at_ms)
