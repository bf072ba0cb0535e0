"""Facts for the laws of the fold: any that can be written about one workflow, sense and nonsense."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from tests.core.ledger import contract_of

from amends.processors.partition import Partition
from amends.processors.terms import Terms
from amends.schemas.codec import encode
from amends.schemas.contract import Contract, Effect, Idempotency
from amends.schemas.decisions import ACKNOWLEDGED, KIND
from amends.schemas.facts import (
    Carry,
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
from amends.schemas.policy import Around, FailedBy, PastPivot, Policy, encode_policy

STEPS = ("s1", "s2", "s3")
START = WorkflowEvent("w", 0, WorkflowStatus.STARTED, agent_id="a", lease_ms=6_000, workflow_offset=-1)
CONTRACTS: tuple[Contract, ...] = (
    contract_of("keyed", call=Idempotency.KEY, undo=Idempotency.KEY, probe=True),
    contract_of("natural", call=Idempotency.NATURAL, undo=Idempotency.NATURAL),
    contract_of("asked", undo=Idempotency.NEITHER, verify=True, probe=True),
    contract_of("neither", undo=Idempotency.NEITHER),
    contract_of("final", effect=Effect.IRREVERSIBLE, undo=None),
    contract_of("reading", effect=Effect.NONE, undo=None),
    contract_of("unclear", effect=Effect.UNCLASSIFIED, undo=None),
    contract_of("elsewhere", lane="nowhere"),
)


@dataclass(frozen=True, slots=True)
class Appended:
    """A fact on the ledger."""

    offset: int
    appended_at_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """A fact, and how long after the one before it is appended. `fact` None: bytes that nobody can read."""

    fact: Fact | None
    after_ms: int


def ledger_of(said: list[Said]) -> list[Appended]:
    at_ms, records = 1_000_000, []
    for offset, one in enumerate(said):
        at_ms += one.after_ms
        value = encode(one.fact) if one.fact is not None else b"\xc3\x01nonsense"
        records.append(Appended(offset, at_ms, b"w", value))
    return records


def partition() -> Partition:
    return Partition(0, Terms())


def step_events() -> st.SearchStrategy[StepEvent]:
    return st.builds(
        _step_event, st.sampled_from(STEPS), st.sampled_from(StepStatus), _ATTEMPTS, _EPOCHS, st.booleans()
    )


def _step_event(step: str, status: StepStatus, attempt: str, epoch: int, known: bool) -> StepEvent:
    contract = CONTRACTS[(STEPS.index(step) + len(attempt)) % len(CONTRACTS)] if step != "s1" else CONTRACTS[0]
    return _event_of(contract, step, status, attempt, epoch, known)


def _event_of(contract: Contract, step: str, status: StepStatus, attempt: str, epoch: int, known: bool) -> StepEvent:
    started = status is StepStatus.STARTED
    return StepEvent(
        "w",
        step,
        attempt,
        epoch,
        status,
        contract.tool_name,
        side_effect_classification=contract.effect,
        writer=Party.COMPENSATOR if attempt.startswith("c") else Party.AGENT,
        contract=encode(contract) if started else None,
        undo_arguments=f'{{"id":"{step}"}}'.encode() if known or status is StepStatus.SUCCEEDED else None,
    )


_ATTEMPTS = st.sampled_from(("p1", "p2", "c1"))
_EPOCHS = st.sampled_from((0, 0, 0, 1, 1, 2))
_SAVEPOINTS = st.sampled_from((None, None, "a", "b"))
FINISH = Policy(failed_calls_max=2, past_pivot=PastPivot.FINISH, finish_attempts_max=1, finish_within_ms=30_000)
HALT = Policy(failed_by=frozenset({FailedBy.ERROR}), around_waiting=Around.HALT)
_SMALL = st.integers(0, 3)
_OFFSETS = st.sampled_from((-1, -1, 0, 0, 7))


def facts() -> st.SearchStrategy[Fact]:
    """Any fact about workflow w: of known and unknown steps, attempts, epochs, generations, versions, instances."""
    some: dict[str, Any] = {"workflow_id": st.just("w"), "workflow_offset": _OFFSETS}
    step = st.sampled_from((*STEPS, "stray"))
    return st.one_of(
        st.sampled_from(CONTRACTS).flatmap(
            lambda contract: st.builds(
                _event_of, st.just(contract), step, st.sampled_from(StepStatus), _ATTEMPTS, _EPOCHS, st.booleans()
            )
        ),
        st.builds(
            WorkflowEvent,
            epoch=_EPOCHS,
            status=st.sampled_from(WorkflowStatus),
            writer=st.sampled_from(Party),
            lease_ms=st.sampled_from((None, 1_000)),
            deadline_ms=st.sampled_from((None, 9_000)),
            savepoint=_SAVEPOINTS,
            instance=st.sampled_from(("", "", "p")),
            attributes=st.sampled_from(({}, {"on_existing": "resume"})),
            **some,
        ),
        st.builds(
            UndoEvent,
            step_id=step,
            generation=_SMALL,
            attempt=_SMALL,
            status=st.sampled_from(UndoStatus),
            owner=st.sampled_from(("o1", "o2")),
            retryable=st.booleans(),
            key_refused=st.booleans(),
            lease_ms=st.sampled_from((None, 1_000)),
            **some,
        ),
        st.builds(
            Resolution,
            decision=st.sampled_from(Decision),
            writer=st.sampled_from((Party.PERSON, Party.COMPENSATOR)),
            by=st.just("someone"),
            step_id=st.one_of(st.none(), step),
            version=st.one_of(st.none(), _SMALL),
            attempts=st.lists(_ATTEMPTS, max_size=3).map(tuple),
            probe_number=st.one_of(st.none(), _SMALL),
            undo_arguments=st.sampled_from((None, b'{"id":"found"}')),
            unread_offset=st.sampled_from((None, None, None, 2)),
            attributes=st.sampled_from(({}, {}, *({KIND: kind} for kind in sorted(ACKNOWLEDGED)))),
            **some,
        ),
        st.builds(
            Timeout,
            kind=st.sampled_from(TimeoutKind),
            epoch=_EPOCHS,
            armed_offset=st.integers(-1, 12),
            due_at_ms=st.just(0),
            step_id=st.one_of(st.none(), step),
            attempt=st.one_of(st.none(), _ATTEMPTS),
            generation=st.one_of(st.none(), _SMALL),
            undo_attempt=st.one_of(st.none(), _SMALL),
            **some,
        ),
        st.just(Carry("w", 0, 0, b"")),
    )


def stories(size_max: int = 25) -> st.SearchStrategy[list[Said]]:
    """A start, and then anything, at any pace; now and then a record that nobody can read."""
    waits = st.sampled_from((0, 0, 1, 50, 900, 4_000, 40_000))
    likely = st.builds(Said, step_events(), waits)
    turn = st.builds(Said, st.just(WorkflowEvent("w", 0, WorkflowStatus.FAILED)), waits)
    anything = st.builds(Said, st.one_of(facts(), facts(), facts(), st.none()), waits)
    rest = st.lists(st.one_of(likely, likely, anything, anything, turn), max_size=size_max)
    return rest.map(lambda said: [Said(START, 0), *said])


def returning_stories(size_max: int = 30) -> st.SearchStrategy[list[Said]]:
    """As `stories`, of agents that take savepoints and undo back to them, under any policy."""
    waits = st.sampled_from((0, 0, 1, 50, 900, 4_000, 40_000))
    likely = st.builds(Said, step_events(), waits)
    taken = st.builds(Said, st.builds(_of_savepoint, st.just(WorkflowStatus.SAVEPOINT), _EPOCHS, _SAVEPOINTS), waits)
    status = st.just(WorkflowStatus.ROLLBACK_REQUESTED)
    undone = st.builds(Said, st.builds(_of_savepoint, status, _EPOCHS, _SAVEPOINTS), waits)
    anything = st.builds(Said, st.one_of(facts(), facts(), st.none()), waits)
    rest = st.lists(st.one_of(likely, likely, likely, taken, undone, anything), max_size=size_max)
    policies = st.sampled_from((None, encode_policy(FINISH), encode_policy(HALT), b"junk"))
    return st.builds(lambda policy, said: [Said(replace(START, policy=policy), 0), *said], policies, rest)


def _of_savepoint(status: WorkflowStatus, epoch: int, name: str | None) -> WorkflowEvent:
    return WorkflowEvent("w", epoch, status, savepoint=name or "a")
