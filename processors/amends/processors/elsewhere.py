"""Steps that are undone otherwise than by an undo of their own.

*By the agent itself.* An undo may name the tool with which an agent does the same (`agent_tool`). A later step of that
tool that is known to have happened, and whose input names every id that the undo would have used, has undone the step:
both are closed. While nobody knows whether it happened, the step waits for it, incident or not. One such step closes
the latest of those that the same ids stand for, and no other: three bookings that were one id each time are three.

*By the undo of another step.* An undo may name tools whose steps it covers (`covers`): those that were made later and
name what its step made, or touch what it touches. They wait for it, are not undone by themselves, and are closed with
it once it is UNDONE. If it is given up on, or found nothing, they are undone as if nothing covered them; so is a step
that may still change the world, because an attempt of it is open or unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from amends.processors import attempts
from amends.processors.state import (
    Standing,
    Step,
    Undo,
    UndoState,
    has_open_attempt,
    owed,
    replace,
    standing,
)
from amends.schemas.contract import Contract, Effect
from amends.schemas.data_flow import UNKNOWN_ID, ids_recorded

if TYPE_CHECKING:
    from amends.processors.workflow import Workflow

_Names = dict[tuple[str, str], set[int]]


class Coverage:
    """Who may undo whom, by tool and by what they name. Only what is declared costs anything."""

    def __init__(self) -> None:
        self._coverers: _Names = {}
        self._undone_with: _Names = {}

    @property
    def is_used(self) -> bool:
        """Whether any step that is condemned declares such a thing."""
        return bool(self._coverers or self._undone_with)

    def note(self, step: Step, contract: Contract | None) -> None:
        """Take a step that is condemned."""
        if contract is None or contract.undo is None or step.flow is None:
            return
        for tool in contract.undo.covers:
            for name in _given(step):
                self._coverers.setdefault((tool, name), set()).add(step.number)
        if contract.undo.agent_tool:
            for name in ids_of_undo(step):
                self._undone_with.setdefault((contract.undo.agent_tool, name), set()).add(step.number)

    def coverers_of(self, step: Step) -> set[int]:
        """Return the steps whose undo may cover this one."""
        return _found(self._coverers, step.tool_name, _taken(step)) if self._coverers else set()

    def undone_by(self, step: Step) -> set[int]:
        """Return the steps that this one, of an agent, may have undone."""
        if not self._undone_with or step.flow is None:
            return set()
        return _found(self._undone_with, step.tool_name, step.flow.uses)


def _found(names: _Names, tool: str, wanted: Iterable[str]) -> set[int]:
    return {number for name in wanted for number in names.get((tool, name), ())}


def _given(step: Step) -> Iterator[str]:
    if step.flow is not None:
        yield from (f"key {name}" for name in step.flow.touches if name != UNKNOWN_ID)
        yield from (name for name in step.flow.makes or () if name != UNKNOWN_ID)


def _taken(step: Step) -> Iterator[str]:
    if step.flow is not None:
        yield from (f"key {name}" for name in step.flow.touches if name != UNKNOWN_ID)
        yield from (name for name in step.flow.uses if name != UNKNOWN_ID)


def ids_of_undo(step: Step) -> tuple[str, ...]:
    """Return the ids among the arguments of a step's undo."""
    return () if step.undo_arguments is None else ids_recorded(step.undo_arguments)


# --- by the undo of another step ------------------------------------------------------------------------------------


def covers_now(workflow: Workflow, step: Step) -> bool:
    """Whether a step's undo is to run, or runs, and declares that it covers others."""
    contract = workflow.contract_of(step)
    if contract is None or contract.undo is None or not contract.undo.covers or step.number not in workflow.owing:
        return False
    return step.undo is not None and step.undo.state in (UndoState.DUE, UndoState.OPEN)


def is_covered_by_another(workflow: Workflow, step: Step) -> bool:
    """Whether a step waits to be closed with the undo of another. Never one of class I."""
    numbers = workflow.coverage.coverers_of(step)
    if not numbers:
        return False
    if step.effect is Effect.IRREVERSIBLE or not _can_be_closed(workflow, step):
        return False
    coverers = (workflow.steps[number] for number in numbers)
    return any(c.first_offset < step.first_offset and covers_now(workflow, c) for c in coverers)


def _can_be_closed(workflow: Workflow, step: Step) -> bool:
    """Whether all that a step did is done, and nothing was begun to undo it."""
    if owed(step, workflow.contract_of(step)) is not Standing.PRESENT or has_open_attempt(step):
        return False
    return step.undo is None or (step.undo.state in (UndoState.DUE, UndoState.DEAD) and not step.undo.started)


def close_covered(workflow: Workflow, coverer: Step, at_ms: int) -> None:
    """The undo of `coverer` took: what it covers is undone with it."""
    contract = workflow.contract_of(coverer)
    if contract is None or contract.undo is None or not contract.undo.covers or coverer.undo is None:
        return
    if coverer.undo.state is not UndoState.UNDONE:
        return
    for number in sorted(workflow.owing):
        step = workflow.steps[number]
        if step.tool_name not in contract.undo.covers or step.first_offset <= coverer.first_offset:
            continue
        if coverer.number in workflow.coverage.coverers_of(step) and _can_be_closed(workflow, step):
            evidence = f"undone with {coverer.tool_name} (step {coverer.step_id})"
            covered = _closed(step, UndoState.UNDONE, coverer.undo.covered_before, evidence, at_ms)
            if owed(covered, workflow.contract_of(covered)) is Standing.ABSENT:
                workflow.put(covered)


# --- by the agent itself --------------------------------------------------------------------------------------------


def may_have_undone(workflow: Workflow, step: Step) -> bool:
    """Whether nobody knows if this step, an agent's own, has undone another."""
    return standing(step) is Standing.UNKNOWN and bool(workflow.coverage.undone_by(step))


def close_undone_by_agent(workflow: Workflow, canceller: Step, offset: int, at_ms: int) -> None:
    """The agent made `canceller`: whatever it undid is undone, and it is no effect to be undone itself."""
    numbers = workflow.coverage.undone_by(canceller)
    if not numbers or canceller.flow is None or not _can_be_closed(workflow, canceller):
        return
    closed: set[tuple[str, ...]] = set()
    for step in sorted((workflow.steps[n] for n in numbers), key=lambda s: s.first_offset, reverse=True):
        ids = tuple(sorted(ids_of_undo(step)))
        if step.first_offset >= canceller.first_offset or ids in closed:
            continue
        if not set(ids) <= set(canceller.flow.uses) or not _can_be_closed(workflow, step):
            continue
        closed.add(ids)
        evidence = f"undone by the agent itself with {canceller.tool_name} (step {canceller.step_id})"
        workflow.put(_closed(step, UndoState.NOTHING, canceller.first_offset, evidence, at_ms))
    if closed:
        evidence = "the agent undid earlier steps with it"
        workflow.put(_closed(canceller, UndoState.NOTHING, offset + 1, evidence, at_ms))


def close_if_agent_undid(workflow: Workflow, step: Step, offset: int, at_ms: int) -> None:
    """A step came to light: the agent may have undone it before that."""
    contract = workflow.contract_of(step)
    if contract is None or contract.undo is None or not contract.undo.agent_tool:
        return
    if not _can_be_closed(workflow, step):
        return
    for other in [s for s in workflow.steps if s.tool_name == contract.undo.agent_tool]:
        if step.number in workflow.coverage.undone_by(other):
            close_undone_by_agent(workflow, other, offset, at_ms)


def _closed(step: Step, state: UndoState, covered_before: int, evidence: str, at_ms: int) -> Step:
    undo = step.undo or Undo()
    closed = replace(undo, state=state, covered_before=covered_before, evidence=evidence, version=undo.version + 1)
    for trouble in step.troubles:
        if trouble.kind != "contradiction":
            step = attempts.without_trouble(step, trouble.kind, at_ms, evidence)
    return replace(step, undo=closed)
