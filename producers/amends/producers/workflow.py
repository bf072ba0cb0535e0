"""The scope of a workflow: `with workflow("order-4711", agent="fulfilment") as wf: ...`, and `async with`.

Leaving it well claims success and waits, bounded, for the fold's word; leaving it by an exception fails the workflow;
being cancelled, interrupted or killed does neither, and the lease finds out.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, cast

from amends.producers.drivers import drive, drive_async
from amends.producers.family import Reference, reference_flow
from amends.producers.runtime import Runtime
from amends.producers.savepoint_flow import NOT_UNDONE
from amends.producers.scope_flow import OnExisting, Outcome
from amends.producers.session import OBSERVING_WAITS_MS, Options, Session
from amends.producers.story import Story
from amends.schemas.commands import Phase
from amends.schemas.policy import Policy
from amends.tools.durations import Duration, duration_ms
from amends.tools.runner import Runner, active_runner

P = ParamSpec("P")
R = TypeVar("R")


class workflow:  # noqa: N801 - used as `with workflow(...)`, as a verb of the language
    """One agent run.

    Args:
        id: names the workflow, for all who speak of it. Not empty, valid UTF-8.
        agent: the agent's name; by default the setting `agent_id`.
        on_existing: `refuse` an id that is in use, or `resume` it: calls that were made before return what was
            recorded, and the scope acts for the workflow as its first one did.
        lease: how long the agent may be silent before its workflow turns.
        deadline: the longest the workflow may run, heartbeats or not, before it turns; by default there is none.
        confirm_within: how long the end of the scope waits for the fold's word.
        confirm: without that word in time, `warn` logs and leaves an `Unconfirmed` outcome, `raise` raises
            NotConfirmed.
        requested_by: the person on whose behalf the agent acts: he can't approve what it asks for.
        policy: what counts as a failure and what it leads to; by default any failure undoes everything.
        parent: a `reference()` to the workflow that this one is a child of, taken in any process; by default the
            workflow in whose scope this one is begun, if there is one. A parent's undoing undoes its children too,
            those that have succeeded as well; a child's failure is its own, and the parent decides what follows.
        detached: stand alone wherever it is begun.
        traceparent: the W3C trace context that the facts belong to.
        runtime: settings and ledger; by default those of the environment.

    Raises, at the start: LedgerUnavailable, LedgerUncertain; to resume, and inside a workflow that is being undone,
        also WorkflowTurned; inside one that has claimed success, Rejected.
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
        deadline: Duration | None = None,
        confirm_within: Duration | None = None,
        confirm: Literal["warn", "raise"] = "warn",
        traceparent: str | None = None,
        runtime: Runtime | None = None,
        policy: Policy | None = None,
        requested_by: str = "",
        parent: str | None = None,
        detached: bool = False,
    ) -> None:
        if detached and parent is not None:
            raise ValueError(f"workflow {id!r}: a child of parent={parent!r} is not detached; give one of the two")
        if confirm not in ("warn", "raise"):
            raise ValueError(f"confirm={confirm!r} is neither 'warn' nor 'raise'")
        existing = OnExisting(on_existing)
        options = Options(
            agent=agent,
            on_existing=existing,
            lease=lease,
            deadline=deadline,
            confirm_within=confirm_within,
            confirm=confirm,
            traceparent=traceparent,
            runtime=runtime,
            policy=policy,
            requested_by=requested_by,
            parent=Reference.read(parent) if parent else None,
            detached=detached or parent == "",
        )
        self._session = Session(id, options)
        self._runner: Runner | None = None
        self._outer: Runner | None = None

    @classmethod
    def run(cls, id: str | Callable[..., str], **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Run a function, plain or `async`, as a workflow.

        `id` is a format of the function's arguments ("order-{order_id}"), or a function of them. `options` are those of
        `workflow`.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            signature = inspect.signature(function)
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise TypeError(f"{function.__qualname__} is a generator: its scope would end before its body begins")

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
                    value = function(*arguments, **keywords)
                    if inspect.isawaitable(value):
                        raise TypeError(
                            f"{function.__qualname__} returned an awaitable, which has not run in its scope"
                        )
                    return value

            return in_scope

        return decorate

    # --- inside the scope -------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The workflow's id."""
        return self._session.id

    @property
    def outcome(self) -> Outcome | None:
        """How the scope ended, None while it has not."""
        return self._session.outcome

    def status(self) -> Phase:
        """Return where the workflow stands, as far as this process has heard; NONE if it has heard nothing."""
        live = self._session.live
        standing = None if live is None else live.scope.standing
        return Phase.NONE if standing is None else standing.phase

    def result(self) -> Outcome:
        """Return how the scope ended.

        Raises:
            RuntimeError: it has not.
        """
        if self.outcome is None:
            raise RuntimeError(f"workflow {self.id!r} has not ended: ask after its `with` block")
        return self.outcome

    def reference(self) -> str:
        """Return a text by which a workflow is begun as a child of this one in any process: `workflow(id, parent=...)`.
        "" where nothing is undone: then that one stands alone. In an `async` scope use `reference_async`.

        Raises:
            LedgerUnavailable: no processor has answered the start of this workflow.
            WorkflowTurned, Rejected: it begins no child any more.
        """
        scope = self._session.parent_for_others()
        return "" if scope is None else str(drive(reference_flow(scope.terms), scope.perform))

    async def reference_async(self) -> str:
        """As `reference`, in a task."""
        scope = self._session.parent_for_others()
        if scope is None:
            return ""
        return str(await drive_async(reference_flow(scope.terms), scope.perform_async, scope.at_once_or_later))

    def savepoint(self, name: str) -> None:
        """Take a savepoint: a place that `undo_to` can go back to. It is confirmed by the ledger when this returns.

        One that is taken while a call of the workflow is open or unknown does not count: the one before it is meant.
        In an `async` scope use `savepoint_async`.

        Raises:
            LedgerUnavailable, LedgerUncertain: no savepoint was taken.
            WorkflowTurned: nobody goes on in this workflow, or part of it was undone by somebody else.
        """
        flow = self._session.take_savepoint(name)
        if flow is not None:
            drive(flow, self._session.scope.perform)

    async def savepoint_async(self, name: str) -> None:
        """As `savepoint`, in a task."""
        flow = self._session.take_savepoint(name)
        if flow is not None:
            scope = self._session.scope
            await drive_async(flow, scope.perform_async, scope.at_once_or_later)

    def undo_to(self, savepoint: str, *, reason: str = "", within: Duration = "60s") -> Story:
        """Have everything undone that this workflow did since a savepoint, wait for it, and go on from there.

        Calls that are under way in other threads and tasks are undone when they land; no call is made until this
        returns. It returns when everything is undone, or what is not is in the hands of people: the story says which.
        In an `async` scope use `undo_to_async`.

        Args:
            savepoint: the name of a savepoint this workflow took; of two of one name, the later.
            reason: for people, and for the story.
            within: how long to wait.

        Raises:
            Rejected: there is no such savepoint; nothing was asked for.
            NotConfirmed: asked for, and not closed in time. It goes on; call this again to wait on.
            WorkflowTurned: the whole workflow is being undone.
            LedgerUnavailable: nothing was asked for.
        """
        flow = self._session.undo_to(savepoint, reason, within)
        return NOT_UNDONE if flow is None else drive(flow, self._session.scope.perform)

    async def undo_to_async(self, savepoint: str, *, reason: str = "", within: Duration = "60s") -> Story:
        """As `undo_to`, in a task."""
        flow = self._session.undo_to(savepoint, reason, within)
        if flow is None:
            return NOT_UNDONE
        scope = self._session.scope
        return await drive_async(flow, scope.perform_async, scope.at_once_or_later)

    def undo_all(self, reason: str = "") -> None:
        """Ask for the undoing of the whole workflow, and wait for nothing: from then on its calls are refused."""
        flow = self._session.undo_all(reason)
        if flow is not None:
            drive(flow, self._session.scope.perform)

    def leave_open(self, lease: Duration) -> None:
        """Leave the workflow to a lease of this length when the scope ends, however it ends: neither success nor
        failure is claimed. For an agent that waits for a person and is resumed under the same id."""
        self._session.leave_lease_ms = duration_ms(lease)

    def bind(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return `function` such that it runs in this scope in any thread: tasks and `asyncio.to_thread` need no such
        help, threads and pools of one's own do."""
        runner = self._session.runner()

        @functools.wraps(function)
        def bound(*arguments: P.args, **keywords: P.kwargs) -> R:
            token = active_runner.set(runner)
            try:
                return function(*arguments, **keywords)
            finally:
                active_runner.reset(token)

        return bound

    # --- with and async with ----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        session = self._session
        outer = session.parent_here()
        parent = None if outer is None else drive(reference_flow(outer.terms), outer.perform)
        flow = session.begin(parent)
        if flow is not None and session.live is not None and session.live.observe:
            session.open_observed(flow).join(OBSERVING_WAITS_MS / 1000)
        elif flow is not None:
            with session.opened():
                drive(flow, session.scope.perform)
        self._activate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deactivate()
        session = self._session
        flow = session.end(error)
        if flow is not None:
            with session.ended(error):
                session.outcome = drive(flow, session.scope.perform)

    async def __aenter__(self) -> Self:
        session = self._session
        outer = session.parent_here()
        parent = None
        if outer is not None:
            parent = await drive_async(reference_flow(outer.terms), outer.perform_async, outer.at_once_or_later)
        flow = session.begin(parent)
        if flow is not None and session.live is not None and session.live.observe:
            await asyncio.to_thread(session.open_observed(flow).join, OBSERVING_WAITS_MS / 1000)
        elif flow is not None:
            scope = session.scope
            with session.opened():
                await drive_async(flow, scope.perform_async, scope.at_once_or_later)
        self._activate()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deactivate()
        session = self._session
        flow = session.end(error)
        if flow is not None:
            scope = session.scope
            with session.ended(error):
                session.outcome = await drive_async(flow, scope.perform_async, scope.at_once_or_later)

    def _activate(self) -> None:
        self._outer, self._runner = active_runner.get(), self._session.runner()
        active_runner.set(self._runner)

    def _deactivate(self) -> None:
        """Give calls back to the scope around this one, if they are ours here: scopes that generators enter may be left
        in any order and in other contexts, and neither may end another scope nor bring one back that was left."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        outer = self._outer
        while outer is not None and outer in _LEFT:
            outer = _LEFT[outer]
        _LEFT[runner] = outer
        if active_runner.get() is runner:
            active_runner.set(outer)


_LEFT: weakref.WeakKeyDictionary[Runner, Runner | None] = weakref.WeakKeyDictionary()
"""Runners of scopes that were left, and who ran the calls around each."""
