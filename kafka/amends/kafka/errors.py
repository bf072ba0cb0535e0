"""What can go wrong between amends and Kafka, one class per thing a caller does about it.

The names say what is true.
"""

# ruff: noqa: N818

from __future__ import annotations

from collections.abc import Sequence


class KafkaFault(Exception):
    """Something about Kafka that the caller must act on."""


class WriteError(KafkaFault):
    """A record was not acknowledged. One of the two below; `code` is the client's name of the cause."""

    def __init__(self, reason: str, *, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class NotWritten(WriteError):
    """The record is certainly not on the topic, and will not come: it may be sent again without a duplicate."""


class MaybeWritten(WriteError):
    """The record may be on the topic, or may still arrive there; nobody can tell from here."""


class CheckpointAborted(KafkaFault):
    """Nothing of this checkpoint is visible. The producer is good: the same records may be committed again."""


class CheckpointFenced(KafkaFault):
    """Another owner has taken over, or the producer is broken for good: stop the partition, write nothing more."""


class OwnershipLost(KafkaFault):
    """This member is no longer the owner of what it consumes: drop the work, commit nothing."""


class GroupRefused(KafkaFault):
    """The group has members that share its partitions out in another way, and takes none that does not."""


class RecordGone(KafkaFault):
    """The topic no longer holds what was asked for (retention, or deletion by hand)."""


class ReadTimedOut(KafkaFault):
    """What was asked for was not read before the deadline. It says nothing about what stands on the topic."""


class AccessRefused(KafkaFault):
    """The brokers are there and turn this client away: TLS, credentials, or a right that it has not. The message names
    what to change, and no secret."""


class TopicsWrong(KafkaFault):
    """Topics are missing or not as the protocol wants them; `problems` has one sentence for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("the topics are not as amends needs them:\n" + "\n".join(f"- {p}" for p in self.problems))


class SettingsWrong(ValueError):
    """A setting is unknown, unreadable, or would break a promise; the message says which and what to change."""
