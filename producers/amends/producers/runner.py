"""Runs the calls of tools in a workflow: the shell around `call_flow`, in a thread or in a task."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from amends.producers import clock, refusals
from amends.producers.drivers import LATER, drive, drive_async, handed_over
from amends.producers.effects import (
    CallFlow,
    Effect,
    Invoke,
    QueueFact,
    Raised,
    ReadImage,
    Result,
    Returned,
    Standing,
    WriteFact,
)
from amends.producers.flow import call_flow, observed_flow
from amends.producers.outcome import Call, ended
from amends.producers.scope import Scope
from amends.schemas.commands import Phase
from amends.schemas.facts import StepEvent, StepStatus
from amends.tools.runner import BoundCall, RunningStep, fresh_key, running

logger = logging.getLogger(__name__)

_FACTS = (WriteFact, QueueFact)
_BODIES = (Invoke, ReadImage)


class BareRunner:
    """`AMENDS_MODE=off`: the tools as they are."""

    def call(self, bound: BoundCall) -> Any:
        return bound.invoke(fresh_key())

    async def call_async(self, bound: BoundCall) -> Any:
        return await bound.invoke(fresh_key())


class ScopeRunner:
    """Every call is a step of the scope's workflow."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def call(self, bound: BoundCall) -> Any:
        """Make a call in this thread. Raises AmendsErrors if the tool was not called."""
        send = Send(self.scope, call_of(bound, self.scope), bound.options.timeout_ms)
        return handed_over(send.run(self.flow(send.call), bound.invoke))

    async def call_async(self, bound: BoundCall) -> Any:
        """As `call`, in a task."""
        send = Send(self.scope, call_of(bound, self.scope), bound.options.timeout_ms)
        return handed_over(await send.run_async(self.flow(send.call), bound.invoke))

    def flow(self, call: Call) -> CallFlow:
        """Return the flow of `call` in this scope."""
        if self.scope.inherited():
            raise refusals.another_process(self.scope.terms.workflow_id)
        return call_flow(call, self.scope.terms)


class ObservingRunner:
    """`AMENDS_MODE=observe`: the tool is run whatever becomes of the record."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def call(self, bound: BoundCall) -> Any:
        """Make a call in this thread. Raises only what the tool raises."""
        send = self._send(bound)
        if send is None:
            return bound.invoke(fresh_key())
        try:
            send.run(self.flow(send.call), bound.invoke)
        except Exception:
            logger.exception("%s could not be recorded", send.call.contract.tool_name)
        return bound.invoke(fresh_key()) if send.result is None else handed_over(send.result)

    async def call_async(self, bound: BoundCall) -> Any:
        """As `call`, in a task."""
        send = self._send(bound)
        if send is None:
            return await bound.invoke(fresh_key())
        try:
            await send.run_async(self.flow(send.call), bound.invoke)
        except Exception:
            logger.exception("%s could not be recorded", send.call.contract.tool_name)
        return await bound.invoke(fresh_key()) if send.result is None else handed_over(send.result)

    def _send(self, bound: BoundCall) -> Send | None:
        if self.scope.inherited() or self.scope.started_offset is None:
            return None
        try:
            return Send(self.scope, call_of(bound, self.scope), bound.options.timeout_ms)
        except Exception:
            logger.exception("%s could not be recorded", bound.tool.name)
            return None

    def flow(self, call: Call) -> CallFlow:
        """Return the flow of `call` in this scope."""
        scope = self.scope
        assert scope.started_offset is not None
        standing = scope.standing or Standing(scope.started_offset, 0, Phase.RUNNING)
        # Not RUNNING means that the real agent would have been stopped; this one is only watched.
        return observed_flow(call, scope.terms, Standing(standing.workflow_offset, standing.epoch, Phase.RUNNING))


class Send:
    """One flow of one call, under way. `result` is the body's, once it has ended."""

    def __init__(self, scope: Scope, call: Call, timeout_ms: int | None) -> None:
        self.call = call
        self.result: Result | None = None
        self._scope = scope
        self._timeout_ms = timeout_ms
        self.started: StepEvent | None = None

    def run(self, flow: CallFlow, invoke: Callable[[str], Any]) -> Result:
        """Drive `flow` in this thread; `invoke` runs the body."""

        def perform(effect: Effect) -> Any:
            if isinstance(effect, Invoke):
                return self._invoke(effect, invoke)
            if isinstance(effect, ReadImage):
                return _result_of(lambda: image_of(effect))
            self.mark(effect)
            return self._scope.perform(effect)

        try:
            return drive(flow, perform)
        finally:
            self.left()

    async def run_async(self, flow: CallFlow, invoke: Callable[[str], Any]) -> Result:
        """As `run`, in a task; what `invoke` returns is awaited."""

        def perform(effect: Effect) -> Awaitable[Any]:
            if isinstance(effect, Invoke):
                return self._invoke_async(effect, invoke)
            if isinstance(effect, ReadImage):
                return read_image(effect)
            return self._scope.perform_async(effect)

        at_once_or_later = self._scope.at_once_or_later

        def at_once(effect: Effect) -> Any:
            kind = type(effect)
            if kind in _BODIES:
                return LATER
            if kind in _FACTS:
                self.mark(effect)
            return at_once_or_later(effect)

        try:
            return await drive_async(flow, perform, at_once)
        finally:
            self.left()

    def mark(self, effect: Effect) -> None:
        """Take note of the intent."""
        if isinstance(effect, _FACTS) and isinstance(effect.fact, StepEvent):
            fact = effect.fact
            if fact.status is StepStatus.STARTED:
                self.started = fact

    def left(self) -> None:
        """However the flow ended, its send is no longer under way: one that never got an outcome is unknown."""
        started = self.started
        if started is not None and self._scope.dropped(started.attempt) is not None:
            self._tell(started, Raised(InterruptedError("the call was cut off")))

    def _tell(self, started: StepEvent, result: Result) -> None:
        self._scope.queue(ended(started, self.call, result, self._scope.terms.limits, clock.wall_ms()))

    def _running(self, effect: Invoke) -> RunningStep:
        if self._timeout_ms is not None:
            self._scope.may_take(effect.attempt, self._timeout_ms)
        return RunningStep(
            self._scope.terms.workflow_id,
            effect.step_id,
            effect.attempt,
            effect.key,
            self.call.contract.tool_name,
            workflow_offset=effect.workflow_offset,
            started_offset=effect.started_offset,
        )

    def _invoke(self, effect: Invoke, invoke: Callable[[str], Any]) -> Result:
        step = self._running(effect)
        with running(step):
            if self._timeout_ms is None:
                self.result = _result_of(lambda: invoke(effect.key), step)
            else:
                self.result = self._limited(effect, step, invoke, self._timeout_ms)
        return self.result

    def _limited(self, effect: Invoke, step: RunningStep, invoke: Callable[[str], Any], timeout_ms: int) -> Result:
        """Run the body in a thread and wait for a time. One that outlives it goes on: nobody can stop a thread. Its end
        is then written as what it was."""
        ended_in_time = threading.Event()
        given_up = threading.Event()
        lock = threading.Lock()
        box: list[Result] = []

        def body() -> None:
            result = _result_of(lambda: invoke(effect.key), step)
            with lock:
                box.append(result)
                ended_in_time.set()
                late = given_up.is_set()
            if late and self.started is not None:
                self._tell(self.started, result)

        context = contextvars.copy_context()
        threading.Thread(target=lambda: context.run(body), name=f"amends-{effect.attempt}", daemon=True).start()
        try:
            ended_in_time.wait(timeout_ms / 1000)
        finally:
            with lock:
                given_up.set()
        if box:
            return box[0]
        return Raised(TimeoutError(f"{self.call.contract.tool_name} did not answer within {timeout_ms} ms"))

    async def _invoke_async(self, effect: Invoke, invoke: Callable[[str], Any]) -> Result:
        step = self._running(effect)
        with running(step):
            try:
                if self._timeout_ms is None:
                    self.result = Returned(await invoke(effect.key), step.said_accepted)
                else:
                    async with asyncio.timeout(self._timeout_ms / 1000):
                        self.result = Returned(await invoke(effect.key), step.said_accepted)
            except BaseException as error:  # whatever ended the call is its outcome, and is raised again by the caller
                self.result = Raised(error)
        return self.result


def call_of(bound: BoundCall, scope: Scope) -> Call:
    """Return the call a tool was bound to, in `scope`.

    Raises:
        ContractError: the tool's declaration can't be kept.
    """
    tool, options = bound.tool, bound.options
    scope.secrets.update(bound.secrets)
    return Call(
        contract=tool.contract,
        contract_bytes=tool.contract_bytes,
        arguments=bound.arguments,
        call_id=options.call_id,
        repeatable=options.repeatable,
        after=options.after,
        secrets=scope.secrets,
        resolver=tool.resolve,
        capture=tool.capture,
        tool_call_id=options.tool_call_id,
        approval_within_ms=options.approval_within_ms,
    )


def image_of(effect: ReadImage) -> Any:
    """Run a capture in this thread."""
    return effect.capture.call(effect.arguments, key="")


async def read_image(effect: ReadImage) -> Result:
    """Run a capture in this task; one that is a plain function in a thread."""
    try:
        if effect.capture.asynchronous:
            return Returned(await image_of(effect))
        return Returned(await asyncio.to_thread(image_of, effect))
    except BaseException as error:  # as in `_result_of`
        return Raised(error)


def _result_of(body: Callable[[], Any], step: RunningStep | None = None) -> Result:
    try:
        value = body()
        return Returned(value, None if step is None else step.said_accepted)
    except BaseException as error:  # as above
        return Raised(error)
