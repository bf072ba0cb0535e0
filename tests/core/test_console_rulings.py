"""A person's ruling reaches what it was taken on and closes it in the real fold, or is refused before it is written."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from tests.core.ledger import Ledger, contract_of

from amends.console.rulings import Refused, Ruling, resolutions
from amends.console.steps import Placed
from amends.processors.breakers import BreakerTerms
from amends.processors.terms import Terms
from amends.schemas.codec import UnreadableRecord, decode, encode
from amends.schemas.commands import Incident, IncidentState, Phase
from amends.schemas.contract import DECLARED, Contract, Effect
from amends.schemas.decisions import BREAKER_OPEN, DECISIONS, TOOL_MENDED, word_of
from amends.schemas.facts import (
    CHANGED_SINCE,
    Decision,
    Fact,
    Failure,
    Party,
    StepStatus,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)
from amends.schemas.family import AS_OF, CHILD_STARTED_OFFSET
from amends.schemas.keys import mended_key

CONTRACTS = {
    "irreversible": contract_of("x", effect=Effect.IRREVERSIBLE, undo=None),
    "unclassified": contract_of("x", effect=Effect.UNCLASSIFIED, undo=None),
    "no_undo": contract_of("x", undo=None),
    "window_closed": contract_of("x", window_ms=1),
    "window_closing": contract_of("x", window_ms=12_000),
}
CASES = [(kind, decision) for kind, decisions in DECISIONS.items() for decision in decisions]


def led_to(kind: str) -> Ledger:
    """Return a ledger that ends in an open incident of `kind`."""
    ledger = Ledger(Terms(breaker=BreakerTerms(failures=1, incident_ms=0)) if kind == BREAKER_OPEN else Terms())
    ledger.start()
    if kind == "unreadable":
        ledger.append(None, raw=b"junk", key=b"w")
        ledger.said(WorkflowStatus.FAILED)
        return ledger
    if kind == "child_waits":
        announced = ledger.append(WorkflowEvent("w", 0, WorkflowStatus.CHILD_STARTED, child_workflow_id="x"))
        ledger.said(WorkflowStatus.FAILED)
        told = {CHILD_STARTED_OFFSET: str(announced), AS_OF: "1"}
        closed = WorkflowStatus.CHILD_CLOSED
        ledger.append(WorkflowEvent("w", 0, closed, child_workflow_id="x", closed_as="TURNED", attributes=told))
        return ledger
    arguments = None if kind == "arguments_missing" else b"{}"
    ledger.started("x", CONTRACTS.get(kind, contract_of("x")), undo_arguments=arguments)
    ledger.ended("x", StepStatus.UNKNOWN if kind == "unknown" else StepStatus.SUCCEEDED)
    ledger.said(WorkflowStatus.FAILED)
    if kind in ("undo_failed", "changed_since"):
        ledger.undo("x", UndoStatus.STARTED)
        error = Failure(CHANGED_SINCE if kind == "changed_since" else "X", "no")
        ledger.append(UndoEvent("w", "x", 0, 0, UndoStatus.FAILED, "o", retryable=False, error=error))
    if kind == BREAKER_OPEN:
        ledger.undo("x", UndoStatus.STARTED)
        ledger.undo("x", UndoStatus.FAILED, retryable=True)
    ledger.wait(10_000)
    return ledger


def incident_of(ledger: Ledger, kind: str) -> Incident:
    return [incident for incident in ledger.of(Incident) if incident.kind == kind][-1]


def placed(ledger: Ledger) -> list[Placed]:
    found = []
    for entry in ledger.entries:
        fact: Fact | None = None
        with suppress(UnreadableRecord):
            fact = decode(entry.value)  # type: ignore[assignment]
        found.append(Placed(entry.offset, entry.appended_at_ms, fact))
    return found


def decide(ledger: Ledger, incident: Incident, decision: Decision, phase: Phase = Phase.TURNED) -> None:
    given = b'{"id": "re_7"}' if decision is Decision.EDIT_ARGS else None
    ruling = Ruling(decision, "ann", "seen at the remote", "pi_1", given)
    for fact in resolutions(incident, ruling, phase=phase, placed=placed(ledger), unread=(), now_ms=ledger.now_ms):
        assert (fact.by, fact.writer, fact.reason) == ("ann", Party.PERSON, "seen at the remote")
        tool = fact.attributes.get(TOOL_MENDED)
        if tool is None:
            ledger.append(fact)
        else:
            ledger.append(None, raw=encode(fact), key=mended_key(tool))


@pytest.mark.parametrize(("kind", "decision"), CASES)
def test_each_decision_an_incident_takes_closes_it(kind: str, decision: Decision) -> None:
    ledger = led_to(kind)
    assert ledger.incidents() == {kind: "OPEN"}
    decide(ledger, incident_of(ledger, kind), decision)
    assert ledger.incidents() == {kind: "CLOSED"}
    expected = {
        Decision.RETRY: "TURNED",
        Decision.EDIT_ARGS: "TURNED",
        Decision.PRESENT: "TURNED",
        Decision.ACCEPT_LOSS: "CLOSED_WITH_LOSS",
    }
    assert ledger.phase == expected.get(decision, "COMPENSATED")


@pytest.mark.parametrize("decision", [Decision.MARK_UNDONE, Decision.RETRY])
def test_a_decision_on_an_older_version_changes_nothing(decision: Decision) -> None:
    ledger = led_to("undo_failed")
    seen = incident_of(ledger, "undo_failed")
    decide(ledger, seen, Decision.RETRY)
    ledger.undo("x", UndoStatus.STARTED, generation=1)
    ledger.undo("x", UndoStatus.FAILED, generation=1, retryable=False)
    decide(ledger, seen, decision)
    assert ledger.incidents() == {"undo_failed": "OPEN"}


@pytest.mark.parametrize(("kind", "decision"), [(k, d) for k in DECISIONS for d in Decision if d not in DECISIONS[k]])
def test_a_decision_that_the_incident_does_not_take_is_refused_with_those_it_takes(
    kind: str, decision: Decision
) -> None:
    ledger = led_to(kind)
    with pytest.raises(Refused, match=word_of(DECISIONS[kind][0])):
        decide(ledger, incident_of(ledger, kind), decision)


def test_a_closed_incident_and_one_that_no_decision_closes_are_refused() -> None:
    ledger = led_to("undo_failed")
    incident = incident_of(ledger, "undo_failed")
    with pytest.raises(Refused, match="was closed by bob") as refused:
        decide(ledger, replace(incident, state=IncidentState.CLOSED, closed_by="bob"), Decision.RETRY)
    assert refused.value.late
    for stranger in (replace(incident, kind="lane_missing"), replace(incident, workflow_id="", kind="unreadable")):
        with pytest.raises(Refused, match="no decision closes"):
            decide(ledger, stranger, Decision.MARK_ABSENT)


def test_evidence_names_every_attempt_and_is_refused_while_one_is_open_or_known_to_have_succeeded() -> None:
    ledger = led_to("unknown")
    incident = incident_of(ledger, "unknown")
    ledger.started("x", contract_of("x"), attempt="p2")
    with pytest.raises(Refused, match="has not ended"):
        decide(ledger, incident, Decision.MARK_ABSENT)
    ledger.ended("x", StepStatus.UNKNOWN, attempt="p2")
    ruling = Ruling(Decision.MARK_ABSENT, "ann", "asked them")
    (fact,) = resolutions(incident, ruling, phase=Phase.TURNED, placed=placed(ledger), unread=(), now_ms=1)
    assert fact.attempts == ("p1", "p2")
    ledger.ended("x", StepStatus.SUCCEEDED, attempt="p2")
    with pytest.raises(Refused, match="it is known that x happened"):
        decide(ledger, incident, Decision.MARK_ABSENT)


def test_of_a_call_that_a_claim_of_success_waits_for_only_evidence_decides() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.started("x", contract_of("x"))
    ledger.ended("x", StepStatus.UNKNOWN)
    ledger.said(WorkflowStatus.SUCCEEDED)
    ledger.wait(10_000)
    incident = incident_of(ledger, "unknown")
    with pytest.raises(Refused, match="present or mark-absent"):
        decide(ledger, incident, Decision.ACCEPT_LOSS, Phase.FINISHING)
    decide(ledger, incident, Decision.PRESENT, Phase.FINISHING)
    assert (ledger.phase, ledger.incidents()) == ("SUCCEEDED", {"unknown": "CLOSED"})


def test_each_record_that_nobody_could_read_is_ruled_on_once_even_that_of_a_start() -> None:
    ledger = Ledger()
    ledger.append(None, raw=b"junk", key=b"w")
    ledger.append(None, raw=b"more junk", key=b"w")
    incident = incident_of(ledger, "unreadable")
    decide(ledger, incident, Decision.MARK_ABSENT)
    assert ledger.incidents() == {"unreadable": "CLOSED"}
    with pytest.raises(Refused, match="neither ledger nor dead-letter topic"):
        decide(ledger, incident, Decision.MARK_ABSENT)


# --- what the incident says -------------------------------------------------------------------------------------------


def test_the_incident_names_the_command_that_decides_it_and_says_nothing_of_an_undo_never_attempted() -> None:
    failed = incident_of(led_to("undo_failed"), "undo_failed")
    assert f"amends incidents resolve {failed.incident_id[:8]} --decision DECISION --reason TEXT" in failed.detail
    assert "(DECISION: retry, edit-args, mark-undone, accept-loss)" in failed.detail
    assert "The undo's key at the remote: amends-undo-" in failed.detail
    for kind in ("no_undo", "irreversible", "arguments_missing"):
        detail = incident_of(led_to(kind), kind).detail
        assert "The undo's key" not in detail
        assert "Attempts spent" not in detail
        assert "When this was opened:\nbeing undone" in detail


def test_arguments_that_could_not_be_resolved_are_told_from_an_output_that_was_never_seen() -> None:
    assert "never seen" in incident_of(led_to("arguments_missing"), "arguments_missing").detail
    ledger = Ledger()
    ledger.start()
    ledger.started("x", contract_of("x"), undo_arguments=None)
    ledger.ended("x", StepStatus.SUCCEEDED, output_payload=b'{"id": null}')
    ledger.said(WorkflowStatus.FAILED)
    detail = incident_of(ledger, "arguments_missing").detail
    assert "could not be resolved from the output" in detail
    assert "never seen" not in detail


def test_a_class_declared_without_an_undo_is_told_from_none_declared() -> None:
    declared: Contract = replace(CONTRACTS["unclassified"], attributes={DECLARED: "compensable"})
    for contract, words in ((declared, "is declared compensable and has no undo"), (None, "has no declared class")):
        ledger = Ledger()
        ledger.start()
        ledger.did("x", contract or CONTRACTS["unclassified"])
        ledger.said(WorkflowStatus.FAILED)
        assert words in incident_of(ledger, "unclassified").detail
