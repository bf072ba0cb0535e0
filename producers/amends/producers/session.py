"""How a scope begins and ends in this process: which flows are driven, and what follows from how they went."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from amends.producers import refusals
from amends.producers.drivers import drive
from amends.producers.family import Reference
from amends.producers.flow import ScopeTerms
from amends.producers.runner import BareRunner, ObservingRunner, ScopeRunner
from amends.producers.runtime import Runtime, default_runtime
from amends.producers.savepoint_flow import (
    AskFlow,
    SavepointFlow,
    UndoFlow,
    check_name,
    observed_savepoint_flow,
    observed_undo_flow,
    savepoint_flow,
    undo_all_flow,
    undo_to_flow,
)
from amends.producers.scope import Scope
from amends.producers.scope_flow import (
    EndFlow,
    LeftOpen,
    OnExisting,
    OpenFlow,
    Opening,
    Outcome,
    Turned,
    Unconfirmed,
    claim_flow,
    fail_flow,
    leave_flow,
    observed_end_flow,
    open_flow,
)
from amends.schemas.policy import Policy, encode_policy
from amends.tools.durations import Duration, duration_ms
from amends.tools.errors import AmendsError, NotConfirmed
from amends.tools.runner import Runner, active_runner, mode

logger = logging.getLogger(__name__)

FAILING_WAITS_MS = 2_000
"""An agent's own error is not held up for longer by a processor that is away."""

OBSERVING_WAITS_MS = 1_000

WORKFLOW_ID_BYTES_MAX = 512


@dataclass(frozen=True, slots=True)
class Options:
    """What a scope was asked for. None: as the settings say."""

    agent: str | None
    on_existing: OnExisting
    lease: Duration | None
    deadline: Duration | None
    confirm_within: Duration | None
    confirm: Literal["warn", "raise"]
    traceparent: str | None
    runtime: Runtime | None
    policy: Policy | None = None
    requested_by: str = ""
    parent: Reference | None = None
    detached: bool = False


@dataclass(slots=True)
class _Live:
    """A scope that is recorded."""

    scope: Scope
    runtime: Runtime
    observe: bool


class Session:
    """One scope, from its beginning to its end. `live` is None where nothing is recorded."""

    def __init__(self, id: str, options: Options) -> None:
        check_id(id)
        self.id = id
        self.outcome: Outcome | None = None
        self.leave_lease_ms: int | None = None
        self.live: _Live | None = None
        self._options = options
        self._begun = False

    @property
    def scope(self) -> Scope:
        assert self.live is not None
        return self.live.scope

    def runner(self) -> Runner:
        """Return who runs the calls of this scope."""
        if self.live is None:
            return BareRunner()
        return ObservingRunner(self.scope) if self.live.observe else ScopeRunner(self.scope)

    # --- the beginning ----------------------------------------------------------------------------------------------

    def _runtime(self) -> Runtime | None:
        """Return the runtime of this scope, or None where nothing is recorded."""
        if self._options.runtime is None and mode() == "off":
            return None  # not even the settings are read
        runtime = self._options.runtime or default_runtime()
        return None if runtime.settings.mode == "off" else runtime

    def parent_here(self) -> Scope | None:
        """Return the scope around this one, if this one begins a child of it. Where agents are only watched nothing is
        undone, and there are no families; nor is a scope around us that another process opened, before a fork."""
        runner = active_runner.get()
        if self._begun or self._options.detached or self._options.parent is not None:
            return None
        if not isinstance(runner, ScopeRunner) or runner.scope.terms.workflow_id == self.id:
            return None
        runtime = self._runtime()
        if runtime is None or runtime.settings.mode != "enforce":
            return None
        if runner.scope.inherited():
            return None
        if not runner.scope.is_of(runtime):
            raise refusals.other_ledger(self.id, runner.scope.terms.workflow_id)
        return runner.scope

    def parent_for_others(self) -> Scope | None:
        """Return the scope of which others begin children, or None where nothing is undone."""
        scope = self._acting()
        return None if self.live is None or self.live.observe else scope

    def begin(self, parent: Reference | None = None) -> OpenFlow | None:
        """Return the flow that opens the scope, or None if none is to be driven and waited for.

        Args:
            parent: the workflow around it.
        """
        if self._begun:
            raise RuntimeError(f"workflow {self.id!r}: a scope is entered once; make a new one")
        self._begun = True
        options, runtime = self._options, self._runtime()
        if runtime is None:
            return None
        observe = runtime.settings.mode == "observe"
        deadline_ms = None if options.deadline is None else duration_ms(options.deadline)
        policy = None if options.policy is None else encode_policy(options.policy)
        terms = self._terms(runtime)
        opening = Opening(
            terms,
            runtime.instance,
            options.on_existing,
            observe,
            deadline_ms,
            policy=policy,
            mark=runtime.next_attempt(),
        )
        self.live = _Live(Scope(opening, runtime), runtime, observe)
        return open_flow(opening, None if observe else options.parent or parent)

    def _terms(self, runtime: Runtime) -> ScopeTerms:
        options, settings = self._options, runtime.settings
        confirm_within = options.confirm_within
        return ScopeTerms(
            workflow_id=self.id,
            agent_id=settings.agent_id if options.agent is None else options.agent,
            instance=runtime.instance,
            lease_ms=settings.lease_ms if options.lease is None else duration_ms(options.lease),
            call_max_ms=settings.call_max_ms,
            standing_within_ms=settings.standing_within_ms,
            owed_within_ms=settings.owed_within_ms,
            confirm_within_ms=settings.confirm_within_ms if confirm_within is None else duration_ms(confirm_within),
            limits=settings.limits,
            traceparent=options.traceparent,
            requested_by=options.requested_by,
            approval_within_ms=settings.approval_within_ms,
            approve_irreversible=settings.approvals == "irreversible",
        )

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Around the driving of the opening flow."""
        assert self.live is not None
        try:
            yield
        except BaseException:
            self.live.runtime.left(self.scope)
            self.scope.forget()
            raise
        self.live.runtime.entered(self.scope)

    def open_observed(self, flow: OpenFlow) -> threading.Thread:
        """Open in the background: an agent that is only watched never waits for long, and learns of no fault. Calls
        that are made before the ledger has the start are not recorded."""
        live = self.live
        assert live is not None

        def opened() -> None:
            try:
                drive(flow, live.scope.perform)
            except Exception as error:
                logger.error("workflow %s is not observed: %s", self.id, error)  # noqa: TRY400 - its words are enough
                live.scope.forget()
                return
            live.runtime.entered(live.scope)
            if self.outcome is not None:
                live.runtime.left(live.scope)

        thread = threading.Thread(target=opened, name=f"amends-observe-{self.id}", daemon=True)
        thread.start()
        return thread

    # --- savepoints -------------------------------------------------------------------------------------------------

    def take_savepoint(self, name: str) -> SavepointFlow | None:
        """Return the flow that takes a savepoint, or None where nothing is recorded."""
        check_name(name)
        scope = self._acting()
        if scope is None:
            return None
        if self.live is not None and self.live.observe:
            standing = scope.standing
            return None if standing is None else observed_savepoint_flow(scope.terms, standing, name)
        return savepoint_flow(scope.terms, name)

    def undo_to(self, name: str, reason: str, within: Duration) -> UndoFlow | None:
        """Return the flow that undoes back to a savepoint, or None where nothing is recorded."""
        check_name(name)
        scope = self._acting()
        if scope is None:
            return None
        if self.live is not None and self.live.observe:
            standing = scope.standing
            return None if standing is None else observed_undo_flow(scope.terms, standing, name, reason)
        return undo_to_flow(scope.terms, name, reason, duration_ms(within))

    def undo_all(self, reason: str) -> AskFlow | None:
        """Return the flow that asks for the undoing of everything, or None where nothing is undone."""
        scope = self._acting()
        observed = self.live is not None and self.live.observe
        return None if scope is None or observed else undo_all_flow(scope.terms, reason)

    def _acting(self) -> Scope | None:
        """Return the scope, which must be open and of this process; None where nothing is recorded."""
        if not self._begun or self.outcome is not None:
            raise RuntimeError(f"workflow {self.id!r}: only inside of its `with` block")
        if self.live is None:
            return None
        if self.scope.inherited():
            raise refusals.another_process(self.id)
        return self.scope

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(self, error: BaseException | None) -> EndFlow | None:
        """Return the flow that ends the scope, or None if none is to be driven: `outcome` is set then."""
        if self.live is None:
            self.outcome = LeftOpen("AMENDS_MODE=off")
            return None
        scope = self.scope
        if scope.inherited():
            self.outcome = LeftOpen("the scope belongs to the process that opened it")
            return None
        if error is not None and not isinstance(error, Exception):
            self._left(f"interrupted: {type(error).__name__}")
            return None
        if self.live.observe:
            if self.leave_lease_ms is None:
                return observed_end_flow(scope.terms, error, scope.secrets)
            self._left("left open")
            return None
        if error is not None:
            scope.standing_within_ms = min(scope.standing_within_ms, FAILING_WAITS_MS)
        if self.leave_lease_ms is not None:
            return leave_flow(scope.terms, self.leave_lease_ms, "left open")
        return claim_flow(scope.terms) if error is None else fail_flow(scope.terms, error, scope.secrets)

    def _left(self, reason: str) -> None:
        """Cancelled, told to end, or watched and left open: no failure, and no waiting. The lease finds out."""
        assert self.live is not None
        self.outcome = LeftOpen(reason)
        if self.leave_lease_ms is not None:
            self.scope.leave(self.leave_lease_ms)
        self.live.runtime.left(self.scope)

    @contextmanager
    def ended(self, error: BaseException | None) -> Iterator[None]:
        """Around the driving of the end flow. The agent's own `error`, if any, is on its way and stays what it is."""
        assert self.live is not None
        try:
            yield
        except AmendsError as refused:  # an id in use: what is there belongs to somebody else
            self.outcome = LeftOpen(str(refused))
            if error is None:
                raise
        except BaseException as interruption:
            self.outcome = Unconfirmed(f"interrupted at its end: {type(interruption).__name__}")
            raise
        finally:
            self.live.runtime.left(self.scope)
        if error is None and not self.live.observe:
            self._tell()

    def _tell(self) -> None:
        """Tell the agent what became of its claim."""
        outcome = self.outcome
        if isinstance(outcome, Turned):
            raise refusals.turned(self.id, outcome.standing, "its success does not stand.")
        if isinstance(outcome, Unconfirmed):
            if self._options.confirm == "raise":
                raise NotConfirmed(f"workflow {self.id!r}: {outcome.reason}.")
            logger.warning("workflow %s: its success is not confirmed yet: %s", self.id, outcome.reason)


def check_id(id: str) -> None:
    """Raise ValueError unless `id` can name a workflow."""
    if not isinstance(id, str) or not id:
        raise ValueError(f"a workflow's id is a text that is not empty, not {id!r}")
    try:
        raw = id.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a workflow's id must be valid Unicode: {id!r} has a lone surrogate") from None
    if len(raw) > WORKFLOW_ID_BYTES_MAX:
        raise ValueError(f"a workflow's id takes at most {WORKFLOW_ID_BYTES_MAX} bytes, this one {len(raw)}")
