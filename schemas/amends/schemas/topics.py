"""The topics of the protocol: names, clean-up, timestamps, and which share one partition count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DAY_MS = 86_400_000
COMPACTION_LAG_MS = DAY_MS
"""A record of a changelog is not compacted away before this, whatever comes after it."""
TRANSACTIONS, FAUST = "transactions", "faust"
"""The engines; each has a changelog of its own."""


@dataclass(frozen=True, slots=True)
class TopicSpecification:
    """A topic as the protocol wants it. `settings` are the broker's topic settings that are checked at start."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    co_partitioned: bool = True


@dataclass(frozen=True, slots=True)
class Topics:
    """Names under one prefix. `lanes` are undo lanes that exist."""

    prefix: str = "amends"
    dead_letter_prefix: str = "dlq."
    lanes: tuple[str, ...] = ("default",)
    ledger: str = field(init=False, repr=False)
    workflows: str = field(init=False, repr=False)
    incidents: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("ledger", "workflows", "incidents"):  # made once: they are asked for with every record
            object.__setattr__(self, name, f"{self.prefix}.{name}")

    @property
    def ledger_dead_letters(self) -> str:
        return f"{self.dead_letter_prefix}{self.ledger}"

    def changelog(self, engine: str = TRANSACTIONS) -> str:
        return f"{self.prefix}.processor-{engine}-changelog"

    def undo(self, lane: str) -> str:
        return f"{self.prefix}.undo.{lane}"

    def lane_group(self, lane: str) -> str:
        """Return the consumer group of a lane's compensators."""
        return f"{self.prefix}.compensator.{lane}"

    def undo_dead_letters(self, lane: str) -> str:
        return f"{self.dead_letter_prefix}{self.undo(lane)}"

    def specifications(
        self, *, ledger_retention_ms: int = 30 * DAY_MS, engine: str = TRANSACTIONS
    ) -> tuple[TopicSpecification, ...]:
        """Return every topic that must exist. The ledger keeps twice the longest workflow or more.

        `engine`: another engine than the default asks for a changelog of its own beside the default's.
        """
        record_bytes = {"max.message.bytes": "1048588"}
        large = {"max.message.bytes": "2097152"}
        kept = {"cleanup.policy": "delete", "retention.ms": str(30 * DAY_MS), **large}
        compacted = {"cleanup.policy": "compact", **record_bytes}
        ledger = {
            "cleanup.policy": "delete",
            "retention.ms": str(ledger_retention_ms),
            "message.timestamp.type": "LogAppendTime",
            **record_bytes,
        }
        changelog = {**compacted, "min.compaction.lag.ms": str(COMPACTION_LAG_MS)}
        undo = {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS), **record_bytes}
        return (
            TopicSpecification(self.ledger, ledger),
            TopicSpecification(self.workflows, compacted),
            TopicSpecification(self.incidents, compacted, co_partitioned=False),
            *(TopicSpecification(self.changelog(name), changelog) for name in dict.fromkeys((TRANSACTIONS, engine))),
            TopicSpecification(self.ledger_dead_letters, kept),
            *(TopicSpecification(self.undo(lane), undo) for lane in self.lanes),
            *(TopicSpecification(self.undo_dead_letters(lane), kept) for lane in self.lanes),
        )
