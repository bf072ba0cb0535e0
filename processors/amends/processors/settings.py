"""Settings of the processor: `AMENDS_PROCESSOR__<NAME>`, or table `[processor]` of the settings file."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ProcessorSettings(BaseModel):
    """What a processor may be told. Durations in milliseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Literal["transactions", "faust"] = "transactions"
    """The engine that runs the fold. `faust` is for teams that run Faust, and needs the extra of that name."""

    mode: Literal["off", "observe", "enforce"] = "enforce"
    """AMENDS_MODE, shared by all parts. The processor folds in every mode."""

    application_id: str = Field(default="amends-processor", min_length=1, max_length=200)
    """Consumer group, and the start of each transactional id. Processors that share the work share it."""

    instance_id: str | None = None
    """Static membership: a processor that is restarted under the same id within the session gets its partitions back at
    once, without a rebalance. Give each its own. The price: a clean stop is noticed after the session, too."""

    session_timeout_ms: int = Field(default=6_000, ge=1_000, le=60_000)
    """How long a dead processor keeps its partitions. Brokers allow 6 seconds or more unless told otherwise."""

    checkpoint_ms: int = Field(default=100, ge=10, le=5_000)
    """Between two checkpoints of a partition; up to a second where commits would take more than a twentieth of the
    time. Longer: less work for the broker, more to fold again after a crash."""

    command_repeat_ms: int = Field(default=5_000, ge=100)
    """A command is repeated this often until its undo has started."""

    grace_ms: int = Field(default=3_600_000, ge=300_000)
    """A closed workflow with nothing open is forgotten after this, in the ledger's time. Until then its id is taken; a
    fact that comes later and names it has it folded again from the ledger, at the cost of reading that again. A child
    that begins later than half of it after its parent announced it is turned, so it is well above what two brokers'
    clocks differ by; the same for all processors, and above every agent's lease."""

    carry_after_ms: int | None = Field(default=None, ge=60_000)
    """The state of a workflow that is open for this long is written on the ledger, and again each time as much has
    passed. None: half of AMENDS_KAFKA__LEDGER_RETENTION_MS, so that the ledger always holds its start or a Carry."""

    breaker_failures: int = Field(default=5, ge=0)
    """Undos of a tool that fail in so many workflows one after another, without one that takes, open its breaker: a
    partition undoes nothing more with the tool but for one undo now and then. 0: no breakers."""

    breaker_pause_ms: int = Field(default=1_000, ge=100)
    """Until one undo is tried again; doubles with each that fails."""

    breaker_pause_cap_ms: int = Field(default=60_000, ge=100)

    breaker_incident_ms: int = Field(default=30_000, ge=0)
    """People are told of a breaker that has been open for this long."""

    lane_undos_max: int = Field(default=4_096, ge=1)
    """Undos under way at once in a lane, over all partitions; each has its share of it, at least one. Those of one
    workflow that follow one another in one command are never parted for it."""

    tool_undos_max: int = Field(default=2_048, ge=1)
    """The same for each tool, whichever lane it is of."""

    tool_undos_per_minute: int | None = Field(default=None, ge=1)
    """Undos of a tool that begin in a minute, over all partitions, each has its share of it. None: no limit."""

    facts_max: int = Field(default=500, ge=1, le=10_000)
    """Facts folded at most before what they emit is sent."""

    unconfirmed_max: int = Field(default=20_000, ge=100)
    """Emissions on their way at most; folding waits when there are more."""

    emission_deadline_ms: int = Field(default=120_000, ge=5_000)
    """An emission that is not confirmed by then: its partition is taken anew from its last checkpoint."""

    stall_ms: int = Field(default=60_000, ge=5_000)
    """A process that folds nothing for this long while there are facts to fold, or one whose checkpoint does not end
    for this long, ends itself, to be started again."""

    health_host: str = "127.0.0.1"
    health_port: int | None = Field(default=0, ge=0, le=65_535)
    """Port of `/healthz` and `/metrics`; 0: any free port, which is logged; None: no server."""

    @model_validator(mode="after")
    def _stall_is_longer_than_a_rebalance(self) -> Self:
        if self.stall_ms < 2 * self.session_timeout_ms:
            raise ValueError(
                f"STALL_MS ({self.stall_ms}) must be at least twice SESSION_TIMEOUT_MS ({self.session_timeout_ms}), "
                "or a processor would end itself while another's death is being noticed"
            )
        return self
