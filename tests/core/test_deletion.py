"""Deleting what a run made: where nobody answers, what may be left is named, and soon."""

from __future__ import annotations

import pytest

from amends.kafka.deletion import delete_groups, delete_topics
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import wanted_topics
from amends.local.children import free_port
from amends.schemas.topics import FAUST


def test_what_a_broker_that_is_away_may_still_have_is_named() -> None:
    settings = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}", topic_prefix="run-1")
    assert delete_topics(settings, deadline_ms=200) == [topic.name for topic in wanted_topics(settings, FAUST)]
    assert delete_groups(settings, "run-1", deadline_ms=200) == ["run-1*"]


def test_every_group_of_a_cluster_is_never_meant() -> None:
    with pytest.raises(ValueError, match="every group"):
        delete_groups(KafkaSettings(), "")
