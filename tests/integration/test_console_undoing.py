"""A person asks that a workflow be undone: it asks, it writes once, and the fold turns what was meant."""

from __future__ import annotations

import json

from tests.integration.test_console_rulings import STEP, Amends, Fold, amends, call, fold

from amends.console.exits import NEEDS_ATTENTION, NOT_FOUND, OK, USAGE
from amends.schemas.facts import StepStatus, WorkflowEvent, WorkflowStatus

__all__ = ["amends", "fold"]  # fixtures

WHY = ("--reason", "a bad prompt", "--by", "ann", "--yes")


def succeeded(fold: Fold) -> None:
    fold.write(
        WorkflowEvent("order-1", 0, WorkflowStatus.STARTED, agent_id="shopper"),
        call(StepStatus.STARTED),
        call(StepStatus.SUCCEEDED),
        WorkflowEvent("order-1", 0, WorkflowStatus.SUCCEEDED),
    )


def phase(fold: Fold) -> str:
    found = fold.partition.workflow("order-1")
    assert found is not None
    return found.header.phase.value


def test_what_succeeded_is_undone_when_a_person_asks(fold: Fold, amends: Amends) -> None:
    succeeded(fold)
    assert phase(fold) == "SUCCEEDED"
    code, out, _ = amends("workflows", "undo", "order-1", *WHY)
    assert (code, "Written to" in out) == (OK, True)
    fold.turn()
    assert phase(fold) == "TURNED"
    found = fold.partition.workflow("order-1")
    assert found is not None
    assert "ann" in found.header.turned_reason
    assert "a bad prompt" in found.header.turned_reason
    assert [s.step_id for s in found.steps if s.undo is not None] == [STEP]


def test_what_is_being_undone_is_not_asked_for_again(fold: Fold, amends: Amends) -> None:
    succeeded(fold)
    amends("workflows", "undo", "order-1", *WHY)
    fold.turn()
    code, out, err = amends("workflows", "undo", "order-1", *WHY)
    assert code == NEEDS_ATTENTION
    assert "being undone already" in out
    assert "nothing to ask for" in err


def test_a_dry_run_writes_nothing(fold: Fold, amends: Amends) -> None:
    succeeded(fold)
    code, out, _ = amends("workflows", "undo", "order-1", *WHY, "--dry-run", "--json")
    assert code == OK
    assert [r["by"] for r in json.loads(out)["requests"]] == ["ann"]
    fold.turn()
    assert phase(fold) == "SUCCEEDED"


def test_a_workflow_nobody_knows_is_said_so(fold: Fold, amends: Amends) -> None:
    succeeded(fold)
    code, _, err = amends("workflows", "undo", "order-2", *WHY)
    assert (code, "order-2" in err) == (NOT_FOUND, True)


def test_a_forgotten_workflow_is_undone_by_its_id(fold: Fold, amends: Amends) -> None:
    succeeded(fold)
    fold.now_ms += 2 * 3_600_000
    fold.write(WorkflowEvent("order-1", 0, WorkflowStatus.HEARTBEAT, workflow_offset=0))
    for emission in fold.partition.outputs(fold.now_ms):
        fold.publisher.publish_sync(emission.topic, key=emission.key, value=emission.value, partition=0)
    code, out, _ = amends("workflows", "undo", "order-1", *WHY, "--dry-run", "--json")
    assert code == OK
    assert [r["workflow_offset"] for r in json.loads(out)["requests"]] == [0]


def test_what_an_agent_did_is_contained(fold: Fold, amends: Amends) -> None:
    succeeded(fold)
    code, _, err = amends("contain", *WHY)
    assert (code, "--agent" in err) == (USAGE, True)
    code, out, _ = amends("contain", "--agent", "somebody-else", *WHY)
    assert (code, "no workflow fits" in out) == (OK, True)
    code, out, _ = amends("contain", "--agent", "shopper", "--since", "1h", *WHY)
    assert (code, "Written to" in out) == (OK, True)
    fold.turn()
    assert phase(fold) == "TURNED"
