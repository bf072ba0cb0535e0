"""What a call overwrites, read before it and after it (protocol, "The contract of a tool": capture). Pure.

- The before-image is read once the call is admitted and before its intent is written, which carries it. Where it can't
  be read, the call is not made: an effect that nobody could put back must not happen.
- A step has one before-image, that of its first attempt: what is read before another may be its own effect.
- The after-image is read once the call has happened, for an undo that compares, unless the tool says what it writes.
  It is never guessed: without it the undo runs only where the world shows the before-image still, or a person decides.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from amends.producers import refusals
from amends.producers.effects import Admitted, Effect, Raised, ReadImage, Result, Withdraw
from amends.producers.outcome import Call, Limits, failure
from amends.schemas.contract import COMPARE
from amends.schemas.facts import StepEvent, StepStatus
from amends.schemas.payload import contains_not_kept, decode_payload, encode_payload

Image = Generator[Effect, Any, bytes | None]


def before_image(call: Call, admitted: Admitted, limits: Limits, subject: str) -> Image:
    """Return what STARTED carries as `captured`, None if the tool captures nothing.

    Raises:
        Rejected: it could not be read or recorded; the attempt is withdrawn.
    """
    if call.captured is not None or admitted.captured is not None:
        return admitted.captured or call.captured
    if call.capture is None:
        return None
    read: Result = yield ReadImage(call.capture, call.arguments)
    if isinstance(read, Raised):
        yield Withdraw(admitted)
        if not isinstance(read.error, Exception):
            raise read.error
        raise refusals.not_captured(subject, failure(read.error, call.secrets)) from read.error
    image, why = _recordable(read.value, limits)
    if why:
        yield Withdraw(admitted)
        raise refusals.capture_not_recordable(subject, why)
    return image


def with_after_image(outcome: StepEvent, call: Call, limits: Limits) -> Generator[Effect, Any, StepEvent]:
    """Return the outcome with what the call wrote, where the undo will ask for it and nothing has told it yet. What
    interrupts the read is raised by it."""
    wanted = call.contract.restores == COMPARE and call.capture is not None
    if not wanted or outcome.status is not StepStatus.SUCCEEDED or outcome.written is not None:
        return outcome
    assert call.capture is not None
    read: Result = yield ReadImage(call.capture, call.arguments)
    if isinstance(read, Raised):
        if not isinstance(read.error, Exception):
            raise read.error
        said = failure(read.error, call.secrets)
        return _unread(outcome, f"{said.type}: {said.message}")
    image, why = _recordable(read.value, limits)
    return _unread(outcome, why) if why else replace(outcome, written=image)


def _recordable(value: object, limits: Limits) -> tuple[bytes, str]:
    """Return the image as it is recorded, and why it can't be, "" if it can."""
    image = encode_payload(value)
    if len(image) > limits.captured_bytes_max:
        return b"", f"it takes {len(image)} bytes on the ledger, at most {limits.captured_bytes_max} are recorded"
    if contains_not_kept(decode_payload(image)):
        return b"", "a part of it has no form on the ledger, so it could not be put back"
    return image, ""


def _unread(outcome: StepEvent, why: str) -> StepEvent:
    """The success stands; an undo that finds another value than the one of before asks a person."""
    return replace(outcome, attributes={**outcome.attributes, "written_unread": why})
