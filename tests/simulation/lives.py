"""What one agent does from its first fact to its last, as a generator of the producers' own effects."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from tests.simulation.pipeline import Pipeline
from tests.simulation.scripts import Alone, Child, Script
from tests.simulation.world import Declined, Tool

from amends.producers.effects import AwaitStanding, NameSavepoints, Raised, Returned, WriteFact
from amends.producers.family import Announced, Reference, announce_flow, reference_flow
from amends.producers.flow import call_flow
from amends.producers.known_steps import KnownStep
from amends.producers.outcome import Call
from amends.producers.savepoint_flow import savepoint_flow, undo_to_flow
from amends.producers.scope import Scope
from amends.producers.scope_flow import Outcome, claim_flow, fail_flow, open_flow
from amends.producers.story import Story
from amends.schemas.facts import WorkflowEvent, WorkflowStatus
from amends.schemas.family import CHILD_STARTED_OFFSET
from amends.tools.errors import AmendsError, EpochEnded, NotConfirmed, WorkflowTurned

UNDONE_WITHIN_MS = 20_000
GONE = ("undone", "there was nothing to undo", "did not happen")
"""The fates of which an agent may believe that nothing is left."""
WAITS_MAX = 3
"""How often an agent goes on to wait for the end of one undoing."""
BACKS_MAX = 3
"""How often one process of an agent goes back because of trouble."""


class Told(Enum):
    """What an agent last heard of one of its calls."""

    DONE = "it was done"
    REFUSED = "the remote refused"
    NOT_CALLED = "the tool was not called"
    UNKNOWN = "nobody knows"


@dataclass(frozen=True, slots=True)
class Heard:
    """A story that an agent was told: what was undone since a savepoint, and which steps may still be there."""

    at_ms: int
    who: str
    epoch: int  # in which it goes on
    left: frozenset[str]
    as_of: int  # the fact as of which it is true


@dataclass(slots=True)
class Belief:
    """What the agents of one workflow were told, over all their processes."""

    calls: dict[str, Told] = field(default_factory=dict)
    ends: list[tuple[int, Outcome | AmendsError]] = field(default_factory=list)
    stories: list[Heard] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)  # calls planned twice that were not one
    plans: bool = False
    processes: int = 0
    disturbed: bool = False  # one of them was killed, or slept


@dataclass(frozen=True, slots=True)
class Think:
    """An agent thinks before it does the next thing."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class Begin:
    """An agent begins a child, and may wait for its end."""

    child: Child
    parent: Reference


class Counts(Protocol):
    """What a life wants of its process."""

    name: str

    def attempts_made(self) -> int: ...


Life = Generator[Any, Any, None]


class Agent:
    """One run of one script."""

    def __init__(
        self,
        pipeline: Pipeline,
        script: Script,
        belief: Belief,
        scope: Scope,
        process: Counts,
        parent: Reference | None,
        alone: Alone | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._script = script
        self._belief = belief
        self._scope = scope
        self._process = process
        self._ids: dict[int, str] = {}  # what calls have returned
        self._went: set[int] = set()  # which changes of mind are over
        self._troubles = 0
        self._parent = parent
        self._has_lives = bool(pipeline.mix.may_live_again or parent)  # a child is begun again, however late
        self._begun: list[Child] = []
        self._alone = alone
        self._plans = 0
        self.calling: tuple[Tool, dict[str, Any]] = (script.tools[0], {})

    def play(self) -> Life:
        """Live. Errors of amends end it as they end a `with` block."""
        try:
            yield from self._live()
        except (EpochEnded, NotConfirmed) as error:
            self._ended((yield from fail_flow(self._scope.terms, error)))
        except AmendsError as error:
            self._ended(error)

    def _live(self) -> Life:
        scope, script = self._scope, self._script
        yield from self._open()
        number = 0
        while number < len(script.tools):
            if number in script.savepoints:
                yield from self._save(number)
            for child in script.children:
                if child.before == number and child not in self._begun:
                    yield from self._begin(child)
            if script.thinks_ms:
                yield Think(self._pipeline.chance.randint(0, script.thinks_ms))
            try:
                good = yield from self._try(number)
            except EpochEnded:  # somebody else had part of it undone
                number = yield from self._go_on(number)
                continue
            to = self._change_of_mind(number, good=good)
            if to is not None:
                number = yield from self._back(to, number)
            elif not good and script.on_trouble != "skip":
                self._ended((yield from fail_flow(scope.terms, RuntimeError("a call failed"))))
                return
            else:
                number += 1
        if script.fails_at_the_end:
            self._ended((yield from fail_flow(scope.terms, RuntimeError("changed its mind"))))
        else:
            self._ended((yield from claim_flow(scope.terms)))

    def _open(self) -> Life:
        """Open the scope: as a child, as who stands alone, or as one of whom it is told that he does."""
        opening = open_flow(self._scope.opening, None if self._alone is not None else self._parent)
        if self._alone is not Alone.TOLD or self._parent is None:
            yield from opening
            return
        announced = yield from _told_alone(announce_flow(self._scope.terms, self._parent), self._parent)
        yield from _told_alone(opening, self._parent, announced)

    def _begin(self, child: Child) -> Life:
        self._begun.append(child)
        try:
            reference = yield from reference_flow(self._scope.terms)
        except AmendsError as error:
            self._say(f"begins no child: {type(error).__name__}")  # the next call says why
            return
        yield Begin(child, reference)

    # --- savepoints -------------------------------------------------------------------------------------------------

    def _save(self, number: int) -> Life:
        try:
            yield from savepoint_flow(self._scope.terms, f"s{number}")
        except WorkflowTurned:
            return  # the next call says so
        except AmendsError as error:
            self._say(f"savepoint s{number}: {type(error).__name__}")

    def _change_of_mind(self, number: int, *, good: bool) -> int | None:
        for index, back in enumerate(self._script.backs):
            if back.after == number and index not in self._went:
                self._went.add(index)
                return back.to
        before = [n for n in self._script.savepoints if n <= number]
        if good or self._script.on_trouble != "back" or not before or self._troubles >= BACKS_MAX:
            return None
        self._troubles += 1
        return max(before)

    def _go_on(self, number: int) -> Generator[Any, Any, int]:
        """Part of what was done is being undone: wait for it, and be told."""
        standing = self._scope.standing
        names: tuple[str, ...] = (yield NameSavepoints(standing)) if standing is not None else ()
        if not names or self._troubles >= BACKS_MAX:
            raise EpochEnded("no savepoint is left to go on from")
        self._troubles += 1
        return (yield from self._back(int(names[-1][1:]), number))

    def _back(self, to: int, number: int) -> Generator[Any, Any, int]:
        """Have everything undone since a savepoint; return the call to go on with."""
        name = f"s{to}"
        for _ in range(WAITS_MAX):
            try:
                story = yield from undo_to_flow(self._scope.terms, name, "changed its mind", UNDONE_WITHIN_MS)
            except NotConfirmed:
                continue
            except WorkflowTurned:
                raise
            except AmendsError as error:
                self._say(f"undo to {name}: {type(error).__name__}")
                return number + 1
            return self._hear(story, to)
        raise NotConfirmed(f"{name} is still being undone to")

    def _hear(self, story: Story, to: int) -> int:
        """Believe what is told: what was undone is over."""
        self._say(f"is told: {len(story.steps)} undone, {len(story.open)} left to people")
        left = frozenset(s.step_id for s in story.steps if s.fate not in GONE)
        now_ms, as_of = self._pipeline.schedule.now_ms, self._scope._folded_to
        self._belief.stories.append(Heard(now_ms, self._process.name, story.epoch, left, as_of))
        over = [number for number in range(len(self._script.tools)) if self._is_over(number, story)]
        return min([to, *over]) if self._script.is_careful else to

    def _is_over(self, number: int, story: Story | None = None) -> bool:
        """Whether the last step of a call was condemned; what was believed of it is forgotten then. Of a call that only
        another process made, and that this one has not read, the story tells."""
        standing, step = self._scope.standing, self._step_of(number)
        if standing is None:
            return False
        is_told = any(told.tool_name == self._script.tools[number].name for told in (story.steps if story else ()))
        if not (is_told if step is None else step.condemned(standing.turns)):
            return False
        self._belief.calls.pop(f"call-{number}", None)
        self._ids.pop(number, None)
        return True

    def _step_of(self, number: int) -> KnownStep | None:
        """Return the last step of a call that may have had an effect, whichever process made it, that stands if there
        is one; else the last. A plan's ids are of no use for that, but the tool of a call is of it alone."""
        found, standing = self._steps_of(number), self._scope.standing
        took = [step for step in found if step.may_stand()]
        stand = [step for step in took if standing is None or not step.condemned(standing.turns)]
        return next(reversed(stand or took or found), None)

    def _steps_of(self, number: int) -> list[KnownStep]:
        steps, tool = self._scope._book._steps.values(), self._script.tools[number].name
        if self._script.plans:
            return [step for step in steps if step.tool_name == tool]
        return [step for step in steps if step.call_id == f"call-{number}"]

    # --- calls ------------------------------------------------------------------------------------------------------

    def _try(self, number: int) -> Generator[Any, Any, bool]:
        tool = self._script.tools[number]
        call_id = f"call-{number}"
        told = self._script.told[number] if self._script.told else ()
        after = tuple(f"call-{base}" for base in told)
        if self._script.plans:
            after = tuple(step.step_id for step in map(self._step_of, told) if step is not None)
        calls = self._belief.calls
        for _ in range(self._script.tries_max):
            if self._has_lives and (yield AwaitStanding()) is None:
                continue  # nobody has said yet which life this is, and so what the call is about
            given = self._given(number, tool)
            call = self._call(tool, given, call_id, after)
            self.calling = (tool, given)
            before = self._process.attempts_made()
            try:
                result = yield from call_flow(call, self._scope.terms)
            except WorkflowTurned:
                raise
            except AmendsError as error:
                self._say(f"{call_id}: {type(error).__name__}")
                # Of a call that is open or unknown from before, the refusal says nothing new.
                attempted = self._process.attempts_made() > before
                if attempted and calls.get(call_id) in (None, Told.NOT_CALLED, Told.REFUSED):
                    calls[call_id] = Told.NOT_CALLED
                continue
            if isinstance(result, Returned) and result.value.get("status") == "pending":
                calls[call_id] = Told.UNKNOWN
                return True
            if isinstance(result, Returned):
                calls[call_id] = Told.DONE
                self._ids[number] = result.value["id"]
                if number in self._script.doubles:
                    yield from self._plan_again(number, tool, given)
                return True
            refused = isinstance(result, Raised) and isinstance(result.error, Declined)
            known_before = calls.get(call_id)
            if not refused:
                calls[call_id] = Told.UNKNOWN
            elif known_before is not Told.UNKNOWN:
                calls[call_id] = Told.REFUSED
        return False

    def _call(self, tool: Tool, given: dict[str, Any], call_id: str, after: tuple[str, ...]) -> Call:
        if not self._script.plans:
            return Call(tool.contract, tool.contract_bytes, given, call_id=call_id, after=after, capture=tool.capture)
        self._plans += 1
        planned = f"{self._process.name}:{self._plans}"
        return Call(tool.contract, tool.contract_bytes, given, tool_call_id=planned, after=after, capture=tool.capture)

    def _plan_again(self, number: int, tool: Tool, given: dict[str, Any]) -> Life:
        """The model forgets that it made a call. It is given what is recorded, or refused: nothing is made for it. What
        is recorded may be what another process made of the same call, or made of it in a later epoch."""
        call = self._call(tool, given, "", ())
        made_before = self._process.attempts_made()
        self.calling = (tool, given)
        try:
            result = yield from call_flow(call, self._scope.terms)
        except WorkflowTurned:
            raise
        except AmendsError as error:
            self._say(f"call-{number}, planned again: {type(error).__name__}")
            return
        before, again = self._ids[number], result.value["id"] if isinstance(result, Returned) else result
        made = {f"{self._process.name}/{n}" for n in range(made_before + 1, self._process.attempts_made() + 1)}
        is_made = any(deed.id == again and deed.attempt in made for deed in self._pipeline.world.deeds)
        if is_made and not self._is_over(number):
            self._belief.doubled.append(f"call-{number} was {before}; planned again it was {again}")

    def _given(self, number: int, tool: Tool) -> dict[str, Any]:
        """The arguments of a call: what it is about, and ids that earlier calls returned."""
        given: dict[str, Any] = {"subject": self._subject(number, tool)}
        bases = self._script.bases[number] if self._script.bases else ()
        if bases:
            given["on"] = [self._ids[base] for base in bases if base in self._ids]
        return given | ({"account": tool.account} if tool.account else {})

    def _subject(self, number: int, tool: Tool) -> str:
        """What a call is about. Where the undo knows the effect by its subject alone, no two effects share one: an undo
        that is late must not meet what the next epoch, or the next life, did."""
        subject = f"{self._script.workflow_id}/call-{number}"
        over, standing = self._is_over(number), self._scope.standing
        if not tool.kind.from_input or standing is None:
            return subject
        step = None if over else self._step_of(number)
        found = self._steps_of(number)
        if step is None and found and not found[-1].condemned(standing.turns):
            step = found[-1]  # nobody knows that it took, but what it was about it is about
        epoch = standing.epoch if step is None else step.epoch
        life = standing.workflow_offset if self._has_lives else 0
        return f"{subject}@{life}.{epoch}" if life or epoch else subject

    # --- ends -------------------------------------------------------------------------------------------------------

    def _ended(self, how: Outcome | AmendsError) -> None:
        self._say(f"ends: {type(how).__name__}")
        self._belief.ends.append((self._pipeline.schedule.now_ms, how))

    def _say(self, what: str) -> None:
        self._pipeline.schedule.say(self._process.name, what)


def _told_alone(
    flow: Generator[Any, Any, Any], parent: Reference, announced: Announced | None = None
) -> Generator[Any, Any, Any]:
    """Have the facts of a flow say that the workflow stands alone, as another language's client may."""
    effect = next(flow)
    while True:
        if isinstance(effect, WriteFact) and isinstance(effect.fact, WorkflowEvent):
            fact = replace(effect.fact, detached=True)
            if announced is not None and fact.status is WorkflowStatus.STARTED:
                fact = replace(
                    fact,
                    parent_workflow_id=parent.workflow_id,
                    parent_workflow_offset=parent.workflow_offset,
                    child_started_at_ms=announced.at_ms,
                    attributes={**fact.attributes, CHILD_STARTED_OFFSET: str(announced.offset)},
                )
            effect = WriteFact(fact)
        answer = yield effect
        try:
            effect = flow.send(answer)
        except StopIteration as stop:
            return stop.value
