"""One run of a handler, in the worker's loop or in a process of the pool: always an answer, never an exception."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from amends.compensators.clock import lease_clock_ms
from amends.compensators.comparing import compared
from amends.compensators.effects import ProbeAnswer, Succeeded, Uncertain
from amends.compensators.verdicts import (
    Answer,
    call_answer,
    call_error,
    failure_of,
    not_begun,
    not_deployed,
    odd_capture,
    probe_answer,
    taken_for_later,
    uncertain,
    undo_answer,
    undo_error,
    verify_answer,
)
from amends.schemas.codec import UnreadableRecord, decode_as
from amends.schemas.contract import Contract
from amends.schemas.facts import Failure
from amends.schemas.payload import decode_payload
from amends.schemas.slots import quick
from amends.tools.answers import Accepted, Present
from amends.tools.errors import NoHandler
from amends.tools.handlers import Role
from amends.tools.registry import HandlerRegistry
from amends.tools.resolve import Resolved, is_accepted, resolve
from amends.tools.runner import RunningStep, running
from amends.tools.step import Step

log = logging.getLogger(__name__)

FRAMES_MAX = 12
RESULT_BYTES_MAX = 700_000
"""Of what a call returned, re-sent or found by a probe: a record holds a megabyte."""


@quick
@dataclass(frozen=True, slots=True)
class Invocation:
    """What is needed to run a handler; it can be sent to another process."""

    role: Role
    name: str  # the handler's: the tool's name
    step_running: RunningStep
    arguments: Mapping[str, Any]  # of the undo or, for FORWARD and CAPTURE, the recorded input
    step: Step | None
    contract: bytes | None  # as STARTED has it: the undo's arguments are resolved by what was declared then
    begin_by_ms: int  # of the lease clock: not begun after it
    end_by_ms: int

    @property
    def key(self) -> str:
        return self.step_running.key


def is_asynchronous(tools: HandlerRegistry, role: Role, name: str) -> bool:
    """Tell whether the handler runs in the loop. Raises NoHandler."""
    if role is Role.FORWARD:
        tool = tools.forward(name)
        if tool is None:
            raise NoHandler(f"No loaded module declares the tool {name!r}.")
        return tool.asynchronous
    return tools.handler(role, name).asynchronous


def invoke(tools: HandlerRegistry, asked: Invocation) -> Answer:
    """Run a plain function and return what its end means. Never raises."""
    if lease_clock_ms() >= asked.begin_by_ms:
        return not_begun(asked.role, "its time was up before it could begin")
    try:
        with running(asked.step_running):
            value = _call(tools, asked)
        return _judged(asked, value)
    except BaseException as error:  # sys.exit and the like included: the one place that makes an answer of a failure
        return _failed(tools, asked, error)


async def invoke_in_loop(tools: HandlerRegistry, asked: Invocation) -> Answer:
    """Run a coroutine function and return what its end means. Never raises, not even when it is cancelled."""
    if lease_clock_ms() >= asked.begin_by_ms:
        return not_begun(asked.role, "its time was up before it could begin")
    try:
        with running(asked.step_running):
            value = await _call(tools, asked)
        return _judged(asked, value)
    except asyncio.CancelledError:
        return uncertain(asked.role, Failure("amends.LeaseOver", "it was still running when its lease ended"))
    except BaseException as error:
        return _failed(tools, asked, error)


def _call(tools: HandlerRegistry, asked: Invocation) -> Any:
    if asked.role is Role.FORWARD:
        tool = tools.forward(asked.name)
        if tool is None:
            raise NoHandler(f"No loaded module declares the tool {asked.name!r}.")
        return tool.call_again(asked.arguments, asked.key)
    return tools.handler(asked.role, asked.name).call(asked.arguments, key=asked.key, step=asked.step)


def _judged(asked: Invocation, value: object) -> Answer:
    match asked.role:
        case Role.UNDO:
            said = asked.step_running.said_accepted
            return undo_answer(value if said is None else Accepted(said))
        case Role.VERIFY:
            return verify_answer(value)
        case Role.PROBE:
            answer = probe_answer(value, RESULT_BYTES_MAX)
            return _with_arguments(asked, answer, value.output) if isinstance(value, Present) else answer
        case Role.CAPTURE:
            assert asked.step is not None, "what a capture reads is compared with its step"
            return odd_capture(value) or compared(asked.step, asked.contract, value)
        case Role.FORWARD:
            sent = call_answer(value, RESULT_BYTES_MAX)
            if isinstance(sent, Succeeded) and (taken := _taken_for_later(asked, value)) is not None:
                return Uncertain(taken)
            return _with_arguments(asked, sent, value) if isinstance(sent, Succeeded) else sent


def _taken_for_later(asked: Invocation, value: object) -> Failure | None:
    """Return how it is recorded that the remote of a call only took it; None if it did it."""
    said = asked.step_running.said_accepted
    if said is not None:
        return taken_for_later(said)
    contract = _contract(asked)
    if contract is not None and asked.step is not None and is_accepted(contract, asked.step.input, value):
        return taken_for_later("")
    return None


def _contract(asked: Invocation) -> Contract | None:
    try:
        return None if asked.contract is None else decode_as(Contract, asked.contract)
    except UnreadableRecord:
        return None


def _with_arguments(asked: Invocation, answer: Answer, output: object) -> Answer:
    """Resolve the undo's arguments from what is now known. Where that fails a person is asked, so it says why."""
    contract, step = _contract(asked), asked.step
    if not isinstance(answer, Succeeded | ProbeAnswer) or contract is None or step is None:
        return answer
    ids = {**step.external_resource_ids, **answer.external_resource_ids}
    found = resolve(contract, input=step.input, output=output, captured=step.captured, external_resource_ids=ids)
    if isinstance(found, Resolved):
        return replace(answer, undo_arguments=found.data)
    return answer if contract.undo is None else replace(answer, evidence=f"{answer.evidence} ({found.reason})".strip())


def _failed(tools: HandlerRegistry, asked: Invocation, error: BaseException) -> Answer:
    if isinstance(error, NoHandler):
        return not_deployed(asked.role, failure_of(error))
    answer = _answer_to(tools, asked, error)
    if isinstance(answer, Uncertain):
        # Frames only: what an exception says may be a secret, and its words are in the fact, redacted and bounded.
        frames = "".join(traceback.format_tb(error.__traceback__, -FRAMES_MAX))
        log.warning(
            "the %s of %s raised %s, which it doesn't declare:\n%s", asked.role, asked.name, type(error), frames
        )
    return answer


def _answer_to(tools: HandlerRegistry, asked: Invocation, error: BaseException) -> Answer:
    if asked.role is Role.UNDO:
        return undo_error(tools.handler(Role.UNDO, asked.name), error)
    if asked.role is Role.FORWARD:
        tool = tools.forward(asked.name)
        return call_error(tool is not None and tool.refuses(error), error)
    return uncertain(asked.role, failure_of(error))


def arguments_of(data: bytes) -> dict[str, Any]:
    """Return recorded arguments. Raises UnreadablePayload, or ValueError where they are no object."""
    decoded = decode_payload(data)
    if not isinstance(decoded, dict):
        raise ValueError(f"the undo's arguments are a {type(decoded).__name__}, not an object")  # noqa: TRY004
    return cast("dict[str, Any]", decoded)
