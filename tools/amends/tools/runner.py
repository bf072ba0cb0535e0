"""Who runs a call: the seam between a declared tool and the part that records it.

A producer sets `active_runner` for its scope; a tool called there hands it a `BoundCall`. Where no runner is active an
undoable tool refuses, unless the setting says otherwise (`set_outside`), `AMENDS_MODE` is off or observe, or
`set_testing()` was called. Context variables follow `await`, tasks and `asyncio.to_thread`, not threads of one's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol
from uuid import uuid4

from amends.schemas.contract import Effect
from amends.schemas.facts import UNKNOWN_OFFSET
from amends.schemas.slots import quick
from amends.tools import callbacks
from amends.tools.errors import ContractError, OutsideWorkflow

if TYPE_CHECKING:
    from amends.tools.declaration import Tool

Outside = Literal["refuse", "single-step"]
MODES = ("off", "observe", "enforce")


@quick
@dataclass(frozen=True, slots=True)
class CallOptions:
    """What the caller wants for this one call."""

    timeout_ms: int | None = None
    call_id: str | None = None  # the caller's own
    repeatable: bool | None = None  # None: as the tool declares
    after: tuple[str, ...] = ()  # call ids or step ids of what this call is built on
    tool_call_id: str | None = None  # a model's, or its framework's: names a plan, which may be made again
    approval_within_ms: int | None = None  # wait so long for a person; None: as the settings say


NO_OPTIONS = CallOptions()


@quick
@dataclass(frozen=True, slots=True)
class BoundCall:
    """One call, ready to be made.

    `arguments` are what is recorded, in decoded form, as they were before the call: by parameter name, defaults filled
    in, without `self` and the key's parameter, secrets as `SecretDigest`. `invoke` holds the real values; it takes the
    idempotency key and returns the tool's own value, or an awaitable where `tool.asynchronous`. It may be invoked again
    with the same key only where the contract allows a second send. `secrets` are texts for `redact`.
    """

    tool: Tool
    arguments: dict[str, Any]
    options: CallOptions
    invoke: Callable[[str], Any]
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def redact(self, text: str) -> str:
        """Return `text`, such as an exception's message, without the call's secrets."""
        for value in self.secrets:
            text = text.replace(value, "(secret)") if value else text
        return text


class Runner(Protocol):
    """Records a call and makes it. What the tool returns or raises passes through untouched."""

    def call(self, bound: BoundCall) -> Any:
        """Run a tool that is a plain function. May block; raises AmendsErrors if the tool was not called."""
        ...

    async def call_async(self, bound: BoundCall) -> Any:
        """Run a tool that is a coroutine function."""
        ...


@quick
@dataclass(frozen=True, slots=True)
class RunningStep:
    """The step under way, for code deep inside a tool's or a handler's body."""

    workflow_id: str
    step_id: str
    attempt: str
    key: str  # the idempotency key: of the call, or of the undo inside its handler
    tool_name: str
    workflow_offset: int = UNKNOWN_OFFSET
    started_offset: int = UNKNOWN_OFFSET  # where the step's STARTED stands
    generation: int | None = None  # of the undo; None in the call
    owner: str = ""  # of the attempt of the undo
    _said: list[str] = field(default_factory=list[str], repr=False, compare=False)

    def accepted(self, evidence: str = "") -> None:
        """Say that the remote only took the request and does it later (202): what the body returns goes to the agent
        untouched, and whether it happened stays UNKNOWN until a probe, a callback or a person tells. In the handler of
        an undo it does the same as to return `Accepted`."""
        self._said.append(evidence)

    def callback_token(self) -> str:
        """Return the token with which a webhook of the remote settles this attempt, of the call or of the undo.

        Raises:
            ContractError: no secret is set to sign it with, or this is no attempt (a probe asks about one).
        """
        if not self.attempt:
            raise ContractError("A probe has no callback: it asks about an attempt and is none.")
        token = callbacks.CallbackToken(
            self.workflow_id,
            self.workflow_offset,
            self.step_id,
            self.attempt,
            self.started_offset,
            self.generation,
            self.owner,
        )
        return callbacks.write_token(token, callbacks.token_secrets()[0])

    def callback_url(self, base: str | None = None) -> str:
        """Return where the remote is to send its webhook (`callback_token`). `base` is where the door is reached from
        outside; None: as AMENDS_CALLBACKS__BASE_URL says. Raises ContractError."""
        return callbacks.callback_url(self.callback_token(), base)

    @property
    def said_accepted(self) -> str | None:
        """The evidence given to `accepted`, None if it was not called."""
        return self._said[-1] if self._said else None


active_runner: ContextVar[Runner | None] = ContextVar("amends_active_runner", default=None)
_running: ContextVar[RunningStep | None] = ContextVar("amends_running_step", default=None)


class running:  # noqa: N801 - used like a function; a generator in its place costs three times as much
    """Make `step` the current one, inside of a `with`. For runners and workers, around the invocation."""

    __slots__ = ("_step", "_token")

    def __init__(self, step: RunningStep) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._token = _running.set(self._step)

    def __exit__(self, *_: object) -> None:
        _running.reset(self._token)


def current_step() -> RunningStep:
    """Return the step under way.

    Raises:
        OutsideWorkflow: none is.
    """
    step = _running.get()
    if step is None:
        raise OutsideWorkflow("There is no current step: this code was not called by a tool or handler of amends.")
    return step


_outside: Outside = "refuse"
_single_step: Runner | None = None
_testing = False


def set_testing(enabled: bool = True) -> None:
    """Run every tool bare in this process: nothing is recorded, nothing will be undone. For users' own tests."""
    global _testing
    _testing = enabled


def set_outside(policy: Outside, single_step: Runner | None = None) -> None:
    """Say what a tool does outside a workflow. `single_step` runs each such call as a workflow of one step."""
    global _outside, _single_step
    if policy == "single-step" and single_step is None:
        raise ContractError('outside = "single-step" needs the runner that makes a workflow of a call.')
    _outside, _single_step = policy, single_step


def fresh_key() -> str:
    """Return a key for a call that nobody records: never the same twice, so that no remote takes two for one."""
    return f"amends-bare-{uuid4()}"


def mode() -> str:
    """Return `AMENDS_MODE`: off, observe or enforce (default).

    Raises:
        ContractError: it is something else.
    """
    value = os.environ.get("AMENDS_MODE", "enforce")
    if value not in MODES:
        raise ContractError(f"AMENDS_MODE={value!r} is none of {', '.join(MODES)}.")
    return value


def runner_for(tool: Tool) -> Runner | None:
    """Return who runs a call of `tool` here, or None for a bare call.

    Raises:
        OutsideWorkflow: nobody does, and the tool would change the world.
    """
    if _testing or tool.effect is Effect.NONE:
        return None
    runner = active_runner.get()
    if runner is not None:
        return runner
    if mode() != "enforce":
        return None
    if _outside == "single-step":
        return _single_step
    raise OutsideWorkflow(f"{tool.name} was called outside a workflow, where nothing would undo it; it was not run.")
