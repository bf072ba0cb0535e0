"""Who may try an undo: what the registry answers, and what the ledger decides."""

from __future__ import annotations

from collections.abc import Mapping

from tests.architecture.grids import Grid, grid
from tests.core.stage import AS_OF, entry, run_of

from amends.compensators.effects import LedgerFact
from amends.compensators.ownership import Lost, Owned, Released, standing_of_undo
from amends.compensators.registry import ClaimRequest, Closing, MemoryRegistry, State
from amends.schemas.facts import (
    Decision,
    Fact,
    Party,
    Resolution,
    StepEvent,
    StepStatus,
    Timeout,
    TimeoutKind,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)

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


# --- the read back ----------------------------------------------------------------------------------------------------


def _undo(status: UndoStatus, attempt: int, generation: int = 1) -> UndoEvent:
    return UndoEvent("w", "s1", generation, attempt, status, "another")


def _ruling(decision: Decision, writer: Party = Party.PERSON, step: str | None = "s1") -> Resolution:
    return Resolution("w", decision, writer, "ann", step_id=step)


FOUND: Mapping[str, Fact | None] = {
    "nothing": WorkflowEvent("w", 0, WorkflowStatus.HEARTBEAT),
    "another STARTED of the attempt": _undo(UndoStatus.STARTED, 2),
    "anything of a later attempt": _undo(UndoStatus.STARTED, 3),
    "anything of a later generation": _undo(UndoStatus.STARTED, 0, 2),
    "the attempt's end: UNDONE, NOTHING_TO_UNDO": _undo(UndoStatus.UNDONE, 2),
    "the attempt's end: FAILED, UNKNOWN, RELEASED": _undo(UndoStatus.FAILED, 2),
    "the attempt's lease ran out": Timeout("w", TimeoutKind.UNDO, 0, 1, 1, step_id="s1", generation=1, undo_attempt=2),
    "UNDONE of an earlier attempt": _undo(UndoStatus.UNDONE, 1),
    "NOTHING_TO_UNDO, FAILED of an earlier attempt": _undo(UndoStatus.NOTHING_TO_UNDO, 1),
    "UNDONE of an earlier generation": _undo(UndoStatus.UNDONE, 4, 0),
    "a record nobody can read": None,
    "a step of the workflow started": StepEvent("w", "s9", "p", 0, StepStatus.STARTED, "tool"),
    "the workflow failed in the epoch of the command": WorkflowEvent("w", 1, WorkflowStatus.FAILED),
    "it failed in an epoch that had ended": WorkflowEvent("w", 0, WorkflowStatus.FAILED),
    "the time in which it can be undone runs out, or has": Timeout("w", TimeoutKind.WINDOW, 0, 1, 1, step_id="s1"),
    "a person ruled on this undo": _ruling(Decision.ACCEPT_LOSS),
    "a person ruled on the whole plan": _ruling(Decision.REPLAY_PLAN, step=None),
    "evidence of a probe": _ruling(Decision.PRESENT, Party.COMPENSATOR),
}


def ownership_grid() -> Grid:
    own = entry("s1", attempt=2, generation=1)

    def cell(_: str, found: str) -> str:
        facts = [LedgerFact(AS_OF + 1, FOUND[found])]
        match standing_of_undo(run_of(own), own, "me", AS_OF + 2, facts):
            case Owned():
                return "owned: the undo runs"
            case Released():
                return "released: it is mine, its ground has moved; nothing is done or spent"
            case Lost(closed=True):
                return "lost, and the undo is closed"
            case Lost():
                return "lost: nothing is done, nothing is written"

    return grid("between the command's `as_of` and my own STARTED stands", ["so the attempt is"], FOUND, cell)
