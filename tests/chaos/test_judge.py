"""The judge of the chaos sees each broken promise: a judge that sees nothing would find every run right."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.chaos.judge import Case, judge
from tests.chaos.outside import Effect

from amends.schemas.commands import EndedEpoch, Incident, IncidentState, Phase, WorkflowEcho
from amends.schemas.facts import (
    Fact,
    Party,
    StepEvent,
    StepStatus,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)

NAME = "w"


@dataclass
class World:
    """Builds a case: `serial` counts what the remotes were asked, `facts` what stands on the ledger."""

    serial: int = 0
    effects: list[Effect] = field(default_factory=list)
    facts: list[tuple[int, Fact]] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    parent: Case | None = None

    def call(self, kind: str) -> None:
        self._fact(StepEvent(NAME, kind, f"{kind}-1", 0, StepStatus.STARTED, f"chaos.{kind}"))

    def make(self, kind: str) -> Effect:
        self.call(kind)
        effect = Effect(f"{kind}-{len(self.effects)}", kind, "key", self._next())
        self.effects.append(effect)
        self._fact(StepEvent(NAME, kind, f"{kind}-1", 0, StepStatus.SUCCEEDED, f"chaos.{kind}"))
        return effect

    def start_undo(self, effect: Effect) -> None:
        self._fact(UndoEvent(NAME, effect.kind, 0, 1, UndoStatus.STARTED, "o", tool_name=f"chaos.{effect.kind}"))

    def undo(self, effect: Effect) -> None:
        self.start_undo(effect)
        effect.undone_serials.append(self._next())
        self._fact(UndoEvent(NAME, effect.kind, 0, 1, UndoStatus.UNDONE, "o", tool_name=f"chaos.{effect.kind}"))

    def ask_a_person(self, kind: str, why: str = "unknown") -> None:
        found = Incident(kind, why, IncidentState.OPEN, 1, "?", "", NAME, 0, kind, f"chaos.{kind}")
        self.incidents.append(found)

    def judged(self, phase: Phase | None, said: str = "", undone_to: int | None = None) -> list[str]:
        """Return the numbers of the promises that were broken."""
        return sorted(problem[0] for problem in judge(self.case(phase, said, undone_to)))

    def case(self, phase: Phase | None, said: str = "", undone_to: int | None = None, name: str = NAME) -> Case:
        turns = () if undone_to is None else (EndedEpoch(0, undone_to),)
        echo = None if phase is None else WorkflowEcho(name, 0, 1, phase, 99, turns=turns)
        return Case(name, self.effects, self.facts, echo, self.incidents, said, self.incidents, self.parent)

    def announce_child(self) -> None:
        status = WorkflowStatus.CHILD_STARTED
        self._fact(WorkflowEvent("above", 0, status, child_workflow_id=NAME))

    def _next(self) -> int:
        self.serial += 1
        return self.serial

    def _fact(self, fact: Fact) -> None:
        self.facts.append((len(self.facts), fact))


def test_what_is_undone_last_in_first_out_is_right() -> None:
    world = World()
    first, second = world.make("keyed"), world.make("plain")
    world.undo(second)
    world.undo(first)
    assert world.judged(Phase.COMPENSATED, "failed Refused") == []


def test_an_effect_that_is_left_and_that_no_person_was_asked_about_breaks_the_first_promise() -> None:
    world = World()
    world.make("blind")
    assert world.judged(Phase.COMPENSATED) == ["1"]
    world.ask_a_person("blind")
    assert world.judged(Phase.TURNED) == []


def test_what_was_made_may_stand_while_a_person_is_asked_how_an_unknown_call_of_a_claimed_success_ended() -> None:
    world = World()
    world.make("keyed")
    assert world.judged(Phase.FINISHING, "Unconfirmed") == ["1"]
    world.ask_a_person("blind")
    assert world.judged(Phase.FINISHING, "Unconfirmed") == []
    assert world.judged(Phase.TURNED, "Unconfirmed") == ["1"]


def test_behind_the_savepoint_that_was_gone_back_to_all_is_undone_and_before_it_all_stands() -> None:
    world = World()
    first, savepoint = world.make("keyed"), len(world.facts) - 1
    second = world.make("plain")
    assert world.judged(Phase.SUCCEEDED, "Succeeded", savepoint) == ["1"]
    world.undo(second)
    assert world.judged(Phase.SUCCEEDED, "Succeeded", savepoint) == []
    world.undo(first)
    assert world.judged(Phase.SUCCEEDED, "Succeeded", savepoint) == ["4"]


def test_what_was_made_may_stand_while_a_person_sees_to_an_undo_behind_a_savepoint() -> None:
    world = World()
    world.make("keyed")
    savepoint = len(world.facts) - 1
    world.make("blind")
    world.ask_a_person("blind", "undo_failed")
    assert world.judged(Phase.FINISHING, "Unconfirmed", savepoint) == []


def test_a_second_start_of_an_undo_that_has_ended_says_nothing_about_its_order() -> None:
    world = World()
    first = world.make("keyed")
    world.undo(first)
    world.make("plain")
    world.start_undo(first)
    assert world.judged(Phase.TURNED) == ["1"], "what is left is the later one, in no wrong order"


def test_what_nothing_takes_back_may_stand_where_a_person_is_asked_about_it() -> None:
    world = World()
    first = world.make("keyed")
    world.make("final")
    world.undo(first)
    assert world.judged(Phase.TURNED, "failed Refused") == ["1", "3"]
    world.ask_a_person("final")
    assert world.judged(Phase.TURNED, "failed Refused") == []


def test_an_effect_that_the_ledger_never_knew_breaks_the_first_promise() -> None:
    world = World()
    world.make("plain")
    world.facts.clear()
    assert world.judged(None) == ["1"]


def test_an_effect_that_is_undone_twice_breaks_the_second_promise() -> None:
    world = World()
    effect = world.make("keyed")
    world.undo(effect)
    world.undo(effect)
    assert world.judged(Phase.COMPENSATED) == ["2"]


def test_an_effect_that_is_undone_before_what_was_made_after_it_breaks_the_third_promise() -> None:
    world = World()
    first, second = world.make("keyed"), world.make("plain")
    world.undo(first)
    world.undo(second)
    assert world.judged(Phase.COMPENSATED) == ["3"]


def test_an_effect_that_came_to_light_after_the_undo_had_started_breaks_no_order() -> None:
    world = World()
    first = world.make("keyed")
    world.undo(first)
    late = world.make("plain")
    world.undo(late)
    assert world.judged(Phase.COMPENSATED) == []


def test_a_call_that_is_sent_again_after_later_ones_were_undone_breaks_no_order() -> None:
    world = World()
    world.call("natural")
    second = world.make("plain")
    world.undo(second)
    world.undo(world.make("natural"))
    assert world.judged(Phase.COMPENSATED) == []


def test_an_effect_of_a_success_that_is_undone_breaks_the_fourth_promise() -> None:
    world = World()
    world.undo(world.make("natural"))
    assert world.judged(Phase.SUCCEEDED) == ["4"]


def test_an_effect_that_is_made_twice_in_a_success_breaks_the_fifth_promise() -> None:
    world = World()
    world.make("plain")
    world.make("plain")
    assert world.judged(Phase.SUCCEEDED, "Succeeded") == ["5"]


def test_an_incident_about_what_the_remote_could_be_asked_breaks_the_sixth_promise() -> None:
    world = World()
    world.make("plain")
    world.ask_a_person("plain")
    assert world.judged(Phase.TURNED) == ["6"]


def test_an_agent_that_is_told_what_is_not_so_breaks_the_seventh_promise() -> None:
    assert World().judged(Phase.COMPENSATED, "Succeeded") == ["7"]
    assert World().judged(Phase.SUCCEEDED, "failed Broken") == ["7"]
    assert World().judged(Phase.SUCCEEDED, "told WorkflowTurned") == ["7"]


def _family() -> tuple[World, World]:
    """A parent that made something and then began a child, which did so too."""
    above = World()
    above.make("keyed")
    above.announce_child()
    child = World(serial=10)
    child.make("plain")
    return above, child


def test_what_a_child_did_and_said_may_be_taken_back_by_its_parent() -> None:
    above, child = _family()
    child.undo(child.effects[0])
    child.parent = above.case(Phase.COMPENSATED, name="above")
    above.effects[0].undone_serials.append(30)
    assert child.judged(Phase.COMPENSATED, "Succeeded") == []
    child.parent = above.case(Phase.SUCCEEDED, name="above")
    assert child.judged(Phase.COMPENSATED, "Succeeded") == ["7"]


def test_a_child_that_stands_below_a_parent_that_is_undone_breaks_the_first_promise() -> None:
    above, child = _family()
    child.parent = above.case(Phase.TURNED, name="above")
    assert child.judged(Phase.SUCCEEDED, "Succeeded") == ["1"]
    child.parent = above.case(Phase.SUCCEEDED, undone_to=1, name="above")
    assert child.judged(Phase.SUCCEEDED, "Succeeded") == ["1"], "behind the savepoint that its parent went back to"
    child.parent = above.case(Phase.SUCCEEDED, undone_to=2, name="above")
    assert child.judged(Phase.SUCCEEDED, "Succeeded") == []


def test_what_a_parent_made_before_a_child_and_undid_before_it_breaks_the_third_promise() -> None:
    above, child = _family()
    above.effects[0].undone_serials.append(11)
    child.parent = above.case(Phase.COMPENSATED, name="above")
    child.undo(child.effects[0])
    assert child.judged(Phase.COMPENSATED, "Succeeded") == ["3"]


def test_a_child_that_was_never_begun_needs_no_answer() -> None:
    world = World()
    status = WorkflowStatus.ROLLBACK_REQUESTED
    world.facts.append((0, WorkflowEvent(NAME, 0, status, writer=Party.PARENT)))
    assert world.judged(None) == []
    world.facts.append((1, WorkflowEvent(NAME, 0, WorkflowStatus.STARTED)))
    assert world.judged(None) == ["6"]
