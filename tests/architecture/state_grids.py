"""Grids of states and facts, filled by running the code: each cell is what the real functions make of one fact.

A row is a fact, a column a state. A cell names the state after it and the incidents that it opens (+) and closes (-);
an empty one means that the fact changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import product

from tests.core.ledger import Ledger, contract_of

from amends.compensators.registry import ClaimRequest, Closing, MemoryRegistry, State
from amends.processors import attempts, diagnosis
from amends.processors.ladder import RESENDS_MAX, Rung, climb
from amends.processors.state import Attempt, AttemptState, Standing, Step, Trouble, standing
from amends.schemas.commands import Phase
from amends.schemas.contract import Idempotency
from amends.schemas.facts import (
    Decision,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)

Grid = tuple[list[str], list[list[str]]]
"""Head and rows; the first cell of each is the name of the row."""

LEASE_MS = 10_000


def grid(corner: str, columns: Iterable[str], rows: Iterable[str], cell: Callable[[str, str], str]) -> Grid:
    names = list(columns)
    return [corner, *names], [[row, *(cell(name, row) for name in names)] for row in rows]


def _change(before: str, after: str, old: Iterable[Trouble], new: Iterable[Trouble]) -> str:
    opened, closed = _kinds(new) - _kinds(old), _kinds(old) - _kinds(new)
    marks = [*(f"+{kind}" for kind in sorted(opened)), *(f"-{kind}" for kind in sorted(closed))]
    return ", ".join([after] * (after != before) + marks)


def _kinds(troubles: Iterable[Trouble]) -> set[str]:
    return {trouble.kind for trouble in troubles if trouble.closed_at_ms is None}


# --- an attempt of a step ---------------------------------------------------------------------------------------------

ENDS = (StepStatus.UNKNOWN, StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.NOT_EXECUTED)
EVIDENCE = (Decision.PRESENT, Decision.ABSENT, Decision.MARK_ABSENT, Decision.UNKNOWN)


def _event(status: StepStatus) -> StepEvent:
    return StepEvent("w", "s", "p1", 0, status, "tool", lease_ms=1_000)


def _step(state: str) -> Step:
    step = Step(0, "s", "tool", 0, 0)
    if state == "none":
        return step
    step = attempts.fold_step_event(step, _event(StepStatus.STARTED), None, 1, 0)
    return step if state == "open" else attempts.fold_step_event(step, _event(StepStatus[state.upper()]), None, 2, 0)


def attempt_grid() -> Grid:
    def cell(state: str, fact: str) -> str:
        before = _step(state)
        if fact in StepStatus.__members__:
            after = attempts.fold_step_event(before, _event(StepStatus[fact]), None, 9, 9)
        elif fact == "its lease ran out":
            after = attempts.time_out(before, "p1", 9, 9)
        else:
            decision = Decision(fact.removeprefix("evidence: "))
            said = Resolution("w", decision, Party.COMPENSATOR, "probe", step_id="s", attempts=("p1",))
            after = attempts.fold_evidence(before, said, 9, 9)
            told = standing(after) if standing(after) is not standing(before) else ""
            return _change("", f"step {told}" if told else "", before.troubles, after.troubles)
        old, new = (step.attempts[0].state.value if step.attempts else "none" for step in (before, after))
        renewed = after.attempts != before.attempts and old == new
        return _change(old, new, before.troubles, after.troubles) or ("lease renewed" if renewed else "")

    facts = ["STARTED", "HEARTBEAT", *(end.value for end in ENDS), "its lease ran out"]
    told = [f"evidence: {decision.value}" for decision in EVIDENCE]
    return grid("fact", ["none", "open", *(end.value.lower() for end in ENDS)], [*facts, *told], cell)


def standing_grid() -> Grid:
    names = [*(state.value for state in AttemptState), "unknown, said absent"]

    def attempt(name: str, number: str) -> Attempt:
        state, _, absent = name.partition(", ")
        return Attempt(number, AttemptState(state), 0, absent=bool(absent))

    def cell(first: str, second: str) -> str:
        both = (attempt(first, "p1"), attempt(second, "p2"))
        return standing(Step(0, "s", "tool", 0, 0, attempts=both)).value

    return grid("two attempts", names, names, cell)


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
        return _change(phase, after, before, [trouble for _, trouble in found.open_troubles()])

    return grid("fact", [phase.value for phase in Phase], WORKFLOW_FACTS, cell)


# --- the undo of a step -----------------------------------------------------------------------------------------------

UNDO_STATES = ("DUE", "OPEN", "OPEN, the last", "DEAD", "UNDONE", "NOTHING", "LOSS")


def _rule(decision: Decision) -> Callable[[Ledger], object]:
    return lambda on: on.resolve("x", decision, writer=Party.PERSON)


UNDO_FACTS: Mapping[str, Callable[[Ledger], object]] = {
    "STARTED": lambda on: on.undo("x", UndoStatus.STARTED),
    "UNDONE": lambda on: on.undo("x", UndoStatus.UNDONE),
    "NOTHING_TO_UNDO": lambda on: on.undo("x", UndoStatus.NOTHING_TO_UNDO),
    "FAILED": lambda on: on.undo("x", UndoStatus.FAILED),
    "FAILED for good": lambda on: on.undo("x", UndoStatus.FAILED, retryable=False),
    "FAILED, the key refused for ever": lambda on: on.undo("x", UndoStatus.FAILED, key_refused=True),
    "UNKNOWN": lambda on: on.undo("x", UndoStatus.UNKNOWN),
    "RELEASED": lambda on: on.undo("x", UndoStatus.RELEASED),
    "DEFERRED": lambda on: on.undo("x", UndoStatus.DEFERRED),
    "its lease ran out": lambda on: on.wait(75_000),
    "FAILED, by who is not the owner": lambda on: on.undo("x", UndoStatus.FAILED, owner="another"),
    "UNDONE, by who is not the owner": lambda on: on.undo("x", UndoStatus.UNDONE, owner="another"),
    "a person: retry": _rule(Decision.RETRY),
    "a person: mark_undone": _rule(Decision.MARK_UNDONE),
    "a person: accept_loss": _rule(Decision.ACCEPT_LOSS),
}


def _undo(state: str, *, undo: Idempotency = Idempotency.KEY, verify: bool = False, tries: int = 3) -> Ledger:
    ledger = Ledger()
    ledger.start()
    tries = 1 if state == "OPEN, the last" else tries
    ledger.did("x", contract_of("x", undo=undo, verify=verify, attempts_max=tries))
    ledger.said(WorkflowStatus.FAILED)
    if state != "DUE":
        ledger.undo("x", UndoStatus.STARTED)
    if state in ("DEAD", "LOSS"):
        ledger.undo("x", UndoStatus.FAILED, retryable=False)
    if state == "LOSS":
        ledger.resolve("x", Decision.ACCEPT_LOSS, writer=Party.PERSON)
    if state in ("UNDONE", "NOTHING"):
        ledger.undo("x", UndoStatus.UNDONE if state == "UNDONE" else UndoStatus.NOTHING_TO_UNDO)
    return ledger


def _undo_in_words(step: Step) -> str:
    assert step.undo is not None
    undo = step.undo
    granted = f" {undo.attempt}" if undo.state.value in ("due", "open") else ""
    generation = f" of generation {undo.generation}" if undo.generation else ""
    waits = f", then {undo.pending}" if undo.pending else ""
    return undo.state.value.upper() + granted + generation + waits


def undo_grid() -> Grid:
    def cell(state: str, fact: str) -> str:
        ledger = _undo(state)
        before = ledger.step("x")
        UNDO_FACTS[fact](ledger)
        after = ledger.step("x")
        return _change(_undo_in_words(before), _undo_in_words(after), before.troubles, after.troubles)

    return grid("fact", UNDO_STATES, UNDO_FACTS, cell)


def doubt_grid() -> Grid:
    """What becomes of an undo that may have taken, by what its remote can do."""
    remotes = {
        "takes a key": (Idempotency.KEY, False),
        "idempotent by nature": (Idempotency.NATURAL, False),
        "neither": (Idempotency.NEITHER, False),
        "neither, has a verify": (Idempotency.NEITHER, True),
    }

    def cell(remote: str, tries: str) -> str:
        undo, verify = remotes[remote]
        ledger = _undo("OPEN", undo=undo, verify=verify, tries=3 if tries == "tries are left" else 1)
        ledger.undo("x", UndoStatus.UNKNOWN)
        after = ledger.step("x")
        asks = " (verify is asked first)" if verify and after.undo is not None and not after.troubles else ""
        return _change("", _undo_in_words(after), (), after.troubles) + asks

    return grid("UNKNOWN of OPEN 0", remotes, ["tries are left", "none is left"], cell)


# --- the ladder -------------------------------------------------------------------------------------------------------


def ladder_grid() -> Grid:
    remotes = [f"{call.value}, undo {undo.value}" for call, undo in product(Idempotency, Idempotency)]

    def cell(column: str, remote: str) -> str:
        call, undo = remote.split(", undo ")
        contract = contract_of("x", call=Idempotency(call), undo=Idempotency(undo), probe=column.startswith("a probe"))
        step = replace(_step("unknown"), undo_arguments=b"{}")
        rungs: list[str] = []
        condemned = column.endswith("condemned")
        while not rungs or rungs[-1] not in (Rung.UNDO.value, Rung.INCIDENT.value):
            rung = climb(step, Standing.UNKNOWN, contract, condemned=condemned, now_ms=10**6).rung
            rungs.append(rung.value)
            step = replace(step, probes=99) if rung is Rung.PROBE else replace(step, resends=RESENDS_MAX)
        return ", ".join(rungs)

    columns = [f"{probe}, {which}" for which in ("condemned", "claimed") for probe in ("a probe", "no probe")]
    return grid("call", columns, remotes, cell)


# --- the registry -----------------------------------------------------------------------------------------------------

ENTRIES = ("no entry", "CLAIMED 1, mine", "CLAIMED 1", "CLAIMED 1, lease over", "FAILED 1", "IN_DOUBT 1", "DONE by 1")


def registry_grid() -> Grid:
    def cell(entry: str, verb: str) -> str:
        now = [0]
        registry = MemoryRegistry(lambda: now[0])
        if entry != "no entry":
            owner = "me" if entry.endswith("mine") else "another"
            registry.claim_now((ClaimRequest("key", 1, owner, 1_000),))
            state = State[entry.split()[0]]
            if state is not State.CLAIMED:
                closing = Closing(1, UndoStatus.UNDONE, owner) if state is State.DONE else None
                registry.settle_now("key", 1, 1, state, closing)
            now[0] = 2_000 if entry.endswith("over") else 1
        match verb.split():
            case ["claim", attempt]:
                return type(registry.claim_now((ClaimRequest("key", int(attempt), "me", 1_000),))[0]).__name__
            case ["renew", *_]:
                return _yes(registry.renew_now("key", 1, 1, 1_000))
            case [_, *_, fence]:
                return _yes(registry.settle_now("key", 1, 1 if fence == "fence" else 7, State.FAILED, None))
        raise AssertionError(verb)

    verbs = ("claim 0", "claim 1", "claim 2", "renew 1", "settle 1, with its fence", "settle 1, with another's")
    return grid("verb", ENTRIES, verbs, cell)


def _yes(done: bool) -> str:
    return "done" if done else "refused"
