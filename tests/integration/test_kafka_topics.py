"""The topic check on Apache Kafka names what is wrong and what to change."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from tests.integration.kafka_parts import eventually, with_topics

from amends.kafka import (
    GroupConsumer,
    KafkaSettings,
    Publisher,
    TopicPartition,
    TopicsWrong,
    check_topics,
    create_topics,
    require_topics,
)
from amends.kafka.deletion import delete_groups, delete_topics
from amends.local.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka


def change(settings: KafkaSettings, topic: str, values: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in values.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(15)


@pytest.mark.parametrize(
    ("topic", "values", "words"),
    [
        ("ledger", {"message.timestamp.type": "CreateTime"}, "message.timestamp.type is CreateTime"),
        ("ledger", {"cleanup.policy": "compact"}, "cleanup.policy is compact and must be delete"),
        ("ledger", {"retention.ms": "3600000"}, "retention.ms is 3600000"),
        ("workflows", {"cleanup.policy": "compact,delete"}, "cleanup.policy is compact,delete and must be compact"),
        ("incidents", {"max.message.bytes": "1000"}, "max.message.bytes is 1000"),
        ("workflows", {"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable is true"),
    ],
)
def test_a_setting_that_breaks_the_protocol_is_found(
    kafka: KafkaServer, topic_prefix: str, topic: str, values: dict[str, str], words: str
) -> None:
    settings = with_topics(kafka, topic_prefix, partitions=1)
    name = getattr(settings.topics, topic)
    change(settings, name, values)
    problems = eventually(lambda: [p for p in check_topics(settings) if words in p])
    assert name in problems[0]
    with pytest.raises(TopicsWrong, match="not as amends needs them"):
        require_topics(settings)


def test_more_than_asked_for_is_right(kafka: KafkaServer, topic_prefix: str) -> None:
    settings = with_topics(kafka, topic_prefix, partitions=1)
    change(settings, settings.topics.ledger, {"retention.ms": "-1"})
    assert check_topics(settings) == []


def test_topics_that_exist_are_left_as_they_are(kafka: KafkaServer, topic_prefix: str) -> None:
    settings = with_topics(kafka, topic_prefix, partitions=1)
    assert create_topics(settings) == []
    grown = settings.model_copy(update={"lanes": ("default", "payments")})
    assert create_topics(grown) == [f"{topic_prefix}.undo.payments", f"dlq.{topic_prefix}.undo.payments"]


def test_fewer_replicas_than_promised_are_found(kafka: KafkaServer, topic_prefix: str) -> None:
    settings = with_topics(kafka, topic_prefix, partitions=1)
    problems = check_topics(settings.model_copy(update={"replication_factor": 3}))
    assert any("has 1 replica(s)" in problem for problem in problems)
    assert any("min.insync.replicas is 1 and must be 2" in problem for problem in problems)
    with pytest.raises(TopicsWrong, match="could not be created"):
        create_topics(settings.model_copy(update={"topic_prefix": topic_prefix + "x", "replication_factor": 3}))


def test_what_a_run_made_is_deleted_and_nobody_elses(kafka: KafkaServer, topic_prefix: str) -> None:
    settings = with_topics(kafka, topic_prefix, partitions=1)
    other = with_topics(kafka, f"other-{topic_prefix}", partitions=1)
    groups = [f"{topic_prefix}.one", f"{topic_prefix}.two", f"other-{topic_prefix}.one"]
    with Publisher(settings) as publisher:
        publisher.publish_sync(settings.topics.ledger, key=b"k", value=b"v")
    for group in groups:
        with GroupConsumer(settings, group=group, topics=[settings.topics.ledger], session_ms=6_000) as consumer:
            eventually(lambda member=consumer: member.poll_batch(100, 1))  # type: ignore[misc]
            consumer.commit({TopicPartition(settings.topics.ledger, 0): 1})
    assert delete_topics(settings) == []
    assert delete_topics(settings) == [], "what is gone already is no failure"
    assert delete_groups(settings, topic_prefix) == []
    assert eventually(lambda: [p for p in check_topics(settings) if "is missing" in p])
    assert check_topics(other) == []
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    left = {group.group_id for group in admin.list_consumer_groups().result(15).valid}
    assert left & set(groups) == {groups[2]}
    delete_topics(other)
    assert delete_groups(settings, f"other-{topic_prefix}") == []
