"""What a partition's fold has to be told: names of topics, lanes that exist, how often things are repeated."""

from __future__ import annotations

from dataclasses import dataclass, field

from amends.schemas.codec import Registered
from amends.schemas.topics import Topics


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of the fold's output. None of them changes what the fold decides."""

    topics: Topics = field(default_factory=Topics)
    lanes: frozenset[str] = frozenset({"default"})
    command_repeat_ms: int = 5_000  # until STARTED is seen
    lane_again_ms: int = 60_000  # a lane that does not exist is looked at again
    source: str = "/amends/processor"
    group: str = "amends-processor"  # named in dead letters
    registered: Registered | None = None

    def timeout_again_ms(self, lease_ms: int) -> int:
        """A Timeout that was not accepted is proposed again each quarter lease."""
        return max(50, lease_ms // 4)
