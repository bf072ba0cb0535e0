"""Whether a changelog was left: another engine has folded the ledger since its owner last kept anything there.

Rules
- `LEFT_KEY` says so. An owner that builds the state anew drops it, partition by partition, with the first checkpoint.
- Under transactions that checkpoint is one transaction: whatever stands behind the record drops it.
- Under Faust it counts once it is sealed. One that died before that leaves the record in force, and half a checkpoint
  behind it, of any length. So it is looked for from the end backwards, further each time, until a seal or the record
  itself is seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from amends.kafka.reader import PartitionReader
from amends.kafka.records import Record, TopicPartition
from amends.processors.faust_changelog import LEFT_KEY, SEAL_KEY, Rank, mark_of
from amends.schemas.topics import FAUST

FIRST_LOOK = 256
"""Offsets before the end, of each partition, that are read first."""
FURTHER = 8
"""How many times as many are read where these don't tell."""


def is_left(reader: PartitionReader, topic: str, engine: str) -> bool:
    """Return whether any partition of the changelog of `engine` was left. Raises KafkaFault."""
    ends = reader.ends(topic, range(reader.partitions_of(topic)))
    open_ends = {place: (reader.watermarks(place)[0], end) for place, end in ends.items()}
    look = FIRST_LOOK
    while open_ends:
        starts = {place: max(first, end - look) for place, (first, end) in open_ends.items() if first < end}
        tails: dict[TopicPartition, list[Record]] = {place: [] for place in open_ends}
        for batch in reader.read(starts, {place: ends[place] for place in starts}):
            for record in batch:
                tails[TopicPartition(record.topic, record.partition)].append(record)
        for place, tail in tails.items():
            told = tells_left(tail, engine, is_all=open_ends[place][0] >= starts.get(place, 0))
            if told:
                return True
            if told is False:
                del open_ends[place]
        look *= FURTHER
    return False


def tells_left(tail: Iterable[Record], engine: str, *, is_all: bool) -> bool | None:
    """Return whether a partition was left, None if the last of its records don't tell.

    Args:
        is_all: there are no more before these.
    """
    left: bool | None = None
    dropped: Rank | None = None  # the record, in a checkpoint that is not sealed yet
    for record in tail:
        if record.key == LEFT_KEY and record.value is not None:
            left, dropped = True, None
        elif engine != FAUST:
            left = False
        elif record.key == LEFT_KEY:
            dropped = _rank_of(record)
        elif record.key == SEAL_KEY and left is not True and dropped is None:
            left = False
        elif record.key == SEAL_KEY and dropped is not None and (_rank_of(record) or dropped) >= dropped:
            left, dropped = False, None
    if left is None and dropped is not None:
        return True  # compaction has taken the record, and nothing has sealed that it is dropped
    return left if left is not None or not is_all else False


def _rank_of(record: Record) -> Rank | None:
    try:
        return mark_of(record.headers).rank
    except ValueError:  # another program's: it says nothing here
        return None
