"""The topics: made as the protocol wants them, and what is wrong with those that exist."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from amends.kafka.entrance import Entrance
from amends.kafka.errors import KafkaFault, ReadTimedOut, TopicsWrong
from amends.kafka.owned import PASSING
from amends.kafka.permission import NO_RIGHT, no_right, require_rights
from amends.kafka.rights import Right, topics_of
from amends.kafka.settings import KafkaSettings
from amends.schemas.topics import FAUST, TRANSACTIONS, TopicSpecification

logger = logging.getLogger(__name__)

REQUEST_S = 15
LOOK_AGAIN_S = 0.02

AT_LEAST = frozenset({"retention.ms", "max.message.bytes", "min.compaction.lag.ms", "min.insync.replicas"})
"""Settings of which more is also right (and -1 is for ever)."""


@dataclass(frozen=True, slots=True)
class TopicsReport:
    """`problems`: a sentence each, with what to change. `not_judged`: what this broker doesn't tell."""

    problems: list[str]
    not_judged: list[str]


def create_topics(settings: KafkaSettings, engine: str = TRANSACTIONS) -> list[str]:
    """Create the topics that are missing; return their names. Those that exist are left as they are: check them.

    `engine`: the one of the processors.

    Raises:
        TopicsWrong: the broker refused one.
        AccessRefused: the brokers do not let this client in.
        ReadTimedOut: the broker did not answer.
    """
    entrance = Entrance(settings)
    admin, present = entrance.admin, entrance.topics()
    new = [_new_topic(settings, topic) for topic in wanted_topics(settings, engine) if topic.name not in present]
    created, refused = [], []
    for name, future in (admin.create_topics(new, operation_timeout=REQUEST_S) if new else {}).items():
        try:
            future.result(REQUEST_S)
            created.append(name)
        except KafkaException as error:
            # Somebody else created it in the same moment: as good as ours, and checked like ours.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                refused.append(f"topic {name} could not be created: {_why(error.args[0])}")
    if refused:
        raise TopicsWrong(refused)
    _wait_for_leaders(entrance, [topic.topic for topic in new])
    return created


def _why(cause: KafkaError) -> str:
    return str(no_right("Create", cause)) if cause.code() in NO_RIGHT else cause.str()


def _wait_for_leaders(entrance: Entrance, names: list[str]) -> None:
    """Wait until the broker itself knows new topics and their leaders: its controller answers before it tells it."""
    end = time.monotonic() + REQUEST_S
    while names:
        found = entrance.topics()
        names = [name for name in names if name not in found or not _has_leaders(found[name])]
        if names and time.monotonic() >= end:
            raise ReadTimedOut(f"topics were created, and {REQUEST_S} s later have no leaders: {', '.join(names)}")
        if names:
            time.sleep(LOOK_AGAIN_S)


def _option(settings: KafkaSettings, topic: TopicSpecification) -> str:
    return f" --engine {FAUST}" if topic.name == settings.topics.changelog(FAUST) else ""


def _has_leaders(topic: TopicMetadata) -> bool:
    return all(partition.error is None and partition.leader >= 0 for partition in topic.partitions.values())


def check_topics(settings: KafkaSettings, *, embedded: bool | None = None, engine: str = TRANSACTIONS) -> list[str]:
    """Return what is wrong with the topics, a sentence each; what can't be judged is logged. See `examine_topics`."""
    report = examine_topics(settings, embedded=embedded, engine=engine)
    for line in report.not_judged:
        logger.info(line)
    return report.problems


def require_topics(settings: KafkaSettings, rights: Sequence[Right] | None = None, engine: str = TRANSACTIONS) -> None:
    """Return if all topics are as the protocol wants them and this client has its rights.

    Args:
        rights: those of a part: they are required, and only the topics whose settings they let it read are looked at.
            None: all topics.
        engine: the one of the processors.

    Raises:
        TopicsWrong: topics are missing or wrong.
        AccessRefused: the brokers do not let this client in, or grant it too little.
        ReadTimedOut: no broker answers.
    """
    if rights is None:
        problems = check_topics(settings, engine=engine)
    else:
        entrance, found = entered(settings, rights)
        problems = _examined(settings, entrance.admin, found, only=topics_of(rights), engine=engine).problems
    if problems:
        raise TopicsWrong(problems)


def entered(
    settings: KafkaSettings, rights: Sequence[Right], deadline_ms: int = REQUEST_S * 1000
) -> tuple[Entrance, dict[str, TopicMetadata]]:
    """Return the entrance and the topics there are, once a client that needs these rights was let in and has them.

    Raises AccessRefused, ReadTimedOut.
    """
    entrance = Entrance(settings)
    found = entrance.topics(deadline_ms)
    if not settings.embedded:  # which knows no rights
        require_rights(entrance.admin, rights)
    return entrance, found


def examine_topics(
    settings: KafkaSettings, *, embedded: bool | None = None, engine: str = TRANSACTIONS
) -> TopicsReport:
    """Compare the topics that exist with those the protocol wants.

    Args:
        embedded: the broker is the embedded one, which doesn't tell a topic's settings; None: as in the settings.
        engine: the one of the processors, which may want a changelog of its own.

    Raises AccessRefused if the brokers do not let this client in, ReadTimedOut if none answers.
    """
    entrance = Entrance(settings)
    return _examined(settings, entrance.admin, entrance.topics(), embedded=embedded, engine=engine)


def _examined(
    settings: KafkaSettings,
    admin: AdminClient,
    found: Mapping[str, TopicMetadata],
    *,
    embedded: bool | None = None,
    only: frozenset[str] | None = None,
    engine: str = TRANSACTIONS,
) -> TopicsReport:
    embedded = settings.embedded if embedded is None else embedded
    topics = [topic for topic in wanted_topics(settings, engine) if only is None or topic.name in only]
    problems = [problem for topic in topics for problem in _layout_problems(settings, topic, found.get(topic.name))]
    if embedded:
        names = "clean-up, retention, timestamp type and sizes"
        return TopicsReport(problems, [f"not judged on the embedded broker, which doesn't tell: {names} of the topics"])
    present = [topic for topic in topics if topic.name in found]
    entries = _settings_of(admin, [topic.name for topic in present])
    for topic in present:
        problems += _setting_problems(topic.name, wanted_settings(settings, topic), entries[topic.name])
    return TopicsReport(problems, [])


def wanted_topics(settings: KafkaSettings, engine: str = TRANSACTIONS) -> tuple[TopicSpecification, ...]:
    """Return every topic that must exist under these settings, with that engine."""
    return settings.topics.specifications(ledger_retention_ms=settings.ledger_retention_ms, engine=engine)


def wanted_settings(settings: KafkaSettings, topic: TopicSpecification) -> Mapping[str, str]:
    """Return a topic's settings, with those that keep an acknowledged record (assumption A2)."""
    in_sync = "2" if settings.replication_factor >= 3 else "1"
    return {**topic.settings, "min.insync.replicas": in_sync, "unclean.leader.election.enable": "false"}


def _new_topic(settings: KafkaSettings, topic: TopicSpecification) -> NewTopic:
    return NewTopic(
        topic.name,
        num_partitions=settings.partitions,
        replication_factor=settings.replication_factor,
        config=dict(wanted_settings(settings, topic)),
    )


def _layout_problems(settings: KafkaSettings, topic: TopicSpecification, found: TopicMetadata | None) -> list[str]:
    if found is None:
        return [
            f"topic {topic.name} is missing, or this client may not know of it (Describe); make it with `amends topics "
            f"create{_option(settings, topic)}`"
        ]
    problems = []
    count = len(found.partitions)
    if topic.co_partitioned and count != settings.partitions:
        problems.append(
            f"topic {topic.name} has {count} partitions, and AMENDS_KAFKA__PARTITIONS says {settings.partitions}; all "
            "must have the same and it can't be changed in place: set the count of the topics, or use another prefix"
        )
    least = min(len(partition.replicas) for partition in found.partitions.values())
    if not settings.embedded and least < settings.replication_factor:
        problems.append(
            f"topic {topic.name} has {least} replica(s), and AMENDS_KAFKA__REPLICATION_FACTOR says "
            f"{settings.replication_factor}; reassign its partitions, or accept the risk by lowering the setting"
        )
    return problems


def _settings_of(admin: AdminClient, names: list[str]) -> dict[str, dict[str, ConfigEntry]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    answers = admin.describe_configs(resources, request_timeout=REQUEST_S) if resources else {}
    return settings_answered({resource.name: future for resource, future in answers.items()})


def settings_answered(answers: Mapping[str, Future[dict[str, ConfigEntry]]]) -> dict[str, dict[str, ConfigEntry]]:
    """Wait for the settings of topics. Raises ReadTimedOut if no broker answers, KafkaFault if one refuses to."""
    failed = "the settings of the topics can't be read"
    try:
        return {name: future.result(REQUEST_S) for name, future in answers.items()}
    except TimeoutError as late:
        raise ReadTimedOut(f"{failed}: no answer within {REQUEST_S:g} s") from late
    except KafkaException as error:
        cause: KafkaError = error.args[0]
        if cause.code() in NO_RIGHT:
            raise no_right(failed, cause) from error
        away = cause.retriable() or cause.code() in PASSING
        raise (ReadTimedOut if away else KafkaFault)(f"{failed}: {cause.str()}") from error


def _setting_problems(topic: str, wanted: Mapping[str, str], found: Mapping[str, ConfigEntry]) -> list[str]:
    problems = []
    for name, value in wanted.items():
        entry = found.get(name)
        actual = entry.value if entry is not None else None
        if actual is None:
            problems.append(f"topic {topic}: the broker doesn't tell {name}; it must be {value}")
        elif not _fits(name, value, actual):
            least = " or more" if name in AT_LEAST else ""
            problems.append(f"topic {topic}: {name} is {actual} and must be {value}{least}; change it on the topic")
    return problems


def _fits(name: str, wanted: str, actual: str) -> bool:
    if name in AT_LEAST:
        return int(actual) == -1 or int(actual) >= int(wanted) >= 0
    return set(actual.split(",")) == set(wanted.split(","))
