"""What a partition's fold has to be told: names of topics, lanes that exist, how often things are repeated."""

from __future__ import annotations

from dataclasses import dataclass, field

from amends.processors.breakers import BreakerTerms
from amends.schemas.topics import Topics


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of a partition. None but the grace changes what the fold decides: whose fact one is that comes late, and
    whether a child begins too late after its parent announced it."""

    topics: Topics = field(default_factory=Topics)
    lanes: frozenset[str] = frozenset({"default"})
    command_repeat_ms: int = 5_000  # until STARTED is seen
    lane_again_ms: int = 60_000  # a lane that does not exist is looked at again
    grace_ms: int = 3_600_000  # in append times: how long a closed workflow takes facts that name no instance
    carry_after_ms: int | None = None  # an open workflow's state is written on the ledger; None: never
    carry_again_ms: int = 60_000  # a Carry that was not seen is written again
    source: str = "/amends/processor"
    group: str = "amends-processor"  # named in dead letters
    breaker: BreakerTerms = field(default_factory=BreakerTerms)
    partitions: int = 1  # of the ledger; what is bounded over all of them each has its share of
    lane_undos_max: int = 4_096  # under way in a lane at once, over all partitions
    tool_undos_max: int = 2_048  # of one tool
    tool_undos_per_minute: int | None = None  # begun, of one tool; None: as many as can be

    def timeout_again_ms(self, lease_ms: int) -> int:
        """A Timeout that was not accepted is proposed again each quarter lease."""
        return max(50, lease_ms // 4)

    def share(self, whole: int) -> int:
        """What one partition may have of a bound over all of them: at least one."""
        return max(1, whole // self.partitions)
