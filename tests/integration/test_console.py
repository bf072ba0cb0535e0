"""The command line on a broker: what is on the topics is what it shows, to people and to machines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.core.record_samples import full

from amends.console.application import run
from amends.console.exits import FAILED, NEEDS_ATTENTION, NOT_FOUND, OK, USAGE
from amends.kafka.publisher import Publisher
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.kafka_server import KafkaServer
from amends.schemas.codec import Record, encode
from amends.schemas.commands import DeadLetter, Incident, IncidentState, Phase, WorkflowEcho
from amends.schemas.contract import Effect
from amends.schemas.facts import StepEvent, StepStatus, UndoEvent, UndoStatus, WorkflowEvent, WorkflowStatus

Amends = Callable[..., tuple[int, str, str]]
INCIDENT = "abcdef0123456789" * 2


@pytest.fixture(scope="module")
def settings(embedded_kafka: KafkaServer) -> KafkaSettings:
    return KafkaSettings(
        bootstrap_servers=embedded_kafka.bootstrap_servers,
        topic_prefix="console",
        partitions=2,
        replication_factor=1,
        lanes=("payments",),
        embedded=True,
    )


@pytest.fixture(scope="module")
def ledger(settings: KafkaSettings) -> KafkaSettings:
    """One workflow that was turned and is half undone, one that succeeded, an incident, dead letters."""
    create_topics(settings)
    topics, publisher = settings.topics, Publisher(settings)

    def write(topic: str, key: str, record: Record | bytes, *headers: tuple[str, bytes]) -> int:
        value = record if isinstance(record, bytes) else encode(record)
        return publisher.publish_sync(topic, key=key.encode(), value=value, headers=headers).offset

    begin = write(topics.ledger, "order-1", WorkflowEvent("order-1", 0, WorkflowStatus.STARTED, agent_id="shop"))
    for step_id, tool in (("1" * 32, "payments.charge"), ("2" * 32, "shipping.label")):
        for status in (StepStatus.STARTED, StepStatus.SUCCEEDED):
            write(
                topics.ledger,
                "order-1",
                StepEvent(
                    "order-1",
                    step_id,
                    "p:1",
                    0,
                    status,
                    tool,
                    workflow_offset=begin,
                    side_effect_classification=Effect.COMPENSABLE,
                    output_payload=b'{"id": "pi_1"}' if status is StepStatus.SUCCEEDED else None,
                ),
            )
    write(topics.ledger, "order-1", WorkflowEvent("order-1", 0, WorkflowStatus.FAILED, workflow_offset=begin))
    undone = UndoEvent("order-1", "2" * 32, 1, 1, UndoStatus.UNDONE, "d", workflow_offset=begin, verified=True)
    write(topics.ledger, "order-1", undone)
    write(topics.ledger, "order-1", b"junk")
    write(
        topics.workflows, "order-1", WorkflowEcho("order-1", begin, 1, Phase.TURNED, 9, "half undone", 1, "shop", 2_000)
    )
    write(topics.workflows, "order-2", WorkflowEcho("order-2", 0, 0, Phase.SUCCEEDED, 5, "", 0, "shop", 1_000))
    incident = Incident(
        INCIDENT, "dead", IncidentState.OPEN, 3, "refund given up", "The refund\nfailed 5 times.", "order-1", begin
    )
    write(topics.incidents, INCIDENT, incident)
    letter = dataclasses.replace(
        full(DeadLetter), workflow_id="order-1", incident_id=INCIDENT, tool_name="payments.charge"
    )
    write(topics.undo_dead_letters("payments"), "order-1", letter, ("__dlq.errors.message", b"budget spent"))
    write(topics.ledger_dead_letters, "order-1", b"junk", ("__dlq.errors.message", b"neither Avro nor framed"))
    publisher.close()
    return settings


@pytest.fixture
def amends(ledger: KafkaSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Amends:
    for name in ("topic_prefix", "partitions", "replication_factor", "bootstrap_servers", "embedded"):
        monkeypatch.setenv(f"AMENDS_KAFKA__{name.upper()}", str(getattr(ledger, name)))
    monkeypatch.setenv("AMENDS_KAFKA__LANES", "payments")

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def document(amends: Amends, *arguments: str) -> Any:
    code, out, err = amends(*arguments, "--json")
    assert code == OK, err
    return json.loads(out)


def test_workflows_are_listed_newest_first(amends: Amends) -> None:
    code, out, _ = amends("workflows", "list")
    assert code == OK
    assert out.index("order-1") < out.index("order-2")
    assert [row["workflow_id"] for row in document(amends, "workflows", "list")] == ["order-1", "order-2"]
    assert [row["workflow_id"] for row in document(amends, "workflows", "list", "--phase", "succeeded")] == ["order-2"]
    assert len(document(amends, "workflows", "list", "--limit", "1")) == 1


def test_a_workflow_is_shown_with_what_is_open_and_what_to_do(amends: Amends) -> None:
    code, out, _ = amends("workflows", "show", "order-1")
    assert code == OK
    for words in ("TURNED", "payments.charge succeeded", "undone, verified", "nobody could read", "is still there"):
        assert words in out
    shown = document(amends, "workflows", "show", "order-1")
    assert [(step["tool"], step["status"], step["undo"]) for step in shown["steps"]] == [
        ("payments.charge", "present", ""),
        ("shipping.label", "present", "undone, verified"),
    ]
    assert len(shown["open"]) == len(shown["to_do"]) == 1


def test_what_is_not_there_ends_with_a_code_of_its_own(amends: Amends) -> None:
    for arguments in (
        ("workflows", "show", "order-3"),
        ("incidents", "show", "ffff"),
        ("dead-letters", "show", "payments:0:99"),
        ("dead-letters", "show", "payments:99:0"),
    ):
        code, _, err = amends(*arguments)
        assert code == NOT_FOUND, arguments
        assert "there is no" in err


def test_incidents_are_listed_shown_and_watched(amends: Amends) -> None:
    assert amends("incidents", "list", "--check")[0] == NEEDS_ATTENTION
    assert amends("incidents", "list", "--check", "--kind", "other")[0] == OK
    _, out, _ = amends("incidents", "show", INCIDENT[:6])
    assert "failed 5 times." in out
    assert document(amends, "incidents", "show", INCIDENT)["version"] == 3


def test_dead_letters_of_both_kinds_are_listed_and_shown(amends: Amends) -> None:
    rows = document(amends, "dead-letters", "list")
    assert {row["reason"] for row in rows} == {full(DeadLetter).reason, "neither Avro nor framed"}
    (dead_undo,) = document(amends, "dead-letters", "list", "--lane", "payments", "--open")
    assert dead_undo["incident_open"] is True
    code, out, _ = amends("dead-letters", "show", dead_undo["id"])
    assert code == OK
    assert full(DeadLetter).text in out
    (unreadable,) = document(amends, "dead-letters", "list", "--lane", "ledger")
    assert document(amends, "dead-letters", "show", unreadable["id"])["original"] == "junk"
    assert amends("dead-letters", "list")[0] == OK


def test_the_ledger_is_dumped_without_payloads_unless_asked(amends: Amends) -> None:
    code, out, _ = amends("ledger", "dump", "--workflow", "order-1", "--json")
    assert code == OK
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line.get("type") for line in lines] == [
        "WorkflowEvent", *["StepEvent"] * 4, "WorkflowEvent", "UndoEvent", None,
    ]  # fmt: skip
    assert "pi_1" not in out
    assert "pi_1" in amends("ledger", "dump", "--payloads", "--json")[1]
    assert len(amends("ledger", "dump", "--limit", "2")[1].splitlines()) == 2


def test_topics_are_checked(amends: Amends, monkeypatch: pytest.MonkeyPatch) -> None:
    assert amends("topics", "check")[0] == OK
    assert amends("topics", "create", "--json")[0] == OK
    monkeypatch.setenv("AMENDS_KAFKA__PARTITIONS", "3")
    code, _, err = amends("topics", "check")
    assert code == NEEDS_ATTENTION
    assert "partitions" in err


def test_missing_topics_and_wrong_settings_say_what_to_do(amends: Amends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENDS_KAFKA__TOPIC_PREFIX", "nowhere")
    code, _, err = amends("workflows", "list")
    assert code == FAILED
    assert "amends topics create" in err
    monkeypatch.setenv("AMENDS_KAFKA__TOPIC_PREFIXX", "x")
    code, _, err = amends("workflows", "list")
    assert code == USAGE
    assert "topic_prefix" in err
    monkeypatch.delenv("AMENDS_KAFKA__TOPIC_PREFIXX")
    assert amends("workflows", "list", "--since", "soon")[0] == USAGE
    assert amends("dead-letters", "show", "payments")[0] == USAGE
    assert amends("dead-letters", "list", "--lane", "other")[0] == USAGE


def test_settings_are_shown_with_their_origin_and_without_secrets(
    amends: Amends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMENDS_KAFKA__SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("AMENDS_KAFKA__SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("AMENDS_KAFKA__SASL_USERNAME", "me")
    monkeypatch.setenv("AMENDS_KAFKA__SASL_PASSWORD", "geheim")
    code, out, _ = amends("config", "show", "kafka", "--json")
    assert code == OK
    assert "geheim" not in out
    origins = {row["name"]: row["origin"] for row in json.loads(out)}
    assert origins["topic_prefix"] == "AMENDS_KAFKA__TOPIC_PREFIX"
    assert origins["options.sasl.password"] == "AMENDS_KAFKA__SASL_PASSWORD"
    assert origins["dead_letter_prefix"] == "default"


def test_the_schemas_are_checked(amends: Amends) -> None:
    code, out, _ = amends("schemas", "check")
    assert code == OK
    assert "AMENDS_SCHEMA_REGISTRY__URL" in out, "that no registry was asked is said"
    assert json.loads(amends("schemas", "check", "--json")[1])["registry_asked"] is False
