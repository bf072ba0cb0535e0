"""`amends demo --attach`: agents on processors, compensators and services that others started and that others use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import left_running, new_mark

from amends.kafka.settings import KafkaSettings
from amends.local.kafka_server import KafkaServer
from amends.local.parts import Parts, environment, make_topics
from amends.local.story.cast import Cast
from amends.local.story.remotes import Remotes, remotes
from amends.local.story.tools import LANES

AMENDS = [sys.executable, "-m", "amends.console.main"]
LIMIT_S = 200


@pytest.fixture
def elsewhere(
    embedded_kafka: KafkaServer, embedded_redis_url: str, topic_prefix: str, tmp_path: Path
) -> Iterator[tuple[dict[str, str], Remotes]]:
    """What runs elsewhere: its variables, and its services."""
    settings = KafkaSettings(
        bootstrap_servers=embedded_kafka.bootstrap_servers,
        topic_prefix=topic_prefix,
        lanes=LANES,
        partitions=2,
        replication_factor=1,
        embedded=True,
    )
    with remotes() as outside:
        make_topics(settings)
        own = {"AMENDS_PROCESSOR__APPLICATION_ID": topic_prefix, "AMENDS_COMPENSATOR__REGISTRY_PREFIX": topic_prefix}
        variables = {**environment(settings, embedded_redis_url), **own, **outside.environment}
        cast = Cast(Parts(variables, tmp_path))
        try:
            cast.start_processor()
            cast.start_compensator()
            cast.wait_until_ready()
            yield variables, outside
        finally:
            cast.stop()


def demo(variables: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")}
    command = [*AMENDS, "demo", "--attach", *options]
    return subprocess.run(
        command, env={**kept, **variables}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_scenes_are_played_one_after_another_on_parts_that_go_on(elsewhere: tuple[dict[str, str], Remotes]) -> None:
    variables, outside = elsewhere
    mark = new_mark()
    killed = demo({**variables, **mark}, "--scene", "killed")
    assert killed.returncode == 0, killed.stdout + killed.stderr
    assert "All is well" in killed.stdout
    assert "the compensator at 127.0.0.1 waits for the answer, in vain" in killed.stdout
    refused = demo({**variables, **mark}, "--scene", "failed-call")
    assert refused.returncode == 0, refused.stdout + refused.stderr
    told = set(re.findall(r"order-[0-9a-f]{8}-\d+", refused.stdout))
    assert len(told) == 1, "it tells of its own order, and not of the one before"
    assert len({thing.order for thing in outside.world()}) == 2
    assert left_running(mark) == []


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("STORY_SHIPPING_URL", "is not set: STORY_SHIPPING_URL"),
        ("AMENDS_KAFKA__LANES", "AMENDS_KAFKA__LANES lacks payments, warehouse, shipping, ledger"),
    ],
)
def test_what_is_not_said_is_named_before_anything_is_done(missing: str, words: str) -> None:
    variables = {
        "AMENDS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "AMENDS_KAFKA__LANES": ",".join(LANES),
        "STORY_PAYMENTS_URL": "http://127.0.0.1:1",
        "STORY_WAREHOUSE_URL": "http://127.0.0.1:1",
        "STORY_SHIPPING_URL": "http://127.0.0.1:1",
    }
    run = demo({name: value for name, value in variables.items() if name != missing})
    assert (run.returncode, words in run.stderr) == (2, True), run.stderr


def test_servers_of_its_own_and_parts_elsewhere_are_not_to_be_had_at_once() -> None:
    run = demo({}, "--embedded")
    assert run.returncode == 2
    assert "leave out --redis and --embedded" in run.stderr
