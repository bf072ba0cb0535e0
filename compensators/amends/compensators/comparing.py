"""What the world shows of a call that overwrote something: what it wrote, what was there before, or neither. Pure.

The undo puts the before-image back, and only over what its own call wrote: a newer value is somebody else's, and is not
lost. What the call wrote is known by its after-image, which stands in its SUCCEEDED, or by what the tool declares that
it writes. Where neither is known (the call was cut off inside), a world that no longer shows the before-image may show
our value or another's, so a person is asked.
"""

from __future__ import annotations

from amends.compensators.effects import Comparison, NobodyKnows, ShowsBefore, ShowsOther, ShowsOurs
from amends.schemas.codec import UnreadableRecord, decode_as
from amends.schemas.contract import Contract
from amends.schemas.facts import CHANGED_SINCE, Failure
from amends.schemas.payload import canonical, contains_not_kept, decoded_form
from amends.tools.resolve import MISSING, Missing, written_by_call
from amends.tools.step import Step

_CHANGED = (
    "somebody else changed it since: the world shows neither what this call wrote nor what was there before it. "
    "It was left alone, so that the newer value is not lost"
)
_NOT_TOLD = (
    "the world no longer shows what was there before the call, and nobody knows what the call wrote (it was cut off "
    "inside, or what it wrote could not be read), so this may be its value or somebody else's. It was left alone"
)


def compared(step: Step, contract: bytes | None, image: object) -> Comparison:
    """Return what `image`, read by the tool's capture just now, says of `step`."""
    seen = decoded_form(image)
    for what, value in (("reads now", seen), ("read before the call", step.captured)):
        if contains_not_kept(value):
            return NobodyKnows(Failure("amends.OddEnd", f"what the capture {what} has a part that can't be recorded"))
    now = canonical(seen)
    if now == canonical(step.captured):
        return ShowsBefore("the world shows what was there before the call")
    written = _written(step, contract)
    if isinstance(written, Missing) or contains_not_kept(written):
        return ShowsOther(Failure(CHANGED_SINCE, _NOT_TOLD))
    return ShowsOurs() if now == canonical(written) else ShowsOther(Failure(CHANGED_SINCE, _CHANGED))


def _written(step: Step, contract: bytes | None) -> object | Missing:
    if step.written_known:
        written: object = step.written
        return written
    if contract is None:
        return MISSING
    try:
        declared = decode_as(Contract, contract)
    except UnreadableRecord:
        return MISSING
    output = step.output if step.output_known else MISSING
    return written_by_call(declared, input=step.input, captured=step.captured, output=output)
