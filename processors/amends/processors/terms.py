"""What a partition's fold has to be told: names of topics, lanes that exist, how often things are repeated."""

from __future__ import annotations

from dataclasses import dataclass, field

from amends.schemas.codec import Registered
from amends.schemas.topics import Topics


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of a partition. None but the grace changes what the fold decides, and that only for whose fact one is
    that comes late."""

    topics: Topics = field(default_factory=Topics)
    lanes: frozenset[str] = frozenset({"default"})
    command_repeat_ms: int = 5_000  # until STARTED is seen
    lane_again_ms: int = 60_000  # a lane that does not exist is looked at again
    grace_ms: int = 3_600_000  # in append times: how long a closed workflow takes facts that name no instance
    carry_after_ms: int | None = None  # an open workflow's state is written on the ledger; None: never
    carry_again_ms: int = 60_000  # a Carry that was not seen is written again
    source: str = "/amends/processor"
    group: str = "amends-processor"  # named in dead letters
    registered: Registered | None = None

    def timeout_again_ms(self, lease_ms: int) -> int:
        """A Timeout that was not accepted is proposed again each quarter lease."""
        return max(50, lease_ms // 4)
