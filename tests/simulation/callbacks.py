"""Remotes that take a request (202) and do it later, or drop it, and the door by which their callbacks come in.

What a callback becomes on the ledger is decided by the real `settling.fact_of`; the door writes it until it stands
there, as a remote sends its webhook until it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.decoding import decoded
from tests.simulation.schedule import Process
from tests.simulation.world import LATER_MS, Said, Tool

from amends.compensators.effects import CallUndo
from amends.processors.memory import StoredRecord
from amends.producers.effects import Invoke
from amends.producers.settling import CallbackAnswer, fact_of
from amends.schemas.commands import ResendCommand
from amends.schemas.facts import Fact, StepEvent
from amends.tools.answers import Absent, AlreadyUndone, NotUndone, Present, Undone
from amends.tools.callbacks import CallbackToken

if TYPE_CHECKING:
    from tests.simulation.pipeline import Pipeline

TRIES_MAX = 4


class Doors(Process):
    """The remotes' work, and what they say of it."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__("door", "callbacks")
        self._pipeline = pipeline
        self._taken: dict[str, str] = {}  # what is under way under a key, of remotes that take one: who asked first

    def take_call(self, tool: Tool, given: dict[str, Any], asked: Invoke, workflow_id: str) -> None:
        token = CallbackToken(workflow_id, asked.workflow_offset, asked.step_id, asked.attempt, asked.started_offset)
        self._take(tool, given, asked.key, asked.attempt, token)

    def take_again(self, tool: Tool, given: dict[str, Any], command: ResendCommand, attempt: str) -> None:
        token = CallbackToken(
            command.workflow_id, command.workflow_offset, command.step_id, attempt, command.started_offset
        )
        self._take(tool, given, command.key, attempt, token)

    def _take(self, tool: Tool, given: dict[str, Any], key: str, attempt: str, token: CallbackToken) -> None:
        pipeline, keyed = self._pipeline, tool.kind.call != "neither"
        if keyed and key in self._taken:
            return  # one request, whoever sends it again
        self._taken[key] = attempt
        pipeline.world.pending[key] += 1
        pipeline.schedule.say("world", f"{tool.name} {given['subject']} is taken ({attempt})")

        def do() -> None:
            pipeline.world.pending[key] -= 1
            self._taken.pop(key, None)
            if pipeline.happens(pipeline.mix.later_dropped):
                pipeline.schedule.say("world", f"{tool.name} {given['subject']} is dropped ({attempt})")
                self._call_back(token, Absent("dropped"))
                return
            deed = pipeline.world.call(tool, given, key, attempt, pipeline.schedule.now_ms, refuse=False)
            pipeline.schedule.say("world", f"{tool.name} {given['subject']} did {deed and deed.number} ({attempt})")
            if deed is not None:
                self._call_back(token, Present(deed.output))

        pipeline.schedule.after(self._takes_ms(), do)

    def take_undo(self, tool: Tool, asked: CallUndo, arguments: Any, owner: str) -> None:
        pipeline, entry, command = self._pipeline, asked.entry, asked.command
        token = CallbackToken(
            command.workflow_id,
            command.workflow_offset,
            entry.step_id,
            str(entry.attempt),
            entry.started_offset,
            entry.generation,
            owner,
        )

        target = pipeline.world.target(tool, arguments)
        number = -1 if target is None else target.number
        pipeline.world.undoing[number].append(owner)

        def do() -> None:
            pipeline.world.undoing[number].remove(owner)
            if pipeline.happens(pipeline.mix.later_dropped):
                self._call_back(token, NotUndone("dropped"))
                return
            said = pipeline.world.undo(tool, arguments, entry.key, owner, pipeline.schedule.now_ms, refuse=False)
            pipeline.schedule.say("world", f"undo of {tool.name} {arguments} by {owner}, later: {said.value}")
            self._call_back(token, Undone() if said is Said.DONE else AlreadyUndone())

        pipeline.schedule.after(self._takes_ms(), do)

    def _takes_ms(self) -> int:
        chance = self._pipeline.chance
        return chance.choice((chance.randint(1, 50), chance.randint(100, 2_000), chance.randint(1_000, LATER_MS)))

    # --- callbacks --------------------------------------------------------------------------------------------------

    def _call_back(self, token: CallbackToken, answer: CallbackAnswer) -> None:
        pipeline = self._pipeline
        if pipeline.happens(pipeline.mix.callback_lost):
            return
        for _ in range(pipeline.chance.choice((1, 1, 1, 2))):
            pipeline.schedule.after(pipeline.chance.choice((1, 5, 300, 4_000)), lambda: self._settle(token, answer))

    def _settle(self, token: CallbackToken, answer: CallbackAnswer, tries: int = 1) -> None:
        fact = fact_of(token, answer, self._started(token), "callback")
        if fact is not None:
            self._pipeline.write(self, fact, self._told(fact, tries))

    def _told(self, fact: Fact, tries: int) -> Callable[[StoredRecord | bool], None]:
        def told(what: StoredRecord | bool) -> None:
            if not isinstance(what, StoredRecord) and tries < TRIES_MAX:
                self._pipeline.write(self, fact, self._told(fact, tries + 1))

        return told

    def _started(self, token: CallbackToken) -> StepEvent | None:
        pipeline = self._pipeline
        if token.started_offset < 0:
            return None
        where = pipeline.partition_of(token.workflow_id)
        if token.started_offset < pipeline.broker.start(pipeline.topics.ledger, where):
            return None
        found = decoded(pipeline.broker.read(pipeline.topics.ledger, where, token.started_offset, 1)[0].value)
        return found if isinstance(found, StepEvent) and found.step_id == token.step_id else None
