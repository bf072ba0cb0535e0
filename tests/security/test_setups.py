"""Each way a Kafka is secured: a workflow that fails is undone by every kind of client, with least rights."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
from tests.integration.kafka_parts import eventually
from tests.security.acls import grant_all
from tests.security.parts import (
    await_undone,
    compensator,
    fail_a_workflow,
    processor,
    variables_of,
)
from tests.security.secured import Secured

from amends.console.application import run
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics

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
