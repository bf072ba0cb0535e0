"""How a call ended, as a fact. Total: whatever the body returned or raised, something is recorded.

A declared refusal that answers the only send of the attempt is FAILED; every other exception, timeout, cancellation or
kill is UNKNOWN, for the effect may have landed; so is a call whose remote only took it, to do it later. An output too
large to be recorded is cut to its digest, and what the undo needs of it is resolved first.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from amends.producers.effects import Raised, Result, Returned
from amends.schemas.contract import Contract
from amends.schemas.data_flow import RULES, ids_made
from amends.schemas.facts import ACCEPTED, Failure, StepEvent, StepStatus
from amends.schemas.keys import digest
from amends.schemas.payload import Bounded, decode_payload, encode_bounded, encode_payload
from amends.schemas.slots import quick
from amends.tools.handlers import Handler
from amends.tools.resolve import (
    MISSING,
    Missing,
    Resolved,
    Unresolved,
    is_accepted,
    needs_outcome,
    resolve,
    written_by_call,
)
from amends.tools.returned import reported_error

MESSAGE_CHARACTERS_MAX = 2_000
RESOURCE_IDS_MAX = 100
_RUN = frozenset({dict, list, str, int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of what is recorded. A record of the ledger holds at most 1 MiB in all."""

    input_bytes_max: int = 512 * 1024
    output_bytes_max: int = 512 * 1024
    captured_bytes_max: int = 256 * 1024  # of a before-image beside its input, or an after-image beside its output


class NotDone(Exception):  # noqa: N818 - the name says what is true
    """The remote has answered that nothing happened: the call is FAILED, without effect."""


@quick
@dataclass(frozen=True, slots=True)
class Reported:
    """A value that is a success because somebody said so, with what is known besides: a recorder's `succeed`."""

    value: Any
    external_resource_ids: Mapping[str, str]
    written: Any = MISSING


class Resolver(Protocol):
    """Resolves the undo's arguments (`amends.tools.resolve.resolve`, or a tool's own, which also checks types)."""

    def __call__(
        self,
        input: object,
        output: object | Missing = MISSING,
        captured: object = None,
        external_resource_ids: Mapping[str, str] | None = None,
    ) -> Resolved | Unresolved: ...


@quick
@dataclass(frozen=True, slots=True)
class Call:
    """A call that is to be made.

    Attributes:
        arguments: what is recorded.
        call_id: the caller's own; None: named by what it asks and how often.
        repeatable: None: as the tool declares.
        lease_ms: in place of the contract's.
        after: call ids or step ids of what this call is built on, beyond what its arguments show.
        capture: reads what the call overwrites.
        captured: what it overwrites, where that was read before: the before-image.
        tool_call_id: a model's or its framework's: equal calls under other such ids are one.
        approval_within_ms: how long a person is waited for; None: as the scope says.
        secrets: texts that must not show up in a recorded error; may grow while the call is under way.
    """

    contract: Contract
    contract_bytes: bytes
    arguments: Mapping[str, Any]
    call_id: str | None = None
    repeatable: bool | None = None
    lease_ms: int | None = None
    after: tuple[str, ...] = ()
    secrets: Collection[str] = field(default=(), repr=False)
    resolver: Resolver | None = None
    capture: Handler | None = None
    captured: bytes | None = None
    tool_call_id: str | None = None
    approval_within_ms: int | None = None

    def resolved(
        self,
        output: object | Missing = MISSING,
        external_resource_ids: Mapping[str, str] | None = None,
        captured: bytes | None = None,
    ) -> Resolved | Unresolved:
        if self.contract.undo is None:
            return Unresolved(f"{self.contract.tool_name} has no undo")
        resolver = self.resolver or partial(resolve, self.contract)
        image = None if captured is None else decode_payload(captured)
        return resolver(
            input=self.arguments, output=output, captured=image, external_resource_ids=external_resource_ids
        )


def ended(started: StepEvent, call: Call, result: Result, limits: Limits, wall_ms: int) -> StepEvent:
    """Return the outcome of the attempt that `started` began. Raises nothing."""
    if isinstance(result, Raised):
        status = StepStatus.FAILED if refused(call.contract, result.error) else StepStatus.UNKNOWN
        return _after(started, status, wall_ms, error=failure(result.error, call.secrets))
    try:
        return _succeeded(started, call, result, limits, wall_ms)
    except Exception as error:  # the effect is done: a value that defeats the encoder must not hide it
        why = failure(error, call.secrets)
        noted = {"output_unrecorded": f"{why.type}: {why.message}"}
        return _after(started, StepStatus.SUCCEEDED, wall_ms, attributes=noted)


def not_executed(started: StepEvent, reason: str, wall_ms: int) -> StepEvent:
    """Return the fact that the attempt `started` began was never sent."""
    why = Failure("amends.NotExecuted", reason)
    return _after(started, StepStatus.NOT_EXECUTED, wall_ms, error=why)


def beating(started: StepEvent, wall_ms: int) -> StepEvent:
    """Return the fact that the attempt `started` began is still under way."""
    return _after(started, StepStatus.HEARTBEAT, wall_ms)


def shrunk(outcome: StepEvent) -> StepEvent:
    """Return `outcome` without what it gave, for a ledger that does not take records of this size."""
    whole = outcome.output_payload or b""
    cut = outcome.payload_digest or digest(whole)
    return replace(outcome, output_payload=None, payload_digest=cut, attributes={}, written=None)


def _after(
    started: StepEvent,
    status: StepStatus,
    wall_ms: int,
    *,
    output: Bounded | None = None,
    error: Failure | None = None,
    undo_arguments: bytes | None = None,
    external_resource_ids: Mapping[str, str] | None = None,
    attributes: Mapping[str, str] | None = None,
    makes: tuple[str, ...] | None = None,
    written: bytes | None = None,
) -> StepEvent:
    """Return a later fact of the attempt: what names it, and what is new. (`replace` costs four times as much.)"""
    return StepEvent(
        workflow_id=started.workflow_id,
        step_id=started.step_id,
        attempt=started.attempt,
        epoch=started.epoch,
        status=status,
        tool_name=started.tool_name,
        agent_id=started.agent_id,
        tool_version=started.tool_version,
        workflow_offset=started.workflow_offset,
        side_effect_classification=started.side_effect_classification,
        call_id=started.call_id,
        output_payload=None if output is None else output.data,
        payload_digest=None if output is None else output.digest,
        external_resource_ids=external_resource_ids or {},
        error=error,
        undo_arguments=undo_arguments,
        lease_ms=started.lease_ms,
        timestamp_ms=wall_ms,
        traceparent=started.traceparent,
        attributes=attributes or {},
        data_flow=0 if makes is None else RULES,
        makes=makes or (),
        written=written,
    )


def undo_arguments_known_before(call: Call, captured: bytes | None) -> bytes | None:
    """Return the undo's arguments if the input and the before-image give them: an intent whose call never answers can
    then still be undone. None if they need the outcome."""
    if needs_outcome(call.contract):
        return None
    try:
        found = call.resolved(captured=captured)
    except Exception:  # resolved again from the outcome; what then fails is an incident with its reason
        return None
    return found.data if isinstance(found, Resolved) else None


def refused(contract: Contract, error: BaseException) -> bool:
    """Whether `error` is one of the refusals the tool declared: the remote answered that nothing happened."""
    if isinstance(error, NotDone):
        return True
    if not isinstance(error, Exception):
        return False
    return any(qualified_name(kind) in contract.refused_by for kind in type(error).__mro__)


def qualified_name(kind: type) -> str:
    """Return the name a contract knows an exception by."""
    return f"{kind.__module__}.{kind.__qualname__}"


def failure(error: BaseException, secrets: Collection[str] = ()) -> Failure:
    """Return `error` as a record, without `secrets`."""
    try:
        message = str(error)
    except Exception as broken:  # an exception whose own words raise is still an outcome
        message = f"(its message could not be read: {type(broken).__name__})"
    return Failure(qualified_name(type(error)), redacted(message, secrets))


def redacted(message: str, secrets: Collection[str]) -> str:
    """Return a message as the ledger takes it, without `secrets`."""
    for secret in sorted(filter(None, tuple(secrets)), key=len, reverse=True):  # a longer one may hold a shorter one
        message = message.replace(secret, "(secret)")
    return _text(message)


def _succeeded(started: StepEvent, call: Call, result: Returned, limits: Limits, wall_ms: int) -> StepEvent:
    value, ids, written = result.value, None, MISSING
    if isinstance(value, Reported):
        value, ids, written = value.value, _texts(value.external_resource_ids), value.written
    elif (failed := reported_error(value)) is not None:
        refusal = isinstance(value, BaseException) and refused(call.contract, value)
        status = StepStatus.FAILED if refusal else StepStatus.UNKNOWN
        words = failure(value, call.secrets).message if isinstance(value, BaseException) else ""
        said = Failure("amends.ReturnedError", f"{failed}: {words}" if words else failed)
        return _after(started, status, wall_ms, error=said)
    if _not_yet_run(value):
        # Its body runs when somebody awaits or iterates it, beyond our sight.
        later = Failure("amends.NotAwaited", f"the tool returned a {type(value).__name__} and has not run yet")
        return _after(started, StepStatus.UNKNOWN, wall_ms, error=later)
    output = encode_bounded(value, limits.output_bytes_max)
    taken = result.accepted
    if taken is None and is_accepted(call.contract, call.arguments, value):
        taken = ""
    undo, attributes = None, None
    if call.contract.undo is not None:
        found = call.resolved(value, ids, started.captured)
        if isinstance(found, Resolved):
            undo = found.data
        else:  # the success stands; its undo becomes an incident with this reason
            attributes = {"undo_unresolved": found.reason}
    only_taken = None
    if taken is not None:
        only_taken = Failure(ACCEPTED, redacted(taken or "the remote took it and does it later", call.secrets))
    return _after(
        started,
        StepStatus.SUCCEEDED if only_taken is None else StepStatus.UNKNOWN,
        wall_ms,
        output=output,
        error=only_taken,
        undo_arguments=undo,
        external_resource_ids=ids,
        attributes=attributes,
        makes=ids_made(value, ids),
        written=_written(started, call, value, written, limits) if only_taken is None else None,
    )


def _written(started: StepEvent, call: Call, output: object, told: object, limits: Limits) -> bytes | None:
    """Return what the call wrote as far as that is known without a look: as told, or as the tool declares."""
    if told is MISSING and call.contract.writes:
        captured = None if started.captured is None else decode_payload(started.captured)
        told = written_by_call(call.contract, input=call.arguments, captured=captured, output=output)
    if told is MISSING:
        return None
    image = encode_payload(told)
    return image if len(image) <= limits.captured_bytes_max else None


def _texts(ids: Mapping[str, str]) -> dict[str, str]:
    """Return ids as the ledger takes them, whatever came in their place: an id that is a number is still an id."""
    return {_text(name): _text(value) for name, value in list(ids.items())[:RESOURCE_IDS_MAX]}


def _text(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")[:MESSAGE_CHARACTERS_MAX]


def _not_yet_run(value: Any) -> bool:
    if type(value) in _RUN:
        return False
    return inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value)
