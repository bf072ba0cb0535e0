"""A step as a handler sees it: made from the ledger alone, so that it is the same in every process and on every try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from amends.schemas.facts import Resolution, StepEvent
from amends.schemas.payload import decode_payload


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call of the past.

    `output` is what the call returned, or what a probe found; None both for a call that returned nothing and where
    nobody knows: `output_known` tells which. Parts that were not kept are `Opaque`, `Cut` or `SecretDigest`.
    `key` is the idempotency key of the call. `captured` is the before-image; `written` the after-image, where
    `written_known`: what the same capture read once the call had happened.
    """

    workflow_id: str
    step_id: str
    tool_name: str
    tool_version: str
    key: str
    input: Mapping[str, Any]
    output: Any = None
    output_known: bool = False
    captured: Any = None
    external_resource_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    written: Any = None
    written_known: bool = False


def step_from_facts(started: StepEvent, outcome: StepEvent | Resolution | None, *, key: str) -> Step:
    """Return the step that `started` began. `outcome` is its SUCCEEDED, or evidence `present`; None if unknown.

    Raises:
        UnreadablePayload: a payload of it is not readable.
    """
    recorded = decode_payload(started.input_payload) if started.input_payload is not None else {}
    output = outcome.output_payload if outcome is not None else None
    written = outcome.written if isinstance(outcome, StepEvent) else None
    return Step(
        workflow_id=started.workflow_id,
        step_id=started.step_id,
        tool_name=started.tool_name,
        tool_version=started.tool_version,
        key=key,
        input=cast("dict[str, Any]", recorded) if isinstance(recorded, dict) else {"value": recorded},
        output=decode_payload(output) if output is not None else None,
        output_known=output is not None,
        captured=decode_payload(started.captured) if started.captured is not None else None,
        external_resource_ids={
            **started.external_resource_ids,
            **(outcome.external_resource_ids if outcome is not None else {}),
        },
        written=decode_payload(written) if written is not None else None,
        written_known=written is not None,
    )
