"""Who owns an attempt, for everything that may stand between `as_of` and one's own STARTED."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import pytest
from tests.core.stage import AS_OF, WORKFLOW_OFFSET, entry, resend, run_of

from amends.compensators.effects import LedgerFact
from amends.compensators.ownership import Lost, Owned, Released, resend_is_void, standing_of_undo
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

OWN = entry("s1", attempt=2, generation=1)
COMMAND = run_of(OWN)


def undo_event(status: UndoStatus, *, attempt: int = 2, generation: int = 1, step: str = "s1") -> UndoEvent:
    return UndoEvent("w", step, generation, attempt, status, "other")


def step_event(status: StepStatus, *, step: str = "s9", instance: int = WORKFLOW_OFFSET) -> StepEvent:
    return StepEvent("w", step, "a9", 0, status, "tool.s9", workflow_offset=instance)


def announced(*, detached: bool = False, instance: int = WORKFLOW_OFFSET) -> WorkflowEvent:
    status = WorkflowStatus.CHILD_STARTED
    return WorkflowEvent("w", 0, status, workflow_offset=instance, child_workflow_id="c", detached=detached)


def trigger(
    status: WorkflowStatus, *, epoch: int = 1, writer: Party = Party.AGENT, savepoint: str | None = None
) -> WorkflowEvent:
    return WorkflowEvent("w", epoch, status, workflow_offset=WORKFLOW_OFFSET, writer=writer, savepoint=savepoint)


def ruling(decision: Decision, *, step: str | None = "s1", writer: Party = Party.PERSON) -> Resolution:
    return Resolution("w", decision, writer, "ada", step_id=step)


def undo_timeout(attempt: int, generation: int = 1) -> Timeout:
    return Timeout(
        "w", TimeoutKind.UNDO, 0, 1, 1, step_id="s1", generation=generation, undo_attempt=attempt
    )  # fmt: skip


ENDS = [status for status in UndoStatus if status is not UndoStatus.STARTED]
CLOSING = [UndoStatus.UNDONE, UndoStatus.NOTHING_TO_UNDO]

CLOSES: list[Fact | None] = [
    *(undo_event(status, attempt=attempt) for status in CLOSING for attempt in (2, 3)),
    undo_event(UndoStatus.UNDONE, attempt=1),
]
TAKES: list[Fact | None] = [
    None,
    undo_event(UndoStatus.STARTED),
    undo_event(UndoStatus.STARTED, attempt=3),
    undo_event(UndoStatus.STARTED, attempt=0, generation=2),
    *(undo_event(status) for status in ENDS if status not in CLOSING),
    undo_timeout(2),
    undo_timeout(0, generation=2),
]
ASKED = WorkflowStatus.ROLLBACK_REQUESTED
TRIGGERS: list[Fact] = [
    trigger(WorkflowStatus.FAILED),
    trigger(ASKED),
    trigger(ASKED, savepoint="s"),
    trigger(ASKED, epoch=0, writer=Party.PERSON),
    trigger(ASKED, epoch=0, writer=Party.PARENT),
    StepEvent("w", "s9", "a9", 1, StepStatus.FAILED, "tool.s9", workflow_offset=WORKFLOW_OFFSET),
    *(Timeout("w", kind, 1, 1, 1) for kind in (TimeoutKind.HEARTBEAT, TimeoutKind.DEADLINE)),
]
RELEASES: list[Fact | None] = [
    *TRIGGERS,
    step_event(StepStatus.STARTED),
    step_event(StepStatus.STARTED, instance=-1),
    step_event(StepStatus.STARTED, step="s1"),
    announced(),
    announced(instance=-1),
    *(ruling(decision) for decision in Decision),
    ruling(Decision.REPLAY_PLAN, step=None),
    undo_event(UndoStatus.UNDONE, attempt=5, generation=0),
    Timeout("w", TimeoutKind.WINDOW, 0, 1, 1, step_id="s1"),
]
HARMLESS: list[Fact | None] = [
    undo_event(UndoStatus.STARTED, attempt=1),
    *(undo_event(status, attempt=1) for status in ENDS if status is not UndoStatus.UNDONE),
    *(undo_event(status, step="s2") for status in UndoStatus),
    *(step_event(status) for status in StepStatus if status is not StepStatus.STARTED),
    step_event(StepStatus.STARTED, instance=WORKFLOW_OFFSET + 1),
    announced(detached=True),
    announced(instance=WORKFLOW_OFFSET + 1),
    ruling(Decision.ACCEPT_LOSS, step="s2"),
    ruling(Decision.ABSENT, writer=Party.COMPENSATOR),
    undo_timeout(1),
    Timeout("w", TimeoutKind.WINDOW, 0, 1, 1, step_id="s2"),
    undo_timeout(9, generation=0),
    trigger(WorkflowStatus.FAILED, epoch=0),
    trigger(ASKED, epoch=0),
    trigger(ASKED, epoch=0, writer=Party.PERSON, savepoint="s"),
    replace(trigger(WorkflowStatus.FAILED), workflow_offset=WORKFLOW_OFFSET + 1),
    *(Timeout("w", kind, 0, 1, 1) for kind in (TimeoutKind.HEARTBEAT, TimeoutKind.DEADLINE)),
    undo_event(UndoStatus.NOTHING_TO_UNDO, attempt=5, generation=0),
]
KINDS = {"closed": CLOSES, "lost": TAKES, "released": RELEASES, "owned": HARMLESS}
RANK = ["closed", "lost", "released", "owned"]


def kind_of(facts: tuple[Fact | None, ...], *, own_offset: int | None = None) -> str:
    placed = [LedgerFact(AS_OF + 1 + i, fact) for i, fact in enumerate(facts)]
    at = AS_OF + 1 + len(facts) if own_offset is None else own_offset
    match standing_of_undo(COMMAND, OWN, "me", at, placed):
        case Lost(closed=closed):
            return "closed" if closed else "lost"
        case Released():
            return "released"
        case Owned():
            return "owned"


@pytest.mark.parametrize(("kind", "fact"), [(kind, fact) for kind, facts in KINDS.items() for fact in facts])
def test_each_fact_before_ones_own_started_means_one_thing(kind: str, fact: Fact | None) -> None:
    assert kind_of((fact,)) == kind


def test_of_several_facts_the_most_careful_reading_wins_in_every_order() -> None:
    every = [(kind, fact) for kind, facts in KINDS.items() for fact in facts]
    for pair in product(every, repeat=2):
        careful = min((kind for kind, _ in pair), key=RANK.index)
        for order in permutations(pair):
            assert kind_of(tuple(fact for _, fact in order)) == careful, pair


def test_what_stands_after_ones_own_started_or_at_as_of_says_nothing() -> None:
    for fact in (*CLOSES, *TAKES, *RELEASES):
        assert kind_of((fact,), own_offset=AS_OF + 1) == "owned"
        placed = [LedgerFact(AS_OF, fact)]
        assert isinstance(standing_of_undo(COMMAND, OWN, "me", AS_OF + 5, placed), Owned)


@pytest.mark.parametrize("fact", TRIGGERS)
def test_where_all_is_condemned_no_repeated_trigger_releases_an_undo_for_ever(fact: Fact) -> None:
    placed = [LedgerFact(AS_OF + 1, fact)]
    assert isinstance(standing_of_undo(replace(COMMAND, whole=True), OWN, "me", AS_OF + 2, placed), Owned)


def test_ones_own_started_twice_on_the_ledger_is_not_a_stranger() -> None:
    mine = UndoEvent("w", "s1", 1, 2, UndoStatus.STARTED, "me")
    assert kind_of((mine,)) == "owned"


@pytest.mark.parametrize(
    ("fact", "void"),
    [
        (None, True),
        (StepEvent("w", "s1", "a2", 0, StepStatus.STARTED, "t"), True),
        (StepEvent("w", "s1", "a1", 0, StepStatus.STARTED, "t"), False),
        (StepEvent("w", "s1", "mine", 0, StepStatus.STARTED, "t"), False),
        (StepEvent("w", "s1", "a1", 0, StepStatus.SUCCEEDED, "t"), True),
        (StepEvent("w", "s1", "a1", 0, StepStatus.NOT_EXECUTED, "t"), False),
        (StepEvent("w", "s2", "a2", 0, StepStatus.STARTED, "t"), False),
        (undo_event(UndoStatus.STARTED), True),
        (undo_event(UndoStatus.STARTED, step="s2"), False),
        (ruling(Decision.PRESENT, writer=Party.COMPENSATOR), True),
        (ruling(Decision.UNKNOWN, writer=Party.COMPENSATOR), False),
        (ruling(Decision.ACCEPT_LOSS), True),
        (ruling(Decision.ACCEPT_LOSS, step="s2"), False),
        (Timeout("w", TimeoutKind.LADDER, 0, 1, 1, step_id="s1"), True),
        (Timeout("w", TimeoutKind.LADDER, 0, 1, 1, step_id="s2"), False),
        (Timeout("w", TimeoutKind.STEP, 0, 1, 1, step_id="s1", attempt="a1"), False),
    ],
)
def test_a_resend_is_void_once_the_step_moved_on(fact: Fact | None, void: bool) -> None:
    placed = [LedgerFact(AS_OF + 1, fact)]
    assert (resend_is_void(resend(), "mine", AS_OF + 2, placed) is not None) == void
    assert resend_is_void(resend(), "mine", AS_OF + 1, placed) is None
