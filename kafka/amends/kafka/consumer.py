"""Consumers: the member of a group is here; readers of partitions one names are in `reader` and can be had here too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import Consumer as ClientConsumer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from amends.kafka.embedded import true_ends
from amends.kafka.errors import KafkaFault, OwnershipLost
from amends.kafka.handles import Consumer
from amends.kafka.options import consumer_options, logger
from amends.kafka.owned import DISOWNED, HEAD, REQUEST_MS, TAIL, OwnedConsumer, asked_of_broker
from amends.kafka.reader import PartitionConsumer, PartitionReader
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings

__all__ = [
    "HEAD", "TAIL", "GroupConsumer", "OnAssigned", "OnGone", "PartitionConsumer", "PartitionReader",
    "committed_offsets",
]  # fmt: skip

OnAssigned = Callable[[list[TopicPartition]], Mapping[TopicPartition, int] | None]
OnGone = Callable[[list[TopicPartition]], None]


class GroupConsumer(OwnedConsumer):
    """A member of a consumer group that commits by hand.

    Partitions are assigned by range, so that equal partitions of co-partitioned topics come to the same member, and a
    rebalance revokes all and assigns anew.

    Args:
        instance_id: a name that stays the same over restarts (static membership): restarted within the session, the
            member gets its partitions back without a rebalance.
        session_ms: a member that was silent for so long is dead; 6,000 is the least a broker accepts by default.
        start: where a partition begins that has no committed offset: HEAD or TAIL.
        gather_ms: see `OwnedConsumer`.
        on_assigned: called before anything of the new partitions is returned and before their committed offsets are
            read; may return offsets to begin at in place of the committed ones.
        on_revoked: they are given up in order: offsets can still be committed.
        on_lost: another member may own them already: commit nothing, write nothing.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        group: str,
        topics: Sequence[str],
        instance_id: str | None = None,
        session_ms: int = 10_000,
        poll_gap_max_ms: int = 300_000,
        start: int = HEAD,
        gather_ms: int = 0,
        on_assigned: OnAssigned | None = None,
        on_revoked: OnGone | None = None,
        on_lost: OnGone | None = None,
    ) -> None:
        options = consumer_options(settings, group=group) | {
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": session_ms // 3 if session_ms < 9_000 else 3_000,
            "max.poll.interval.ms": max(poll_gap_max_ms, session_ms),
            "partition.assignment.strategy": "range",
            "auto.offset.reset": "earliest" if start == HEAD else "latest",
            # Nobody waits for the ends of a group's partitions, and each would wake the thread that polls.
            "enable.partition.eof": False,
        }
        if instance_id is not None:
            options["group.instance.id"] = instance_id
        super().__init__(options, true_ends(settings), gather_ms=gather_ms)
        self.group = group
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._consumer.subscribe(
            list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._partitions_lost
        )

    def commit(self, offsets: Mapping[TopicPartition, int], *, wait: bool = True) -> None:
        """Commit the next offset to read for each partition. `wait` False returns at once and promises nothing.

        Raises:
            OwnershipLost: refused, for the group went on without this member.
            KafkaFault: not committed; the same offsets may be committed again.
        """
        places = [ClientPartition(p.topic, p.partition, offset) for p, offset in offsets.items()]
        if not places:
            return
        try:
            if not wait:
                self._mine().commit(offsets=places, asynchronous=True)
                return
            answers = self._mine().commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            raise _commit_failed(error.args[0]) from error
        for answer in answers:
            if answer.error is not None:
                raise _commit_failed(answer.error)

    def committed(
        self, partitions: Iterable[TopicPartition], deadline_ms: int = REQUEST_MS
    ) -> dict[TopicPartition, int]:
        """Return the group's committed offsets; a partition without one is left out. Raises ReadTimedOut."""
        return _committed(self._mine(), self.group, partitions, deadline_ms)

    def group_metadata(self) -> object:
        """Return what a `Checkpointer` needs so that a member that was replaced is refused."""
        return self._mine().consumer_group_metadata()

    def _assigned(self, consumer: ClientConsumer, partitions: list[ClientPartition]) -> None:
        self._assignments += 1
        self._reads_elsewhere()
        places = [TopicPartition(p.topic, p.partition) for p in partitions]
        starts = self._on_assigned(places) if self._on_assigned is not None else None
        for partition, place in zip(partitions, places, strict=True):
            if starts is not None and place in starts:
                partition.offset = starts[place]
        consumer.assign(partitions)

    def _revoked(self, consumer: ClientConsumer, partitions: list[ClientPartition]) -> None:
        self._assignments += 1
        self._reads_elsewhere()
        if self._on_revoked is not None:
            self._on_revoked([TopicPartition(p.topic, p.partition) for p in partitions])
        consumer.unassign()

    def _partitions_lost(self, consumer: ClientConsumer, partitions: list[ClientPartition]) -> None:
        self._assignments += 1
        self._reads_elsewhere()
        if self._on_lost is not None:
            self._on_lost([TopicPartition(p.topic, p.partition) for p in partitions])
        consumer.unassign()


def committed_offsets(
    settings: KafkaSettings, group: str, partitions: Iterable[TopicPartition], deadline_ms: int = REQUEST_MS
) -> dict[TopicPartition, int]:
    """Return a group's committed offsets without being its member; a partition without one is left out.

    Raises ReadTimedOut.
    """
    consumer = Consumer(consumer_options(settings, group=group), logger=logger)
    try:
        return _committed(consumer, group, partitions, deadline_ms)
    finally:
        consumer.close()


def _committed(
    consumer: Consumer, group: str, partitions: Iterable[TopicPartition], deadline_ms: int
) -> dict[TopicPartition, int]:
    asked = [ClientPartition(*place) for place in partitions]
    answers = asked_of_broker(
        lambda left_s: consumer.committed(asked, timeout=left_s) if asked else [],
        f"offsets of group {group}",
        deadline_ms,
    )
    return {TopicPartition(p.topic, p.partition): p.offset for p in answers if p.offset >= 0}


def _commit_failed(error: KafkaError) -> KafkaFault:
    words = f"offsets not committed: {error.str()}"
    return OwnershipLost(words) if error.code() in DISOWNED or error.fatal() else KafkaFault(words)
