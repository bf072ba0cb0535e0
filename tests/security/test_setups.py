"""Each way a Kafka is secured: a workflow that fails is undone by every kind of client, with least rights."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.kafka_parts import eventually
from tests.security.acls import grant_all
from tests.security.parts import (
    await_undone,
    compensator,
    fail_a_workflow,
    faust_worker,
    processor,
    variables_of,
)
from tests.security.secured import Secured, secret_of

from amends.console.application import run
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.schemas.topics import FAUST

pytestmark = [pytest.mark.kafka]

WAYS = ["tls", "mtls", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


@pytest.mark.parametrize("way", WAYS)
def test_a_workflow_that_fails_is_undone_through_listeners_that_are_secured(
    secured: Secured, way: str, topic_prefix: str, amends: Callable[..., str]
) -> None:
    grant_all(secured, topic_prefix)
    workflow_id = f"w-{uuid.uuid4().hex[:8]}"

    def settings(part: str) -> KafkaSettings:
        return secured.settings(way, part, topic_prefix)

    create_topics(settings("topics"))
    with processor(settings("processor")), compensator(settings("compensator")):
        fail_a_workflow(settings("agents"), workflow_id)
        await_undone(workflow_id)
        eventually(lambda: phases(amends, settings("console")) == {workflow_id: "COMPENSATED"})
    assert "as amends needs them" in amends(settings("console"), "topics", "check")


@pytest.mark.parametrize("way", WAYS)
def test_the_engine_faust_comes_in_the_same_ways(secured: Secured, way: str, topic_prefix: str, tmp_path: Path) -> None:
    pytest.importorskip("faust")
    grant_all(secured, topic_prefix, FAUST)
    workflow_id = f"w-{uuid.uuid4().hex[:8]}"
    create_topics(secured.settings(way, "topics", topic_prefix), FAUST)
    own = secured.settings(way, "processor", topic_prefix)
    with faust_worker(own, tmp_path) as worker, compensator(secured.settings(way, "compensator", topic_prefix)):
        fail_a_workflow(secured.settings(way, "agents", topic_prefix), workflow_id)
        await_undone(workflow_id)
        assert secret_of("processor") not in worker.log.read_text()


def phases(amends: Callable[..., str], kafka: KafkaSettings) -> dict[str, str]:
    return {row["workflow_id"]: row["phase"] for row in json.loads(amends(kafka, "workflows", "list", "--json"))}


@pytest.fixture
def amends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command of the console with settings of the environment; return what it says."""

    def call(kafka: KafkaSettings, *arguments: str) -> str:
        for name, value in variables_of(kafka).items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        code = run(arguments)
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.out

    return call
