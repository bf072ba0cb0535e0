"""What facts make of an attempt, a step, its undo, and its ladder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

from tests.architecture.grids import Grid, change, grid
from tests.core.ledger import Ledger, contract_of

from amends.processors import attempts
from amends.processors.ladder import RESENDS_MAX, Rung, climb
from amends.processors.state import Attempt, AttemptState, Standing, Step, standing
from amends.schemas.contract import Idempotency
from amends.schemas.facts import Decision, Party, Resolution, StepEvent, StepStatus, UndoStatus, WorkflowStatus

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
            after = attempts.time_out(before, "p1", None, 9, 9)
        else:
            decision = Decision(fact.removeprefix("evidence: "))
            said = Resolution("w", decision, Party.COMPENSATOR, "probe", step_id="s", attempts=("p1",))
            after = attempts.fold_evidence(before, said, 9, 9)
            told = standing(after) if standing(after) is not standing(before) else ""
            return change("", f"step {told}" if told else "", before.troubles, after.troubles)
        old, new = (step.attempts[0].state.value if step.attempts else "none" for step in (before, after))
        renewed = after.attempts != before.attempts and old == new
        return change(old, new, before.troubles, after.troubles) or ("lease renewed" if renewed else "")

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
    "a person: edit_args": lambda on: on.resolve("x", Decision.EDIT_ARGS, writer=Party.PERSON, undo_arguments=b"{}"),
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
        return change(_undo_in_words(before), _undo_in_words(after), before.troubles, after.troubles)

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
        return change("", _undo_in_words(after), (), after.troubles) + asks

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
