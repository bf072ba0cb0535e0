"""The least rights each part needs on a cluster that refuses whatever nobody granted.

The one table: `amends acls` prints it, the parts check it when they start, docs/security.md shows it (a test compares),
and a test takes a right away and looks who says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from amends.kafka.settings import KafkaSettings
from amends.schemas.topics import FAUST, TRANSACTIONS


class Part(StrEnum):
    """Who may have a principal of its own."""

    AGENTS = "agents"  # whatever has amends.producers in it, the door for callbacks included
    PROCESSOR = "processor"
    COMPENSATOR = "compensator"  # of a lane
    CONSOLE = "console"  # looks
    DECISIONS = "decisions"  # people who decide, beside what the console may
    TOPICS = "topics"  # makes the topics


class Resource(StrEnum):
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


class Operation(StrEnum):
    """As Kafka spells them. Read and Write include Describe."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"


@dataclass(frozen=True, slots=True)
class Right:
    """What may be done with one thing, or with all whose name begins so."""

    resource: Resource
    name: str
    operations: tuple[Operation, ...]
    prefixed: bool = False


READS = (Operation.READ,)
WRITES = (Operation.WRITE,)
BOTH = (Operation.READ, Operation.WRITE)
CHECKS_AND_READS = (Operation.READ, Operation.DESCRIBE_CONFIGS)
CHECKS_AND_WRITES = (Operation.WRITE, Operation.DESCRIBE_CONFIGS)
CHECKS_AND_BOTH = (Operation.READ, Operation.WRITE, Operation.DESCRIBE_CONFIGS)
MAKES = (Operation.CREATE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)


def rights_of(
    part: Part,
    settings: KafkaSettings,
    *,
    application_id: str = "amends-processor",
    lanes: Sequence[str] | None = None,
    engine: str = TRANSACTIONS,
) -> tuple[Right, ...]:
    """Return what `part` needs, and nothing that it does not.

    Args:
        application_id: the processor's (AMENDS_PROCESSOR__APPLICATION_ID).
        lanes: those that a compensator serves; None: all.
        engine: the one of the processors.
    """
    match part:
        case Part.AGENTS:
            return _agents(settings)
        case Part.PROCESSOR:
            return _processor(settings, application_id, engine)
        case Part.COMPENSATOR:
            return _compensator(settings, settings.lanes if lanes is None else lanes)
        case Part.CONSOLE:
            return _console(settings, engine)
        case Part.DECISIONS:
            return (_topic(settings.topics.ledger, *WRITES),)
        case Part.TOPICS:
            return tuple(_topic(t.name, *MAKES) for t in settings.topics.specifications(engine=engine))


def rights_to_change_engine(
    settings: KafkaSettings, *, application_id: str = "amends-processor", engine: str
) -> tuple[Right, ...]:
    """Return what a processor needs beside its own rights for the one start (`--refold`) that changes to `engine`.

    The state of the other engine is looked at and marked as left, and the offsets of its group are forgotten.
    """
    left = [settings.topics.changelog(other) for other in (TRANSACTIONS, FAUST) if other != engine]
    return *(_topic(name, *BOTH) for name in left), Right(Resource.GROUP, application_id, (Operation.DELETE,))


def _agents(settings: KafkaSettings) -> tuple[Right, ...]:
    topics = settings.topics
    return _topic(topics.ledger, *BOTH), _topic(topics.workflows, *READS)


def _processor(settings: KafkaSettings, application_id: str, engine: str) -> tuple[Right, ...]:
    topics = settings.topics
    transactional = (Right(Resource.TRANSACTIONAL_ID, f"{application_id}-checkpoint-", WRITES, prefixed=True),)
    written = [topics.workflows, topics.incidents, topics.ledger_dead_letters]
    for lane in settings.lanes:
        written += [topics.undo(lane), topics.undo_dead_letters(lane)]
    return (
        _topic(topics.ledger, *CHECKS_AND_BOTH),
        _topic(topics.changelog(engine), *CHECKS_AND_BOTH),
        # Who has folded the ledger last is looked at when a processor starts.
        *(_topic(topics.changelog(other), Operation.DESCRIBE) for other in (TRANSACTIONS, FAUST) if other != engine),
        *(_topic(name, *CHECKS_AND_WRITES) for name in written),
        Right(Resource.GROUP, application_id, READS),
        *(transactional if engine == TRANSACTIONS else ()),
    )


def _compensator(settings: KafkaSettings, lanes: Sequence[str]) -> tuple[Right, ...]:
    topics = settings.topics
    rights = [_topic(topics.ledger, *CHECKS_AND_BOTH)]
    for lane in lanes:
        rights += [
            _topic(topics.undo(lane), *CHECKS_AND_READS),
            _topic(topics.undo_dead_letters(lane), *CHECKS_AND_WRITES),
            Right(Resource.GROUP, topics.lane_group(lane), READS),
        ]
    return tuple(rights)


def _console(settings: KafkaSettings, engine: str) -> tuple[Right, ...]:
    """It reads no lane and no changelog: `topics check` looks how they are made."""
    topics = settings.topics
    only_checked = {topics.changelog(), topics.changelog(engine), *map(topics.undo, settings.lanes)}
    checks = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
    return tuple(
        _topic(topic.name, *(checks if topic.name in only_checked else CHECKS_AND_READS))
        for topic in topics.specifications(engine=engine)
    )


def _topic(name: str, *operations: Operation) -> Right:
    return Right(Resource.TOPIC, name, operations)


def topics_of(rights: Sequence[Right]) -> frozenset[str]:
    """Return the topics whose settings a part with these rights looks at: not those that it only asks after."""
    looked_at = (right for right in rights if Operation.DESCRIBE_CONFIGS in right.operations)
    return frozenset(right.name for right in looked_at if right.resource is Resource.TOPIC)
