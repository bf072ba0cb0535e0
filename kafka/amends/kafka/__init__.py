"""The only place of amends that touches a Kafka client: settings, confirmed writes, consumers, checkpoints, the ledger
follower and the topics."""

from __future__ import annotations

from amends.kafka.consumer import GroupConsumer
from amends.kafka.errors import (
    CheckpointAborted,
    CheckpointFenced,
    KafkaFault,
    MaybeWritten,
    NotWritten,
    OwnershipLost,
    ReadTimedOut,
    RecordGone,
    SettingsWrong,
    TopicsWrong,
    WriteError,
)
from amends.kafka.follower import LedgerFollower
from amends.kafka.owned import HEAD, TAIL
from amends.kafka.publisher import Publisher
from amends.kafka.reader import PartitionConsumer, PartitionReader
from amends.kafka.records import Ack, Batch, EndObserved, Outgoing, Record, TopicPartition, Writable
from amends.kafka.settings import KafkaSettings, load_settings
from amends.kafka.topics import check_topics, create_topics, examine_topics, require_topics
from amends.kafka.transactions import Checkpointer

__all__ = [
    "HEAD",
    "TAIL",
    "Ack",
    "Batch",
    "CheckpointAborted",
    "CheckpointFenced",
    "Checkpointer",
    "EndObserved",
    "GroupConsumer",
    "KafkaFault",
    "KafkaSettings",
    "LedgerFollower",
    "MaybeWritten",
    "NotWritten",
    "Outgoing",
    "OwnershipLost",
    "PartitionConsumer",
    "PartitionReader",
    "Publisher",
    "ReadTimedOut",
    "Record",
    "RecordGone",
    "SettingsWrong",
    "TopicPartition",
    "TopicsWrong",
    "Writable",
    "WriteError",
    "check_topics",
    "create_topics",
    "examine_topics",
    "load_settings",
    "require_topics",
]
