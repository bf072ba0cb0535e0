"""Whatever order and repetition each writer's own order allows, the fold comes to the same decisions.

Writers are the agent's processes (one attempt each), who asks the world, who turns the workflow, and compensators. A
fact waits only for what it could not have been written without: an undo for the turn and for what it undoes, an answer
for the question.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.fact_samples import CONTRACTS, START, Said, ledger_of, partition

from amends.processors.state import Standing, UndoState, standing
from amends.schemas.codec import encode
from amends.schemas.contract import Contract
from amends.schemas.facts import (
    BEHIND,
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

UNDOABLE = (CONTRACTS[0], CONTRACTS[1], CONTRACTS[2], CONTRACTS[7])
ENDS = (StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.UNKNOWN, StepStatus.NOT_EXECUTED)


@dataclass
class Happened:
    """Facts in an order that is possible, and for each the facts it could not have been written without."""

    facts: list[Fact] = field(default_factory=list)
    needs: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, fact: Fact, *needs: int) -> int:
        self.facts.append(fact)
        self.needs.append(needs)
        return len(self.facts) - 1

    def ordered(self, draw: st.DrawFn) -> list[int]:
        """Return another order that is possible."""
        left, order = set(range(len(self.facts))), list[int]()
        while left:
            ready = sorted(n for n in left if not left.intersection(self.needs[n]))
            order.append(draw(st.sampled_from(ready)))
            left.discard(order[-1])
        return order

    def repeated(self, order: list[int], draw: st.DrawFn) -> list[int]:
        """Return the order with some facts a second time, anywhere after the first."""
        for number in draw(st.lists(st.sampled_from(order), min_size=1, max_size=12)):
            order = list(order)
            order.insert(draw(st.integers(order.index(number) + 1, len(order))), number)
        return order


def _step_fact(step: str, contract: Contract, attempt: str, status: StepStatus) -> StepEvent:
    return StepEvent(
        "w",
        step,
        attempt,
        0,
        status,
        contract.tool_name,
        side_effect_classification=contract.effect,
        contract=encode(contract) if status is StepStatus.STARTED else None,
        undo_arguments=b'{"id":1}' if status is StepStatus.SUCCEEDED else None,
    )


@st.composite
def worlds(draw: st.DrawFn) -> Happened:
    happened = Happened()
    trigger = draw(st.sampled_from(("failed", "failed", "asked", "claimed", "returned", "none")))
    contracts = draw(st.lists(st.sampled_from(UNDOABLE), min_size=1, max_size=3))
    savepoint = _savepoint(happened, draw) if trigger == "returned" else None
    turn = _turn(happened, trigger, savepoint)
    for number, each in enumerate(contracts):
        # Each step a tool of its own: whether a denied call was "done again" is a matter of order, and told apart.
        contract = dataclasses.replace(each, tool_name=f"{each.tool_name}-{number}")
        _step(happened, f"s{number}", contract, turn, draw, () if savepoint is None else (savepoint,))
    if trigger == "claimed":  # the claim of success comes after all that its agent did
        claim = WorkflowEvent("w", 0, WorkflowStatus.SUCCEEDED)
        happened.add(claim, *range(len(happened.facts)))
    return happened


def _savepoint(happened: Happened, draw: st.DrawFn) -> int:
    """Calls that have ended, and a savepoint behind them: whoever takes it waits for them."""
    for number in range(draw(st.integers(0, 2))):
        contract = dataclasses.replace(UNDOABLE[0], tool_name=f"before-{number}")
        started = happened.add(_step_fact(f"b{number}", contract, "p1", StepStatus.STARTED))
        end = draw(st.sampled_from((StepStatus.SUCCEEDED, StepStatus.FAILED)))
        happened.add(_step_fact(f"b{number}", contract, "p1", end), started)
    known = str(len(happened.facts))  # START stands first
    taken = WorkflowEvent("w", 0, WorkflowStatus.SAVEPOINT, savepoint="here", attributes={BEHIND: known})
    return happened.add(taken, *range(len(happened.facts)))


def _turn(happened: Happened, trigger: str, savepoint: int | None) -> int | None:
    if savepoint is not None:
        asked = WorkflowEvent("w", 0, WorkflowStatus.ROLLBACK_REQUESTED, savepoint="here")
        return happened.add(asked, savepoint)
    if trigger == "failed":
        return happened.add(WorkflowEvent("w", 0, WorkflowStatus.FAILED))
    if trigger == "asked":
        return happened.add(WorkflowEvent("w", 0, WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON, by="alice"))
    return None


def _step(
    happened: Happened, step: str, contract: Contract, turn: int | None, draw: st.DrawFn, needs: tuple[int, ...] = ()
) -> None:
    last: list[int] = []
    present, unknown = False, list[str]()
    for attempt in draw(st.sampled_from((("p1",), ("p1", "p2")))):
        started = happened.add(_step_fact(step, contract, attempt, StepStatus.STARTED), *needs)
        end = draw(st.sampled_from(ENDS))
        last.append(happened.add(_step_fact(step, contract, attempt, end), started))
        present = present or end is StepStatus.SUCCEEDED
        if end is StepStatus.UNKNOWN:
            unknown.append(attempt)
            if draw(st.booleans()):  # the call that was given up on answers after all
                late = draw(st.sampled_from((StepStatus.SUCCEEDED, StepStatus.FAILED)))
                last.append(happened.add(_step_fact(step, contract, attempt, late), last[-1]))
                present = present or late is StepStatus.SUCCEEDED
    asked: bool = draw(st.booleans())
    if unknown and asked:
        decision = draw(st.sampled_from((Decision.ABSENT, Decision.UNKNOWN)))
        answer = Resolution("w", decision, Party.COMPENSATOR, "c", step_id=step, attempts=tuple(unknown))
        last.append(happened.add(answer, *last))
    if turn is not None and present and draw(st.integers(0, 3)):
        _undo(happened, step, (turn, *last), draw)


def _undo(happened: Happened, step: str, needs: tuple[int, ...], draw: st.DrawFn) -> None:
    ends = draw(st.lists(st.sampled_from((UndoStatus.FAILED, UndoStatus.RELEASED, UndoStatus.DEFERRED)), max_size=2))
    ends.append(draw(st.sampled_from((UndoStatus.UNDONE, UndoStatus.NOTHING_TO_UNDO))))
    for attempt, end in enumerate(ends):
        started = happened.add(UndoEvent("w", step, 0, attempt, UndoStatus.STARTED, "o1"), *needs)
        loser = happened.add(UndoEvent("w", step, 0, attempt, UndoStatus.STARTED, "o2"), started)
        needs = (happened.add(UndoEvent("w", step, 0, attempt, end, "o1"), started), loser)


def decisions(happened: Happened, order: list[int]) -> object:
    """Return what the fold came to: the phase and, per step, its standing and where its undo stands."""
    fold = partition()
    for record in ledger_of([Said(START, 0), *(Said(happened.facts[n], 1) for n in order)]):
        fold.fold(record)
    workflow = fold.workflow("w")
    assert workflow is not None
    steps: dict[str, tuple[Standing, tuple[UndoState, int, int] | None]] = {}
    for step in workflow.steps:
        undo = step.undo
        at = None if undo is None else (undo.state, undo.generation, undo.attempt)
        steps[step.step_id] = (standing(step), at)
    return workflow.header.phase, workflow.header.epoch, steps


@st.composite
def retold(draw: st.DrawFn) -> tuple[Happened, list[int]]:
    happened = draw(worlds())
    return happened, happened.repeated(happened.ordered(draw), draw)


@settings(max_examples=400)
@given(retold())
def test_any_order_and_repetition_that_writers_allow_ends_in_the_same_decisions(
    case: tuple[Happened, list[int]],
) -> None:
    happened, order = case
    told = [str(getattr(happened.facts[n], "status", "answer")) for n in order]
    assert decisions(happened, order) == decisions(happened, list(range(len(happened.facts)))), told
