"""What facts make of a workflow, of a child in its parent, and of the breaker of a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.architecture.grids import Grid, change, grid
from tests.core.ledger import Ledger, contract_of

from amends.processors import breakers, diagnosis
from amends.processors.state import Step
from amends.schemas.commands import Phase
from amends.schemas.facts import Decision, Party, UndoStatus, WorkflowEvent, WorkflowStatus
from amends.schemas.family import AS_OF, CHILD_STARTED_OFFSET

LEASE_MS = 10_000

# --- a workflow -------------------------------------------------------------------------------------------------------


def signal_grid() -> Grid:
    phases = [phase.value for phase in Phase]

    def cell(phase: str, signal: str) -> str:
        action = diagnosis.action_for(Phase(phase), diagnosis.Signal(signal))
        return "" if action is diagnosis.Action.NOTHING else action.value

    return grid("signal", phases, [signal.value for signal in diagnosis.Signal], cell)


def _workflow(phase: str, *, deadline_ms: int | None = None) -> Ledger:
    ledger, contract = Ledger(), contract_of("tool")
    if phase == "NONE":
        return ledger
    lease_ms = LEASE_MS if deadline_ms is None else 10 * deadline_ms
    start = WorkflowEvent("w", 0, WorkflowStatus.STARTED, agent_id="a", lease_ms=lease_ms, instance="i")
    ledger.append(replace(start, deadline_ms=deadline_ms))
    ledger.did("a", contract)
    ledger.savepoint("here")
    ledger.did("b", contract)
    if phase == "FINISHING":
        ledger.started("open", contract)
    if phase in ("FINISHING", "SUCCEEDED"):
        ledger.said(WorkflowStatus.SUCCEEDED)
    if phase in ("TURNED", "COMPENSATED", "CLOSED_WITH_LOSS"):
        ledger.said(WorkflowStatus.FAILED)
    if phase == "COMPENSATED":
        ledger.undone("b")
    if phase == "CLOSED_WITH_LOSS":
        ledger.undo("b", UndoStatus.FAILED, retryable=False)
        ledger.resolve("b", Decision.ACCEPT_LOSS, writer=Party.PERSON)
    if phase in ("COMPENSATED", "CLOSED_WITH_LOSS"):
        ledger.undone("a")
    assert ledger.phase == phase
    return ledger


def _late(ledger: Ledger, epoch: int) -> None:
    ledger.did("late", contract_of("tool"), epoch=epoch)


WORKFLOW_FACTS: Mapping[str, Callable[[Ledger, int], object]] = {
    "a STARTED that would begin it": lambda on, epoch: on.start(),
    "a STARTED that resumes it": lambda on, epoch: on.start(on_existing="resume"),
    "the agent claims success": lambda on, epoch: on.said(WorkflowStatus.SUCCEEDED, epoch=epoch),
    "… in an epoch that has ended": lambda on, epoch: on.said(WorkflowStatus.SUCCEEDED, epoch=epoch - 1),
    "the agent says that it failed": lambda on, epoch: on.said(WorkflowStatus.FAILED, epoch=epoch),
    "… in an epoch that has ended ": lambda on, epoch: on.said(WorkflowStatus.FAILED, epoch=epoch - 1),
    "the agent asks for undoing": lambda on, epoch: on.said(WorkflowStatus.ROLLBACK_REQUESTED, epoch=epoch),
    "… back to a savepoint": lambda on, epoch: on.undo_to("here", epoch=epoch),
    "… to one nobody knows": lambda on, epoch: on.undo_to("where", epoch=epoch),
    "a person asks for undoing": lambda on, epoch: on.said(WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON),
    "… back to a savepoint ": lambda on, epoch: on.undo_to("here", epoch=epoch, writer=Party.PERSON),
    "… to one nobody knows ": lambda on, epoch: on.undo_to("where", epoch=epoch, writer=Party.PERSON),
    "silence for two leases and a half": lambda on, epoch: on.wait(5 * LEASE_MS // 2),
    "its deadline": lambda on, epoch: on.wait(LEASE_MS + 1),
    "a new call, done": _late,
    "a record nobody can read": lambda on, epoch: on.append(None, raw=b"?", key=b"w"),
}


def workflow_grid() -> Grid:
    def cell(phase: str, fact: str) -> str:
        ledger = _workflow(phase, deadline_ms=LEASE_MS if fact == "its deadline" else None)
        found = ledger.partition.workflow("w")
        epoch = 0 if found is None else found.header.epoch
        before = [] if found is None else [trouble for _, trouble in found.open_troubles()]
        WORKFLOW_FACTS[fact](ledger, epoch)
        found = ledger.partition.workflow("w")
        if found is None:
            return ""
        after = found.header.phase.value
        if found.header.epoch != epoch:
            after = f"{after}, epoch + {found.header.epoch - epoch}"
        return change(phase, after, before, [trouble for _, trouble in found.open_troubles()])

    return grid("fact", [phase.value for phase in Phase], WORKFLOW_FACTS, cell)


# --- a child, in its parent -------------------------------------------------------------------------------------------

CHILD_STATES = ("running with its parent", "DUE", "DEAD", "UNDONE", "LOSS", "LOSS, by a person")
ANSWERS = ("COMPENSATED", "CLOSED_WITH_LOSS", "TURNED")


def _answer(ledger: Ledger, closed_as: str, as_of: int) -> None:
    answer = WorkflowEvent("w", 0, WorkflowStatus.CHILD_CLOSED, writer=Party.PROCESSOR, child_workflow_id="c")
    named = {CHILD_STARTED_OFFSET: "1", AS_OF: str(as_of)}
    ledger.append(replace(answer, closed_as=closed_as, attributes=named))


def _child(ledger: Ledger) -> Step:
    return ledger.step("child/1/c")


def _parent(state: str) -> Ledger:
    ledger = Ledger()
    ledger.start()
    ledger.append(WorkflowEvent("w", 0, WorkflowStatus.CHILD_STARTED, child_workflow_id="c"))
    if state == "running with its parent":
        return ledger
    ledger.said(WorkflowStatus.FAILED)
    ends = {"DEAD": "TURNED", "UNDONE": "COMPENSATED", "LOSS": "CLOSED_WITH_LOSS", "LOSS, by a person": "TURNED"}
    if state in ends:
        _answer(ledger, ends[state], 50)
    if state.endswith("person"):
        ledger.resolve("child/1/c", Decision.ACCEPT_LOSS, writer=Party.PERSON)
    return ledger


def child_grid() -> Grid:
    def cell(state: str, fact: str) -> str:
        ledger = _parent(state)
        before = _child(ledger)
        if fact.startswith("it answers"):
            _answer(ledger, fact.split()[2].strip(","), 10 if fact.endswith("older") else 99)
        elif fact == "the parent fails":
            ledger.said(WorkflowStatus.FAILED)
        else:
            ledger.resolve("child/1/c", Decision(fact.removeprefix("a person: ")), writer=Party.PERSON)
        after = _child(ledger)
        old, new = (step.undo.state.value.upper() if step.undo is not None else "" for step in (before, after))
        return change(old, new, before.troubles, after.troubles)

    answers = [f"it answers {answer}" for answer in ANSWERS]
    people = [f"a person: {decision.value}" for decision in (Decision.RETRY, Decision.ACCEPT_LOSS)]
    facts = ["the parent fails", *answers, "it answers COMPENSATED, of older", *people]
    return grid("fact", CHILD_STATES, facts, cell)


# --- the breaker of a tool --------------------------------------------------------------------------------------------

TERMS = breakers.BreakerTerms(failures=2, pause_ms=1_000, pause_cap_ms=60_000)
BREAKERS = ("CLOSED", "CLOSED, one failed", "OPEN", "PROBES")


def _breaker(state: str) -> breakers.Breaker:
    breaker = breakers.CLOSED
    for name in {"CLOSED": (), "CLOSED, one failed": ("a",)}.get(state, ("a", "b")):
        breaker = breakers.failed(breaker, name, 1_000, 1_000, "no", TERMS)
    return breaker


def _state(breaker: breakers.Breaker, now_ms: int) -> str:
    if not breaker.is_open:
        return "CLOSED" + ", one failed" * len(breaker.failed)
    return "PROBES" if now_ms >= breaker.retry_at_ms else f"OPEN for {breaker.retry_at_ms - now_ms} ms"


def breaker_grid() -> Grid:
    def cell(state: str, fact: str) -> str:
        now_ms = 2_500 if state == "PROBES" else 1_500
        before = _breaker(state)
        match fact:
            case "an undo of another workflow failed":
                after = breakers.failed(before, "z", now_ms, now_ms, "no", TERMS)
            case "one of the same workflow failed":
                after = breakers.failed(before, "a", now_ms, now_ms, "no", TERMS)
            case "one that began before it opened failed":
                after = breakers.failed(before, "z", 900, now_ms, "no", TERMS)
            case "an undo took":
                after = breakers.closed(before, now_ms)
            case "a person: it is mended":
                after = breakers.mended(before, "ann", now_ms)
            case _:
                now_ms = max(now_ms, before.retry_at_ms)
                return "" if _state(before, now_ms) == state else _state(before, now_ms)
        return "" if _state(after, now_ms) == _state(before, now_ms) else _state(after, now_ms)

    facts = (
        "an undo of another workflow failed",
        "one of the same workflow failed",
        "one that began before it opened failed",
        "an undo took",
        "a person: it is mended",
        "the pause is over",
    )
    return grid("fact", BREAKERS, facts, cell)
