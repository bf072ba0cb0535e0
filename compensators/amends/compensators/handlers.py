"""Runs handlers: coroutine functions in the worker's loop, plain functions in the pool of processes.

Handlers get ledger data only: the arguments that came with the command, and, where they ask for it, the step as its
facts on the ledger have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from amends.compensators.clock import lease_clock_ms
from amends.compensators.effects import (
    AskProbe,
    AskVerify,
    CallAnswer,
    CallForward,
    CallUndo,
    Compare,
    Comparison,
    ProbeAnswer,
    VerifyAnswer,
)
from amends.compensators.invocation import Invocation, arguments_of, invoke_in_loop, is_asynchronous
from amends.compensators.processes import ProcessPool
from amends.compensators.verdicts import Answer, failure_of, not_begun, not_deployed
from amends.compensators.watchdog import LoopWatchdog
from amends.schemas.commands import UndoCommand, UndoEntry
from amends.schemas.facts import Failure
from amends.schemas.keys import forward_key
from amends.schemas.payload import UnreadablePayload
from amends.schemas.slots import quick
from amends.tools.errors import NoHandler
from amends.tools.handlers import Role
from amends.tools.registry import HandlerRegistry
from amends.tools.runner import RunningStep
from amends.tools.step import Step

PYTHON = "python"

_OF_THE_INPUT = (Role.FORWARD, Role.CAPTURE)
_OF_THE_STEP = (*_OF_THE_INPUT, Role.PROBE)


class StepGone(Exception):  # noqa: N818 - what it is
    """The ledger no longer holds the step, or nobody can read it: it will not come back."""


class StepOutOfReach(Exception):  # noqa: N818 - what it is
    """The ledger can't be read now."""


@quick
@dataclass(frozen=True, slots=True)
class PastStep:
    """A step as the ledger has it, with the contract it was made under."""

    step: Step
    contract: bytes | None


class StepSource(Protocol):
    async def past_step(self, started_offset: int, outcome_offset: int, key: str) -> PastStep:
        """Return the step. Raises StepGone, StepOutOfReach."""
        ...


@quick
@dataclass(frozen=True, slots=True)
class _Question:
    """Who is asked what. `begin_by_ms` and `end_by_ms` are of the lease clock."""

    role: Role
    name: str
    kind: str
    step_running: RunningStep
    arguments: bytes | None
    offsets: tuple[int, int]  # of STARTED and of the outcome
    step_key: Callable[[], str]  # a digest that few handlers need
    begin_by_ms: int
    end_by_ms: int


class Handlers:
    """Answers the effects that call handlers.

    Args:
        pool: None where no plain function is to be run here; such a handler then counts as not deployed.
    """

    def __init__(self, tools: HandlerRegistry, pool: ProcessPool | None, watchdog: LoopWatchdog) -> None:
        self._tools = tools
        self._pool = pool
        self._watchdog = watchdog

    async def call_undo(self, effect: CallUndo, source: StepSource) -> CallAnswer:
        now_ms = lease_clock_ms()
        asked = _about_undo(effect.command, effect.entry, Role.UNDO, effect.entry.handler, effect.owner)
        answer = await self._ask(asked(now_ms + effect.begin_within_ms, now_ms + effect.end_within_ms), source)
        return cast("CallAnswer", answer)

    async def ask_verify(self, effect: AskVerify, source: StepSource) -> VerifyAnswer:
        end_by_ms = lease_clock_ms() + effect.end_within_ms
        name = effect.entry.verify or effect.entry.handler
        asked = _about_undo(effect.command, effect.entry, Role.VERIFY, name)
        return cast("VerifyAnswer", await self._ask(asked(end_by_ms, end_by_ms), source))

    async def compare(self, effect: Compare, source: StepSource) -> Comparison:
        end_by_ms = lease_clock_ms() + effect.end_within_ms
        asked = _about_undo(effect.command, effect.entry, Role.CAPTURE, effect.entry.tool_name)
        return cast("Comparison", await self._ask(asked(end_by_ms, end_by_ms), source))

    async def ask_probe(self, effect: AskProbe, source: StepSource) -> ProbeAnswer:
        command = effect.command
        end_by_ms = lease_clock_ms() + command.lease_ms
        running = RunningStep(command.workflow_id, command.step_id, "", command.key, command.tool_name)
        offsets = (command.started_offset, command.outcome_offset)
        asked = _Question(
            Role.PROBE, command.handler, command.kind, running, None, offsets, lambda: command.key, end_by_ms, end_by_ms
        )
        return cast("ProbeAnswer", await self._ask(asked, source))

    async def call_forward(self, effect: CallForward, source: StepSource) -> CallAnswer:
        command = effect.command
        now_ms = lease_clock_ms()
        running = RunningStep(
            command.workflow_id,
            command.step_id,
            effect.attempt,
            command.key,
            command.tool_name,
            workflow_offset=command.workflow_offset,
            started_offset=command.started_offset,
        )
        asked = _Question(
            Role.FORWARD,
            command.tool_name,
            PYTHON,
            running,
            None,
            (command.started_offset, -1),
            lambda: command.key,
            now_ms + effect.begin_within_ms,
            now_ms + effect.end_within_ms,
        )
        return cast("CallAnswer", await self._ask(asked, source))

    # --- one question -----------------------------------------------------------------------------------------------

    async def _ask(self, asked: _Question, source: StepSource) -> Answer:
        try:
            invocation, asynchronous = await self._prepared(asked, source)
        except (NoHandler, StepGone, UnreadablePayload, ValueError) as error:
            return not_deployed(asked.role, failure_of(error))
        except StepOutOfReach as error:
            return not_begun(asked.role, str(error))
        if asynchronous:
            return await self._in_loop(invocation)
        if self._pool is None:
            return not_deployed(asked.role, Failure("amends.NoProcesses", "this worker has no processes for handlers"))
        return await self._pool.run(invocation)

    async def _prepared(self, asked: _Question, source: StepSource) -> tuple[Invocation, bool]:
        if asked.kind != PYTHON:
            raise NoHandler(f"A handler of kind {asked.kind!r} is wanted for {asked.name!r}; this version has python.")
        asynchronous = is_asynchronous(self._tools, asked.role, asked.name)
        wants_step = asked.role in _OF_THE_STEP or self._tools.handler(asked.role, asked.name).needs_step
        past = await source.past_step(*asked.offsets, asked.step_key()) if wants_step else None
        if asked.role in _OF_THE_INPUT and past is not None:
            arguments: dict[str, Any] = dict(past.step.input)
        else:
            arguments = arguments_of(asked.arguments) if asked.arguments else {}
        invocation = Invocation(
            role=asked.role,
            name=asked.name,
            step_running=asked.step_running,
            arguments=arguments,
            step=None if past is None else past.step,
            contract=None if past is None else past.contract,
            begin_by_ms=asked.begin_by_ms,
            end_by_ms=asked.end_by_ms,
        )
        return invocation, asynchronous

    async def _in_loop(self, asked: Invocation) -> Answer:
        """Run a coroutine function and cancel it at its lease; one that can't be cancelled ends the process.

        Whoever cancels, at its lease or because the worker stops: the answer is that nobody knows.
        """
        with self._watchdog.watching(asked.end_by_ms, f"the {asked.role} of {asked.name}"):
            loop = asyncio.get_running_loop()
            task = loop.create_task(invoke_in_loop(self._tools, asked))
            timer = loop.call_later(max(0, asked.end_by_ms - lease_clock_ms()) / 1000, task.cancel)
            try:
                return await task
            except asyncio.CancelledError:
                # The handler's own end never comes out as this: the task was cancelled before its first line.
                return not_begun(asked.role, "it was cancelled before it could begin")
            finally:
                timer.cancel()


def _about_undo(
    command: UndoCommand, entry: UndoEntry, role: Role, name: str, owner: str = ""
) -> Callable[[int, int], _Question]:
    running = RunningStep(
        command.workflow_id,
        entry.step_id,
        str(entry.attempt),
        entry.key,
        entry.tool_name,
        workflow_offset=command.workflow_offset,
        started_offset=entry.started_offset,
        generation=entry.generation,
        owner=owner,
    )

    def asked(begin_by_ms: int, end_by_ms: int) -> _Question:
        return _Question(
            role,
            name,
            entry.kind,
            running,
            entry.arguments,
            (entry.started_offset, entry.outcome_offset),
            lambda: forward_key(entry.step_id),
            begin_by_ms,
            end_by_ms,
        )

    return asked
