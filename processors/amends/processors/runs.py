"""Runs: which undos of a workflow can be commanded now, and which of them go together.

A run begins with a step that is ready (`dependencies`) and whose undo is due, and goes on with what becomes ready as it
is worked off, as long as that is due too and of the same lane. So steps in one order are one run, and steps that have
nothing to do with one another are runs beside each other: at most so many of a tool, and of a lane, at a time. Among
those that order allows, the one whose window closes first goes first, then the later one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from amends.processors.chain import Chain
from amends.processors.dependencies import Dependencies, Rank
from amends.processors.state import CLOSED_UNDO, Step, UndoState, arguments_of, has_open_attempt, settles_at_ms
from amends.processors.undos import forgotten_at_ms
from amends.processors.windows import is_closed
from amends.processors.workflow import Workflow
from amends.schemas.contract import Contract, lane_of

RUN_MAX = 32
EXAMINED_MAX = 64
"""Ready steps of one tool that are looked at, soonest first: what waits for its backoff stands among them."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many undos of one workflow are made at the same time."""

    of_lane: int = 8
    of_tool: int = 4


BOUNDS = Bounds()

Run = list[tuple[Step, Contract]]


@dataclass(slots=True)
class Ready:
    """What can be commanded: runs of undos, steps whose call may have to be sent again, and children."""

    runs: list[Run]
    unsure: list[tuple[Step, Contract]]
    children: list[Step]  # to be asked


def ready(workflow: Workflow, bounds: Bounds, now_ms: int, wake: Callable[[int], None]) -> Ready:
    """Return what can be commanded now; `wake` is told when more can be, where only time is waited for."""
    made = Ready([], [], [])
    dependencies = workflow.order_of_undoing()
    under_way: Counter[str] = Counter()
    heads: list[tuple[Rank, Step, Contract]] = []
    for queue in dependencies.ready.values():
        heads.extend(_of_tool(workflow, queue[:EXAMINED_MAX], bounds, now_ms, wake, under_way, made))
    for _, step, contract in sorted(heads, key=lambda head: head[0]):
        lane = lane_of(contract)
        if under_way[lane] < bounds.of_lane:
            under_way[lane] += 1
            made.runs.append(_run(workflow, dependencies, step, contract, now_ms))
    return made


def _of_tool(
    workflow: Workflow,
    queue: list[Rank],
    bounds: Bounds,
    now_ms: int,
    wake: Callable[[int], None],
    under_way: Counter[str],
    made: Ready,
) -> list[tuple[Rank, Step, Contract]]:
    """Return the steps of one tool that can begin a run, as many as may beside those that are under way."""
    found: list[tuple[Rank, Step, Contract]] = []
    free = bounds.of_tool
    for rank in queue:
        step = workflow.steps[rank[2]]
        contract = workflow.contract_of(step)
        if step.child is not None and step.undo is not None and step.undo.state is UndoState.DUE:
            made.children.append(step)
        if contract is None or has_open_attempt(step):
            continue
        if step.undo is not None and step.undo.state is UndoState.OPEN:
            free -= 1
            under_way[lane_of(contract)] += 1
        elif step.undo is None or step.undo.state in CLOSED_UNDO:
            if len(made.unsure) < bounds.of_lane:
                made.unsure.append((step, contract))
        else:
            due_ms = _due_at_ms(step, contract, now_ms)
            if due_ms is not None and due_ms > now_ms:
                wake(due_ms)
            elif due_ms is not None:
                found.append((rank, step, contract))
    return found[: max(0, free)]


def _due_at_ms(step: Step, contract: Contract, now_ms: int) -> int | None:
    """Return when the undo of a step may begin, as far as the step itself decides; None if only a fact can change it:
    too late for a machine, for instance, is what its Timeout will say."""
    undo = step.undo
    if undo is None or undo.state is not UndoState.DUE or contract.undo is None or arguments_of(step) is None:
        return None
    forgotten_ms = forgotten_at_ms(undo, contract)
    if (forgotten_ms is not None and now_ms >= forgotten_ms) or is_closed(step, contract, now_ms):
        return None
    return max(undo.not_before_ms, settles_at_ms(step, contract))


def _run(workflow: Workflow, dependencies: Dependencies | Chain, step: Step, contract: Contract, now_ms: int) -> Run:
    """Begin a run with a step, and go on with what is held by members of the run alone."""
    run: Run = [(step, contract)]
    held: dict[int, int] = {}
    waiting: list[tuple[Rank, Step, Contract]] = []
    done = [step.number]
    while len(run) < RUN_MAX:
        while done:
            for base in dependencies.bases_of(done.pop()):
                held[base] = held.get(base, dependencies.held_by(base)) - 1
                if held[base]:
                    continue
                if not dependencies.is_pending(base):
                    done.append(base)
                elif (member := _member(workflow, base, lane_of(contract), now_ms)) is not None:
                    heappush(waiting, (dependencies.rank_of(base), *member))
        if not waiting:
            break
        _, following, terms = heappop(waiting)
        run.append((following, terms))
        done.append(following.number)
    return run


def _member(workflow: Workflow, number: int, lane: str, now_ms: int) -> tuple[Step, Contract] | None:
    step = workflow.steps[number]
    contract = workflow.contract_of(step)
    if contract is None or lane_of(contract) != lane or has_open_attempt(step):
        return None
    due_ms = _due_at_ms(step, contract, now_ms)
    return (step, contract) if due_ms is not None and due_ms <= now_ms else None
