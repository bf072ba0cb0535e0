"""Settings of a producer: `AMENDS_PRODUCER__<NAME>`, and `AMENDS_MODE`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from amends.producers.outcome import Limits
from amends.tools.durations import duration_ms


def _milliseconds(value: object) -> object:
    """Take "30s" as well as a number of milliseconds."""
    return duration_ms(value) if isinstance(value, str) and not value.strip().isdigit() else value


Milliseconds = Annotated[int, BeforeValidator(_milliseconds), Field(ge=1)]

RECORD_BYTES_MAX = 1_000_000
"""The ledger takes 1 MiB; a fact carries a contract and headers beside its payload."""

PayloadBytes = Annotated[int, Field(ge=1_024, le=RECORD_BYTES_MAX - 100_000)]


class ProducerSettings(BaseModel):
    """How this process records what its agents do.

    Attributes:
        mode: `off` runs bare tools, `observe` records and plans but never refuses, waits or undoes, `enforce` is all.
        agent_id: the agent's name where a scope gives none.
        lease_ms: how long an agent may be silent before its workflow turns.
        call_max_ms: how long a call may be under way (its own `timeout` or lease, where longer); one that takes longer
            hangs: its heartbeats and its agent's stop, so that it counts as unknown and its workflow turns.
        confirm_within_ms: how long the end of a scope waits for the fold's word; above a takeover of the processor.
        standing_within_ms: how long the first call waits for the processor's answer to the start.
        owed_within_ms: how long a call waits for outcomes of earlier calls that could not be written.
        write_within_ms: how long a write may take before it counts as failed or uncertain.
        input_bytes_max: larger arguments are refused before the call.
        output_bytes_max: larger results are recorded as their beginning and a digest.
        approvals: `declared` asks a person where the tool says so, `irreversible` before every irreversible call too.
        approval_within_ms: how long a call waits for a person; he may decide later, and the call is made again then.
        outside: what an undoable tool does outside a workflow; in force once `use(default_runtime())` was called.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["off", "observe", "enforce"] = "enforce"
    agent_id: str = ""
    lease_ms: Milliseconds = 30_000
    call_max_ms: Milliseconds = 3_600_000
    confirm_within_ms: Milliseconds = 10_000
    standing_within_ms: Milliseconds = 10_000
    owed_within_ms: Milliseconds = 10_000
    write_within_ms: Annotated[Milliseconds, Field(ge=100)] = 10_000
    input_bytes_max: PayloadBytes = 512 * 1024
    output_bytes_max: PayloadBytes = 512 * 1024
    approvals: Literal["declared", "irreversible"] = "declared"
    approval_within_ms: Milliseconds = 60_000
    outside: Literal["refuse", "single-step"] = "refuse"

    @property
    def limits(self) -> Limits:
        return Limits(self.input_bytes_max, self.output_bytes_max)
