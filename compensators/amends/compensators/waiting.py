"""What waits in the lanes before anybody serves them: read once at start, without joining a group.

It is a look, not a promise: commands may come at any time, so at run time a missing handler is an answer as well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from amends.compensators.inventory import listed, missing_handlers
from amends.compensators.lane import UnreadableCommand, command_of, group_of
from amends.compensators.settings import CompensatorSettings
from amends.kafka.consumer import PartitionReader, committed_offsets
from amends.kafka.errors import KafkaFault
from amends.kafka.records import TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.schemas.commands import Command
from amends.tools.registry import HandlerRegistry

log = logging.getLogger(__name__)

LOOK_MS = 5_000
"""The look ends after this."""
RECORDS_MAX = 50_000
"""Commands that are looked at; about a second's work."""


class HandlersMissing(RuntimeError):  # noqa: N818 - what they are
    """Commands wait that name handlers which the loaded modules don't have; the message lists them."""


def require_handlers(
    kafka: KafkaSettings,
    settings: CompensatorSettings,
    lanes: Sequence[str],
    tools: HandlerRegistry,
    *,
    deadline_ms: int = LOOK_MS,
) -> None:
    """Look whether `tools` has the handlers that the waiting commands of these lanes name.

    Blocks, for some seconds at most. What can't be read in time is a warning.

    Raises:
        HandlersMissing: one is not there, and `missing_handlers` is `refuse`.
    """
    missing = missing_handlers(_looked_at(kafka, lanes, deadline_ms), tools)
    if not missing:
        return
    modules = ", ".join(settings.modules) or "none"
    words = f"commands wait for handlers that the loaded modules ({modules}) don't have:\n{listed(missing)}"
    if settings.missing_handlers == "incident":
        log.warning("%s\nThey will fail until their budget is spent; then a person is asked.", words)
        return
    raise HandlersMissing(
        f"{words}\n"
        "Name the MODULE that declares them too. If a tool was renamed, declare it under its old name as well, with "
        "its undo, until the workflows that used it are closed. Or set AMENDS_COMPENSATOR__MISSING_HANDLERS=incident "
        "to start all the same: these then fail until their budget is spent, a person is asked, and the others go on."
    )


def waiting_commands(
    kafka: KafkaSettings, lanes: Sequence[str], *, records_max: int = RECORDS_MAX, deadline_ms: int = LOOK_MS
) -> Iterator[Command]:
    """Yield what stands in the lanes behind the offsets that their groups committed, up to the end of now.

    Records that are no commands are left out. At `records_max`, or when the time is up, it ends and says so in the log.

    Raises:
        KafkaFault: they can't be read.
    """
    give_up_at = time.monotonic() + deadline_ms / 1000
    with PartitionReader(kafka) as reader:
        starts, ends = _waiting_range(kafka, lanes, reader, deadline_ms)
        count = 0
        for records in reader.read(starts, ends, idle_max_ms=deadline_ms):
            looked_at = records[: records_max - count]
            commands = map(command_of, looked_at)
            yield from (command for command in commands if not isinstance(command, UnreadableCommand))
            count += len(looked_at)
            if count >= records_max or time.monotonic() >= give_up_at:
                left = sum(ends[place] - starts[place] for place in ends) - count
                if left > 0:
                    log.warning("looked at %d waiting commands for missing handlers; about %d were not", count, left)
                return


def _looked_at(kafka: KafkaSettings, lanes: Sequence[str], deadline_ms: int) -> Iterator[Command]:
    try:
        yield from waiting_commands(kafka, lanes, deadline_ms=deadline_ms)
    except KafkaFault as error:
        log.warning("could not look at all waiting commands for missing handlers, going on: %s", error)


def _waiting_range(
    kafka: KafkaSettings, lanes: Sequence[str], reader: PartitionReader, deadline_ms: int
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for lane in lanes:
        written = {
            place: end
            for place, end in reader.ends(kafka.topics.undo(lane), range(kafka.partitions), deadline_ms).items()
            if end > 0
        }
        if not written:
            continue
        committed = committed_offsets(kafka, group_of(kafka, lane), written, deadline_ms)
        for place, end in written.items():
            # What retention took away is behind the oldest that is there, whatever was committed.
            start = max(committed.get(place, 0), reader.watermarks(place, deadline_ms)[0])
            if start < end:
                starts[place], ends[place] = start, end
    return starts, ends
