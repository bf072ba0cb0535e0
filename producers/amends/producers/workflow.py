"""The scope of a workflow: `with workflow("order-4711", agent="fulfilment") as wf: ...`, and `async with`.

Leaving it well claims success and waits, bounded, for the fold's word; leaving it by an exception fails the workflow;
being cancelled, interrupted or killed does neither, and the lease finds out.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, cast

from amends.producers import refusals
from amends.producers.drivers import drive, drive_async
from amends.producers.flow import ScopeTerms
from amends.producers.runner import BareRunner, ObservingRunner, ScopeRunner
from amends.producers.runtime import Runtime, default_runtime
from amends.producers.scope import WAITS, Scope
from amends.producers.scope_flow import (
    EndFlow,
    LeftOpen,
    OnExisting,
    OpenFlow,
    Opening,
    Outcome,
    Succeeded,
    Turned,
    Unconfirmed,
    claim_flow,
    fail_flow,
    leave_flow,
    observed_end_flow,
    open_flow,
)
from amends.schemas.commands import Phase
from amends.tools.durations import Duration, duration_ms
from amends.tools.errors import AmendsError, NotConfirmed
from amends.tools.runner import Runner, active_runner, mode

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

FAILING_WAITS_MS = 2_000
"""An agent's own error is not held up for longer by a processor that is away."""

OBSERVING_WAITS_MS = 1_000


class workflow:  # noqa: N801 - used as `with workflow(...)`, as a verb of the language
    """One agent run.

    Args:
        id: names the workflow, for all who speak of it. Not empty, valid UTF-8.
        agent: the agent's name; by default the setting `agent_id`.
        on_existing: `refuse` an id that is in use, or `resume` it: calls that were made before return what was
            recorded, and the scope acts for the workflow as its first one did.
        lease: how long the agent may be silent before its workflow turns.
        confirm_within: how long the end of the scope waits for the fold's word.
        confirm: without that word in time, `warn` logs and leaves an `Unconfirmed` outcome, `raise` raises
            NotConfirmed.
        runtime: settings and ledger; by default those of the environment.

    Raises, at the start: LedgerUnavailable, LedgerUncertain; to resume also WorkflowTurned.
    Raises, at the end: WorkflowTurned if the success claimed is not what the ledger holds; AlreadyRunning for an id in
        use; NotConfirmed if asked to.
    """

    def __init__(
        self,
        id: str,
        *,
        agent: str | None = None,
        on_existing: Literal["refuse", "resume"] = "refuse",
        lease: Duration | None = None,
        confirm_within: Duration | None = None,
        confirm: Literal["warn", "raise"] = "warn",
        traceparent: str | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        _check_id(id)
        if confirm not in ("warn", "raise"):
            raise ValueError(f"confirm={confirm!r} is neither 'warn' nor 'raise'")
        self.id = id
        self.outcome: Outcome | None = None
        self._on_existing = OnExisting(on_existing)
        self._confirm = confirm
        self._leave_lease_ms: int | None = None
        self._token: contextvars.Token[Runner | None] | None = None
        self._entered = False
        self._scope: Scope | None = None
        self._given = runtime
        self._agent, self._lease, self._confirm_within, self._traceparent = agent, lease, confirm_within, traceparent
        self._runtime: Runtime | None = None
        self._mode = "off"

    @classmethod
    def run(cls, id: str | Callable[..., str], **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Run a function, plain or `async`, as a workflow.

        `id` is a format of the function's arguments ("order-{order_id}"), or a function of them. `options` are those of
        `workflow`.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            signature = inspect.signature(function)

            def named(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
                bound = signature.bind(*arguments, **keywords)
                bound.apply_defaults()
                return id(*arguments, **keywords) if callable(id) else id.format(**bound.arguments)

            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def in_scope_async(*arguments: P.args, **keywords: P.kwargs) -> Any:
                    async with cls(named(arguments, keywords), **options):
                        return await cast("Awaitable[Any]", function(*arguments, **keywords))

                return cast("Callable[P, R]", in_scope_async)

            @functools.wraps(function)
            def in_scope(*arguments: P.args, **keywords: P.kwargs) -> R:
                with cls(named(arguments, keywords), **options):
                    return function(*arguments, **keywords)

            return in_scope

        return decorate

    # --- inside the scope -------------------------------------------------------------------------------------------

    def status(self) -> Phase:
        """Return where the workflow stands, as far as this process has heard; NONE if it has heard nothing."""
        standing = None if self._scope is None else self._scope.standing
        return Phase.NONE if standing is None else standing.phase

    def result(self) -> Outcome:
        """Return how the scope ended.

        Raises:
            RuntimeError: it has not.
        """
        if self.outcome is None:
            raise RuntimeError(f"workflow {self.id!r} has not ended: ask after its `with` block")
        return self.outcome

    def leave_open(self, lease: Duration) -> None:
        """Leave the workflow to a lease of this length when the scope ends, however it ends: neither success nor
        failure is claimed. For an agent that waits for a person and is resumed under the same id."""
        self._leave_lease_ms = duration_ms(lease)

    def bind(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return `function` such that it runs in this scope in any thread: tasks and `asyncio.to_thread` need no such
        help, threads and pools of one's own do."""
        runner = self._active()

        @functools.wraps(function)
        def bound(*arguments: P.args, **keywords: P.kwargs) -> R:
            token = active_runner.set(runner)
            try:
                return function(*arguments, **keywords)
            finally:
                active_runner.reset(token)

        return bound

    # --- sync -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        flow = self._opening()
        if flow is not None and self._mode == "observe":
            self._observed(flow).join(OBSERVING_WAITS_MS / 1000)
        elif flow is not None and self._scope is not None:
            with self._opened():
                drive(flow, self._scope.perform)
        self._token = active_runner.set(self._active())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deactivate()
        flow = self._ending(error)
        if flow is None or self._scope is None:
            return
        with self._closing(error):
            self.outcome = drive(flow, self._scope.perform)

    # --- async ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        flow = self._opening()
        if flow is not None and self._mode == "observe":
            await asyncio.to_thread(self._observed(flow).join, OBSERVING_WAITS_MS / 1000)
        elif flow is not None and self._scope is not None:
            with self._opened():
                await drive_async(flow, self._scope.perform_async, self._scope.at_once, WAITS)
        self._token = active_runner.set(self._active())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deactivate()
        flow = self._ending(error)
        if flow is None or self._scope is None:
            return
        with self._closing(error):
            self.outcome = await drive_async(flow, self._scope.perform_async, self._scope.at_once, WAITS)

    # --- how it begins ----------------------------------------------------------------------------------------------

    def _opening(self) -> OpenFlow | None:
        if self._entered:
            raise RuntimeError(f"workflow {self.id!r}: a scope is entered once; make a new one")
        self._entered = True
        if self._given is None and mode() == "off":
            return None  # not even the settings are read
        runtime = self._runtime = self._given or default_runtime()
        self._mode = runtime.settings.mode
        if self._mode == "off":
            return None
        observe = self._mode == "observe"
        settings = runtime.settings
        terms = ScopeTerms(
            workflow_id=self.id,
            agent_id=settings.agent_id if self._agent is None else self._agent,
            lease_ms=settings.lease_ms if self._lease is None else duration_ms(self._lease),
            standing_within_ms=settings.standing_within_ms,
            owed_within_ms=settings.owed_within_ms,
            confirm_within_ms=(
                settings.confirm_within_ms if self._confirm_within is None else duration_ms(self._confirm_within)
            ),
            limits=settings.limits,
            traceparent=self._traceparent,
        )
        opening = Opening(terms, runtime.instance, self._on_existing, observe)
        self._scope = Scope(opening, runtime)
        return open_flow(opening)

    def _observed(self, flow: OpenFlow) -> threading.Thread:
        """Open in the background: an agent that is only watched never waits for long, and learns of no fault. Calls
        that are made before the ledger has the start are not recorded."""
        scope, runtime = self._scope, self._runtime
        assert scope is not None
        assert runtime is not None

        def opened() -> None:
            try:
                drive(flow, scope.perform)
            except Exception as error:
                logger.error("workflow %s is not observed: %s", self.id, error)  # noqa: TRY400 - whose words are enough
                scope.forget()
                return
            runtime.entered(scope)
            if self.outcome is not None:
                runtime.left(scope)

        thread = threading.Thread(target=opened, name=f"amends-observe-{self.id}", daemon=True)
        thread.start()
        return thread

    def _opened(self) -> _Opened:
        return _Opened(self)

    def _active(self) -> Runner:
        if self._mode == "off" or self._scope is None:
            return BareRunner()
        return ObservingRunner(self._scope) if self._mode == "observe" else ScopeRunner(self._scope)

    def _deactivate(self) -> None:
        token, self._token = self._token, None
        if token is not None:
            try:
                active_runner.reset(token)
            except ValueError:  # left in another context than it was entered in, as async generators are
                active_runner.set(None)

    # --- how it ends ------------------------------------------------------------------------------------------------

    def _ending(self, error: BaseException | None) -> EndFlow | None:
        scope, runtime = self._scope, self._runtime
        if scope is None or runtime is None:
            self.outcome = LeftOpen("AMENDS_MODE=off")
            return None
        if scope.inherited():
            self.outcome = LeftOpen("the scope belongs to the process that opened it")
            return None
        if self._mode == "observe":
            return observed_end_flow(scope.terms, error)
        if error is not None and not isinstance(error, Exception):
            self.outcome = LeftOpen(f"interrupted: {type(error).__name__}")
            if self._leave_lease_ms is not None:
                scope.leave(self._leave_lease_ms)
            runtime.left(scope)
            return None
        if error is not None:
            scope.standing_within_ms = min(scope.standing_within_ms, FAILING_WAITS_MS)
        if self._leave_lease_ms is not None:
            return leave_flow(scope.terms, self._leave_lease_ms, "left open")
        return claim_flow(scope.terms) if error is None else fail_flow(scope.terms, error)

    def _closing(self, error: BaseException | None) -> _Closing:
        return _Closing(self, error)

    def _judged(self, error: BaseException | None) -> None:
        """Tell the agent what became of its claim. Its own error, if any, is on its way and stays what it is."""
        outcome = self.outcome
        if error is not None or outcome is None or isinstance(outcome, Succeeded) or self._mode == "observe":
            return
        if isinstance(outcome, Turned):
            raise refusals.turned(self.id, outcome.standing, "its success does not stand.")
        if isinstance(outcome, Unconfirmed):
            if self._confirm == "raise":
                raise NotConfirmed(f"workflow {self.id!r}: {outcome.reason}.")
            logger.warning("workflow %s: its success is not confirmed yet: %s", self.id, outcome.reason)


class _Opened:
    """What follows from how the opening went."""

    def __init__(self, scope_of: workflow) -> None:
        self._workflow = scope_of

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wf = self._workflow
        scope, runtime = wf._scope, wf._runtime
        assert scope is not None
        assert runtime is not None
        if error is None:
            runtime.entered(scope)
            return
        runtime.left(scope)
        scope.forget()


class _Closing:
    """What follows from how the end went."""

    def __init__(self, scope_of: workflow, error: BaseException | None) -> None:
        self._workflow = scope_of
        self._error = error

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        wf = self._workflow
        assert wf._scope is not None
        assert wf._runtime is not None
        wf._runtime.left(wf._scope)
        if isinstance(raised, AmendsError):
            # Only a refused id raises here. Where the agent has an error of its own, that one is on its way.
            wf.outcome = LeftOpen(str(raised))
            return self._error is not None
        if raised is None:
            wf._judged(self._error)
        return False


def _check_id(id: str) -> None:
    if not isinstance(id, str) or not id:
        raise ValueError(f"a workflow's id is a text that is not empty, not {id!r}")
    try:
        raw = id.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a workflow's id must be valid Unicode: {id!r} has a lone surrogate") from None
    if len(raw) > 512:
        raise ValueError(f"a workflow's id takes at most 512 bytes, this one {len(raw)}")
