"""What the failure of a workflow leads to, by its policy: a turn, an incident, or, past its pivot, another agent.

The pivot is the first irreversible call that was made, or may have been. With `past_pivot="finish"` a failure past it
undoes nothing: the epoch ends, so that the agent that failed makes no more calls (what it still had under way is undone
when it lands), and the workflow is vacant until an agent resumes it. Its attempts and its time are bounded; then a
person is asked. Whoever asks for undoing, a person or the agent itself, is obeyed past the pivot as before it.
"""

from __future__ import annotations

from amends.processors import turning
from amends.processors.policies import policy_of
from amends.processors.state import AttemptState, Standing, Step, open_trouble, replace, standing
from amends.processors.workflow import Workflow
from amends.schemas.contract import Effect
from amends.schemas.policy import FailedBy, PastPivot

_INCIDENTS = {
    FailedBy.ERROR: "agent_failed",
    FailedBy.SILENCE: "agent_silent",
    FailedBy.DEADLINE: "deadline_passed",
}
ALL = ""
"""The name under which all calls that failed are counted."""


def fail(workflow: Workflow, by: FailedBy | None, reason: str, offset: int, at_ms: int) -> None:
    """The workflow has failed. `by` is None for what always counts: a false claim, a spent budget."""
    policy = policy_of(workflow.header)
    if by is FailedBy.ERROR and workflow.header.is_vacant:
        return  # of the agent whose epoch is over: it has failed already
    if by is not None and by not in policy.failed_by:
        workflow.with_trouble(_INCIDENTS[by], f"{reason}; by its policy that is no failure", offset, at_ms)
    elif policy.past_pivot is PastPivot.FINISH and is_past_pivot(workflow):
        _vacate(workflow, reason, offset, at_ms)
    else:
        turning.turn(workflow, reason, offset, at_ms)


def is_past_pivot(workflow: Workflow) -> bool:
    """Whether an irreversible call was made, or may have been, that nobody has condemned."""
    return any(
        step.effect is Effect.IRREVERSIBLE
        and step.number not in workflow.condemned
        and standing(step) is not Standing.ABSENT
        for step in workflow.steps
    )


def take_over(workflow: Workflow, instance: str, at_ms: int) -> None:
    """An agent resumes the workflow: from here on it is its owner, and one past its pivot is no longer vacant."""
    workflow.put_header(replace(workflow.header, is_vacant=False, instance=instance))
    if open_trouble(workflow.header.troubles, "unfinished") is not None:
        workflow.without_trouble("unfinished", at_ms, f"resumed by {instance or 'an agent'}")


def has_failed_anew(before: Step, after: Step, attempt: str) -> bool:
    """Whether this attempt has failed by the last fact, and not by one before it."""
    was = any(a.name == attempt and a.state is AttemptState.FAILED for a in before.attempts)
    return not was and any(a.name == attempt and a.state is AttemptState.FAILED for a in after.attempts)


def count_failed_call(workflow: Workflow, step: Step, epoch: int, offset: int, at_ms: int) -> None:
    """Count a call that failed against the budgets of its workflow and its tool; a budget that is spent is a failure
    of the workflow."""
    header, contract = workflow.header, workflow.contract_of(step)
    bounds = {
        ALL: policy_of(header).failed_calls_max,
        step.tool_name: contract.failed_calls_max if contract is not None else None,
    }
    if epoch != header.epoch or workflow.is_turned or all(bound is None for bound in bounds.values()):
        return
    counts = dict(header.failed_calls)
    for name, bound in bounds.items():
        if bound is not None:
            counts[name] = counts.get(name, 0) + 1
    workflow.put_header(replace(header, failed_calls=tuple(sorted(counts.items()))))
    for name, bound in bounds.items():
        if bound is not None and counts[name] > bound:
            whose = f" of {name}" if name else ""
            reason = f"the budget of {bound} failed calls{whose} is spent; the last that failed was {step.tool_name}"
            fail(workflow, None, reason, offset, at_ms)
            return


def _vacate(workflow: Workflow, reason: str, offset: int, at_ms: int) -> None:
    here = turning.Target(offset, "past its pivot nothing is undone: it waits for an agent that finishes it")
    turning.turn(workflow, reason, offset, at_ms, here)
    header = workflow.header
    if workflow.is_turned:  # it had been turned too often
        return
    failures = header.finish_attempts + 1
    since_ms = header.finishing_since_ms or at_ms
    workflow.put_header(replace(header, is_vacant=True, finish_attempts=failures, finishing_since_ms=since_ms))
    most = policy_of(header).finish_attempts_max
    if failures > most:
        workflow.with_trouble("unfinished", f"{failures} agents failed to finish it; the last: {reason}", offset, at_ms)
