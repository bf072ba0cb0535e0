"""The demo's narrator remembers what the ledger says, and never believes an older echo."""

from __future__ import annotations

from amends.local.story.calls import BY_NAME, FORWARD
from amends.local.story.narrator import Narrator
from amends.local.story.scenes import SCENES, Ended, Fate, killing_scene
from amends.schemas.commands import DeadLetter, Incident, IncidentState, Phase, WorkflowEcho
from amends.schemas.facts import StepEvent, StepStatus, Timeout, TimeoutKind, UndoEvent, UndoStatus


def echo(phase: Phase, folded_to: int) -> WorkflowEcho:
    return WorkflowEcho(workflow_id="o-1", workflow_offset=0, epoch=0, phase=phase, folded_to=folded_to)


def incident(state: IncidentState) -> Incident:
    return Incident("i-1", "undo", state, 1, "the label can't be voided", "ask the carrier", workflow_id="o-1")


def words(narrator: Narrator, record: object) -> str:
    line = narrator.see(record)  # type: ignore[arg-type]
    return "" if line is None else line.what


def test_an_undo_is_named_by_its_tool_whoever_tells_of_it() -> None:
    narrator = Narrator()
    assert "payments.charge" in words(narrator, StepEvent("o-1", "s", "a1", 0, StepStatus.STARTED, "payments.charge"))
    assert (
        words(narrator, UndoEvent("o-1", "s", 0, 1, UndoStatus.STARTED, "w"))
        == "starts to undo payments.charge, attempt 2"
    )
    timeout = Timeout("o-1", TimeoutKind.UNDO, 0, 3, 100, step_id="s")
    assert words(narrator, timeout) == "has not heard of the undo of payments.charge for its lease"


def test_a_second_start_of_one_attempt_is_told_as_what_it_is() -> None:
    narrator = Narrator()
    words(narrator, UndoEvent("o-1", "s", 0, 0, UndoStatus.STARTED, "first", tool_name="payments.charge"))
    again = words(narrator, UndoEvent("o-1", "s", 0, 0, UndoStatus.STARTED, "second", tool_name="payments.charge"))
    assert again == "meets an attempt on payments.charge that another began, and leaves it"


def test_a_timeout_is_told_once_however_often_it_is_proposed() -> None:
    narrator = Narrator()
    told = [words(narrator, Timeout("o-1", TimeoutKind.HEARTBEAT, 0, 3, due)) for due in (100, 200)]
    assert told == ["has not heard of the agent for its lease", ""]


def test_a_heartbeat_is_not_worth_a_line() -> None:
    assert words(Narrator(), StepEvent("o-1", "s", "a1", 0, StepStatus.HEARTBEAT, "payments.charge")) == ""


def test_an_older_echo_changes_nothing() -> None:
    narrator = Narrator()
    narrator.see(echo(Phase.COMPENSATED, 9))
    assert words(narrator, echo(Phase.RUNNING, 3)) == ""
    assert narrator.phase("o-1") is Phase.COMPENSATED
    assert narrator.settled("o-1")


def test_a_workflow_is_settled_when_closed_or_when_a_person_was_asked() -> None:
    narrator = Narrator()
    narrator.see(echo(Phase.TURNED, 2))
    assert not narrator.settled("o-1")
    narrator.see(incident(IncidentState.OPEN))
    assert narrator.settled("o-1")
    narrator.see(incident(IncidentState.CLOSED))
    assert not narrator.settled("o-1")


def test_dead_letters_are_kept() -> None:
    narrator = Narrator()
    letter = DeadLetter(
        "o-1", 0, "s", "shipping.buy_label", "shipping", "i-1", "budget", "text", 1, 3, 3, "k", b"{}", b""
    )
    assert "dead letter" in words(narrator, letter)
    assert narrator.dead_letters == [letter]


def test_each_scene_says_what_must_have_become_of_a_failed_order() -> None:
    label, order = FORWARD[2], FORWARD[3]
    killed = SCENES["killed"].expected(Fate(Ended.KILLED, label, "hang_after_effect"))
    assert killed == {"charge": "undone", "reservation": "undone", "label": "undone"}
    unsure = SCENES["killed"].expected(Fate(Ended.KILLED, order, "hang_before_effect"))
    assert unsure == {**killed, "order": "undone or never done"}
    assert SCENES["remote-down"].expected(Fate(Ended.FAILED))["label"] == "standing"
    assert SCENES["irreversible"].expected(Fate(Ended.FAILED))["mail"] == "standing"
    gave_up = SCENES["twenty"].expected(Fate(Ended.GAVE_UP))
    assert set(gave_up.values()) == {"undone or never done"}
    assert "order" in gave_up
    assert SCENES["clean"].expected(Fate(Ended.DONE))["order"] == "standing"


def test_a_seed_is_a_scene_and_seeds_reach_every_call() -> None:
    assert killing_scene(7) == killing_scene(7)
    reached = {(fault.call, fault.fault) for seed in range(300) for fault in killing_scene(seed).faults}
    assert {(call, hang) for call in BY_NAME for hang in ("hang_before_effect", "hang_after_effect")} < reached
