"""A step for anything that is no declared tool: a block of code, a client's method, a call in another language.

    with recorder.step("crm.update", {"customer": "cus_1"}, contract=update_contract) as step:
        answer = client.update("cus_1", idempotency_key=step.key)
        step.succeed(answer)

A block that is left by an exception is UNKNOWN (or FAILED, if the contract declares it a refusal); so is one that is
left without a word on how it ended. `async with` does the same in a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from amends.producers.drivers import End, advance, drive_to, drive_to_async, handed_over
from amends.producers.effects import CallFlow, Effect, Invoke, Raised, Result, Returned
from amends.producers.outcome import Call, NotDone, Reported
from amends.producers.runner import ObservingRunner, ScopeRunner, Send
from amends.producers.scope import Scope
from amends.schemas.codec import encode
from amends.schemas.contract import Contract
from amends.schemas.contract import Effect as EffectClass
from amends.schemas.payload import encode_payload
from amends.tools.errors import AlreadyDone, OutsideWorkflow
from amends.tools.resolve import MISSING
from amends.tools.runner import active_runner, fresh_key, mode


class RecordedStep:
    """One step under way.

    Attributes:
        key: the idempotency key, the same on every try of this step.
        recorded: the step was made before: do nothing, `output` is what it gave.
        output: of a recorded step.
    """

    def __init__(self, call: Call, reuse: bool) -> None:
        self.key = fresh_key()
        self.recorded = False
        self.output: Any = None
        self._call = call
        self._reuse = reuse
        self._result: Result | None = None
        self._flow: CallFlow | None = None
        self._send: Send | None = None
        self._scope: Scope | None = None

    def succeed(
        self,
        output: Any = None,
        *,
        external_resource_ids: Mapping[str, str] | None = None,
        written: Any = MISSING,
    ) -> None:
        """Say that the call took effect, and what it gave. The last word counts.

        Args:
            written: what stands now where `captured` stood, for an undo that compares.
        """
        self._result = Returned(Reported(output, dict(external_resource_ids or {}), written))

    def refuse(self, reason: str) -> None:
        """Say that the remote has answered that nothing happened. Never for a timeout or a lost answer."""
        self._result = Raised(NotDone(reason))

    def __enter__(self) -> Self:
        if self._begin() and self._flow is not None:
            self._ready(drive_to((Invoke,), self._flow, advance(self._flow, None), self._perform))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._flow is None or self._send is None:
            return
        try:
            drive_to((), self._flow, advance(self._flow, self._ended(error)), self._perform)
        finally:
            self._send.left()

    async def __aenter__(self) -> Self:
        if self._begin() and self._flow is not None:
            first = advance(self._flow, None)
            self._ready(await drive_to_async((Invoke,), self._flow, first, self._wait, self._at_once))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._flow is None or self._send is None:
            return
        try:
            next_effect = advance(self._flow, self._ended(error))
            await drive_to_async((), self._flow, next_effect, self._wait, self._at_once)
        finally:
            self._send.left()

    def _begin(self) -> bool:
        """Return whether there is anything to record."""
        runner = active_runner.get()
        if isinstance(runner, ScopeRunner | ObservingRunner):
            scope = self._scope = runner.scope
            if isinstance(runner, ObservingRunner) and scope.started_offset is None:
                return False
            self._call = replace(self._call, secrets=scope.secrets)
            self._send = Send(scope, self._call, None)
            self._flow = runner.flow(self._call)
            return True
        if runner is None and mode() == "enforce":
            raise OutsideWorkflow(f"{self._call.contract.tool_name} was called outside a workflow; it was not run.")
        return False

    def _ready(self, reached: Effect | End) -> None:
        if isinstance(reached, Invoke):
            self.key = reached.key
            return
        assert isinstance(reached, End)
        self._flow = None
        self.recorded = True
        self.output = handed_over(reached.value)
        if not self._reuse:
            name = self._call.contract.tool_name
            raise AlreadyDone(f"{name} was made before; its result is in `.output`. Nothing was done.", self.output)

    def _ended(self, error: BaseException | None) -> Result:
        if error is not None:
            return Raised(error)
        silent = Raised(RuntimeError("the block ended without step.succeed() or step.refuse()"))
        return self._result if self._result is not None else silent

    def _perform(self, effect: Effect) -> Any:
        assert self._scope is not None
        assert self._send is not None
        self._send.mark(effect)
        return self._scope.perform(effect)

    def _at_once(self, effect: Effect) -> Any:
        assert self._scope is not None
        assert self._send is not None
        self._send.mark(effect)
        return self._scope.at_once_or_later(effect)

    async def _wait(self, effect: Effect) -> Any:
        assert self._scope is not None
        return await self._scope.perform_async(effect)


class Recorder:
    """Makes steps in the scope that is active where they are made."""

    def step(
        self,
        tool: str,
        input: Mapping[str, Any] | None = None,
        *,
        contract: Contract | None = None,
        call_id: str | None = None,
        repeatable: bool | None = None,
        reuse: bool = False,
        captured: Any = MISSING,
        tool_call_id: str | None = None,
    ) -> RecordedStep:
        """Return a step, to be entered by `with` or `async with`.

        Args:
            contract: how it is undone; without one it is UNCLASSIFIED, and a person decides.
            call_id: your own name of the call; by default it is named by tool, input and count.
            tool_call_id: a model's or its framework's name of the call, see `amends.tools.options`.
            captured: what the call will overwrite, as it was read just now: the before-image.
            reuse: where the step was made before, enter with `recorded` set in place of raising AlreadyDone.

        Raises, on entering: what a tool's call raises (LedgerUnavailable, WorkflowTurned, ...); the block is not run.
        """
        terms = contract or Contract(tool, EffectClass.UNCLASSIFIED)
        if terms.tool_name != tool:
            raise ValueError(f"the contract is of {terms.tool_name!r}, the step of {tool!r}: give both one name")
        image = None if captured is MISSING else encode_payload(captured)
        call = Call(
            terms, encode(terms), dict(input or {}), call_id, repeatable, captured=image, tool_call_id=tool_call_id
        )
        return RecordedStep(call, reuse)


recorder = Recorder()
