"""Incidents that nothing waits for: people close them by saying that they know, and some become moot."""

from __future__ import annotations

from amends.processors.attempts import without_trouble
from amends.processors.state import Step, Trouble, open_trouble
from amends.processors.workflow import Workflow
from amends.schemas.decisions import ACKNOWLEDGED, KIND
from amends.schemas.facts import UNKNOWN_OFFSET, Decision, Resolution

_MOOT = ("agent_failed", "agent_silent", "deadline_passed", "unfinished")
"""They ask what is to become of a workflow that goes on."""


def version_of(step: Step | None, trouble: Trouble) -> int:
    """Return the version of an incident as people see it: a ruling names it."""
    return step.undo.version if step is not None and step.undo is not None else trouble.version


def acknowledge(workflow: Workflow, fact: Resolution, at_ms: int) -> None:
    """A person knows of an incident. One taken on another version, or of another kind, does nothing."""
    kind = fact.attributes[KIND]
    if kind not in ACKNOWLEDGED or fact.decision not in (Decision.ACCEPT_LOSS, Decision.MARK_UNDONE):
        return
    if fact.workflow_offset not in (UNKNOWN_OFFSET, workflow.header.started_offset):
        return
    step = workflow.find(fact.step_id) if fact.step_id is not None else None
    if (step is None) is not (fact.step_id is None):
        return
    trouble = open_trouble(workflow.header.troubles if step is None else step.troubles, kind)
    if trouble is None or (fact.version is not None and fact.version != version_of(step, trouble)):
        return
    if step is None:
        workflow.without_trouble(kind, at_ms, fact.by)
    else:
        workflow.put(without_trouble(step, kind, at_ms, fact.by))


def moot(workflow: Workflow, at_ms: int, why: str) -> None:
    """The workflow no longer goes on as it did: what was asked about that is answered."""
    for kind in _MOOT:
        if open_trouble(workflow.header.troubles, kind) is not None:
            workflow.without_trouble(kind, at_ms, why)
