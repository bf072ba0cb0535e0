"""One ledger, one engine at a time: what a start finds of the other engine, and what a change of engine leaves behind.

Rules
- Each engine keeps its state in a changelog of its own, and none reads another's.
- Who has no state where another engine has some is refused: started so, it would begin where the group stands, without
  what was open. `--refold` builds the state from the ledger; with it the other engine's changelog is *left*: a record
  at the end of each of its partitions says so (`leaving`). The group's offsets are forgotten too: they are the other
  engine's.
- Who finds its own changelog left is refused too: what it kept is old. Its own `--refold` drops that record with the
  rest of the old state, partition by partition, with the first checkpoint of each.
- Both engines are members of one group, and the broker takes no member that shares partitions out in another way: two
  engines at once are refused by it. A start looks first, to say so in words.
"""

from __future__ import annotations

from collections.abc import Iterator

from amends.kafka.entrance import Entrance
from amends.kafka.errors import KafkaFault, TopicsWrong
from amends.kafka.groups import forget_group, group_seen
from amends.kafka.owned import HEAD
from amends.kafka.permission import HOW_TO_CHANGE_ENGINE, require_rights
from amends.kafka.publisher import Publisher
from amends.kafka.reader import PartitionReader
from amends.kafka.records import Record, TopicPartition
from amends.kafka.rights import Operation, Right, rights_to_change_engine
from amends.kafka.settings import KafkaSettings
from amends.processors import records
from amends.processors.engine import EngineError, OtherEngineError
from amends.processors.faust_changelog import LEFT_KEY, Restoring, mark_of
from amends.processors.leaving import is_left
from amends.processors.state import CLOSED_PHASES, Header
from amends.schemas.commands import Phase
from amends.schemas.topics import FAUST, TRANSACTIONS

ENGINES = {TRANSACTIONS: "range", FAUST: "faust"}
"""The engines, and how each shares out the partitions of its group."""
NAMED_MAX = 10
"""Workflows named in a refusal."""


class TwoEnginesError(EngineError):
    """Processors of the other engine are at work under the same application id."""

    exit_code = 78


class RefoldLosesError(EngineError):
    """The state holds open workflows that the ledger could not give back."""

    exit_code = 78


def refuse_two_engines(kafka: KafkaSettings, engine: str, group: str) -> None:
    """Raise TwoEnginesError if the group has members of another engine, as far as the broker tells: one that has had no
    group yet, or an ACL, may keep it from telling. Then the broker refuses the join."""
    try:
        seen = group_seen(kafka, group)
    except KafkaFault:
        return
    if seen.members and seen.assignor and seen.assignor != ENGINES[engine]:
        raise TwoEnginesError(two_engines_in_words(engine, group, seen.members))


def two_engines_in_words(engine: str, group: str, members: int | None = None) -> str:
    others = "members" if members is None else f"{members} member(s)"
    return (
        f"group {group} has {others} of another engine, and this processor is to run the engine {engine}: one ledger "
        "has one engine at a time. Set AMENDS_PROCESSOR__ENGINE to what the others run; or, to change the engine, stop "
        "every other processor and start once with --refold"
    )


def refuse_other_engine(kafka: KafkaSettings, engine: str) -> None:
    """Raise OtherEngineError unless this engine's own state is the newest, or nobody has any."""
    topics = kafka.topics
    with PartitionReader(kafka) as reader:
        own = _written(reader, topics.changelog(engine))
        if own and is_left(reader, topics.changelog(engine), engine):
            raise OtherEngineError(
                f"the state that the engine {engine} kept (topic {topics.changelog(engine)}) was left behind: another "
                "engine has folded this ledger since then. Stop every processor of the other engine, then start once "
                "with --refold: the state is built anew from the ledger"
            )
        for other in _others(engine):
            if not own and _written(reader, topics.changelog(other)):
                raise OtherEngineError(
                    f"the state of this ledger was kept by the engine {other} (topic {topics.changelog(other)}), and "
                    f"the engine {engine} has none. Stop every processor of the other engine, then start once with "
                    "--refold: the state is built anew from the ledger"
                )


def leave_other_engine(kafka: KafkaSettings, engine: str, group: str) -> None:
    """Say on the changelog of the other engine that it was left: `engine` builds its state from the ledger.

    Raises:
        AccessRefused: a right to do so is missing; nothing is changed.
        KafkaFault: the group's offsets can't be forgotten, since somebody is still at work.
    """
    with PartitionReader(kafka) as reader:
        written = _written_by_others(reader, kafka, engine)
        left = [topic for topic, other in written.items() if not is_left(reader, topic, other)]
    if not left:
        return
    _require_rights_to_change(kafka, engine, group, Operation.WRITE)
    forget_group(kafka, group)
    with Publisher(kafka) as publisher:
        for topic in left:
            for partition in range(kafka.partitions):
                publisher.publish_sync(topic, key=LEFT_KEY, value=engine.encode(), partition=partition)


def require_sight_of_other_engine(kafka: KafkaSettings, engine: str, group: str) -> None:
    """Raise AccessRefused if another engine has kept a state here that this client may not read."""
    with PartitionReader(kafka) as reader:
        written = _written_by_others(reader, kafka, engine)
    if written:
        _require_rights_to_change(kafka, engine, group, Operation.READ)


def _require_rights_to_change(kafka: KafkaSettings, engine: str, group: str, operation: Operation) -> None:
    rights = rights_to_change_engine(kafka, application_id=group, engine=engine)
    wanted = [Right(right.resource, right.name, (operation,)) for right in rights if operation in right.operations]
    require_rights(Entrance(kafka).admin, wanted, HOW_TO_CHANGE_ENGINE)


def refuse_loss(kafka: KafkaSettings) -> None:
    """Raise RefoldLosesError if a workflow is open that the ledger could not give back."""
    lost: set[str] = set()
    with PartitionReader(kafka) as reader:
        starts = {p: reader.watermarks(TopicPartition(kafka.topics.ledger, p))[0] for p in range(kafka.partitions)}
        for engine in ENGINES:
            topic = kafka.topics.changelog(engine)
            if any(starts.values()) and _written(reader, topic) and not is_left(reader, topic, engine):
                lost.update(_lost(reader, topic, engine, starts))
    if not lost:
        return
    more = f" and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
    raise RefoldLosesError(
        f"{len(lost)} open workflow(s) began before the ledger begins, and no Carry of them stands on it: "
        f"{', '.join(sorted(lost)[:NAMED_MAX])}{more}. Built anew from the ledger, the state would not hold them, and "
        "what they did would never be undone. Start without --refold; or look after them by hand, and start with "
        "--refold --accept-loss"
    )


def _lost(reader: PartitionReader, topic: str, engine: str, starts: dict[int, int]) -> Iterator[str]:
    for partition, value in _headers(reader, topic, engine, [p for p, start in starts.items() if start > 0]):
        header = _header(value)
        if header is None or header.phase in (Phase.NONE, *CLOSED_PHASES):
            continue
        if max(header.started_offset, header.carried_to + 1) < starts[partition]:
            yield header.workflow_id


def _headers(
    reader: PartitionReader, topic: str, engine: str, partitions: list[int]
) -> Iterator[tuple[int, bytes | None]]:
    """Yield the headers of workflows that count, with their partitions."""
    last: dict[tuple[int, bytes], bytes | None] = {}
    marked = {partition: Restoring() for partition in partitions}
    ends = reader.ends(topic, partitions)
    for batch in reader.read(dict.fromkeys(ends, HEAD), ends):
        for record in batch:
            if engine == FAUST:
                _take_marked(marked[record.partition], record)
            elif record.key is not None and records.is_header_key(record.key):
                last[record.partition, record.key] = record.value
    yield from ((partition, value) for (partition, _), value in last.items())
    for partition, restoring in marked.items():
        yield from ((partition, v) for k, v in restoring.ended().state.items() if records.is_header_key(k))


def _take_marked(restoring: Restoring, record: Record) -> None:
    if record.key is None or record.key == LEFT_KEY:
        return
    try:
        restoring.take(record.key, record.value, mark_of(record.headers))
    except ValueError:  # a state that can't be read is what one refolds for
        return


def _header(value: bytes | None) -> Header | None:
    """Return a header that can be read: a state that can't is what one refolds for."""
    try:
        return None if value is None or records.decode_parked(value) else records.decode_header(value)
    except (ValueError, TypeError, KeyError, IndexError):
        return None


def _others(engine: str) -> list[str]:
    return [other for other in ENGINES if other != engine]


def _written_by_others(reader: PartitionReader, kafka: KafkaSettings, engine: str) -> dict[str, str]:
    """Return the changelogs of other engines that hold anything, and whose they are."""
    changelogs = {kafka.topics.changelog(other): other for other in _others(engine)}
    return {topic: other for topic, other in changelogs.items() if _written(reader, topic)}


def _written(reader: PartitionReader, topic: str) -> bool:
    """Return whether anything was ever written to `topic`; False if there is no such topic."""
    try:
        partitions = reader.partitions_of(topic)
    except TopicsWrong:
        return False
    return any(reader.ends(topic, range(partitions)).values())
