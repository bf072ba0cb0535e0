"""`amends acls`: the table of rights, as an operator takes it to his cluster."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from amends.console.application import run
from amends.console.exits import OK, USAGE
from amends.kafka.rights import Operation, Part, Resource, rights_of
from amends.kafka.settings import KafkaSettings

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = KafkaSettings(lanes=("payments", "shipping"))


@pytest.fixture(autouse=True)
def two_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENDS_KAFKA__LANES", "payments,shipping")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["acls", *arguments]) == OK
    return capsys.readouterr().out


def documents(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(said(capsys, *arguments, "--json"))


def test_every_right_of_every_part_is_printed_once_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys).splitlines()
    rights = [(part, right) for part in Part for right in rights_of(part, SETTINGS)]
    assert len(lines) == len(rights) == len(set(lines))
    for line, (part, right) in zip(lines, rights, strict=True):
        words = shlex.split(line)
        assert words[:2] == ["kafka-acls", "--bootstrap-server"]
        assert words[words.index("--allow-principal") + 1] == f"User:amends-{part.value}"
        assert words[words.index(f"--{right.resource}") + 1] == right.name
        assert [words[at + 1] for at, word in enumerate(words) if word == "--operation"] == list(right.operations)
        assert ("prefixed" in words) == right.prefixed


def test_principals_lanes_and_the_application_id_are_those_of_the_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMENDS_PROCESSOR__APPLICATION_ID", "fold")
    monkeypatch.setenv("AMENDS_KAFKA__TOPIC_PREFIX", "shop")
    found = documents(capsys, "--part", "processor", "--principal", "processor=User:CN=fold,O=shop")
    assert {row["principal"] for row in found} == {"User:CN=fold,O=shop"}
    assert [row["name"] for row in found if row["resource"] != "topic"] == ["fold", "fold-checkpoint-"]
    found = documents(capsys, "--part", "compensator", "--lane", "shipping")
    assert {row["name"] for row in found} == {
        "shop.ledger", "shop.undo.shipping", "dlq.shop.undo.shipping", "shop.compensator.shipping",
    }  # fmt: skip


def test_the_engine_of_the_processors_has_a_changelog_of_its_own_and_faust_no_transactions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMENDS_PROCESSOR__ENGINE", "faust")
    found = documents(capsys, "--part", "processor")
    (changelog,) = [row for row in found if row["name"] == "amends.processor-faust-changelog"]
    assert changelog["operations"] == ["Read", "Write", "DescribeConfigs"]
    assert not any(row["resource"] == "transactional-id" for row in found)


def test_only_the_topics_part_creates_and_nobody_alters_or_deletes() -> None:
    for part in Part:
        for right in rights_of(part, SETTINGS):
            assert (Operation.CREATE in right.operations) == (part is Part.TOPICS)
            assert Operation.DELETE not in right.operations
    assert not {operation.value for operation in Operation} & {"Alter", "AlterConfigs", "ClusterAction", "All"}


@pytest.mark.parametrize(("engine", "other"), [("faust", "transactions"), ("transactions", "faust")])
def test_the_start_that_changes_the_engine_needs_the_others_changelog_and_to_delete_the_group(
    capsys: pytest.CaptureFixture[str], engine: str, other: str
) -> None:
    found = documents(capsys, "--refold", "--engine", engine)
    assert [(row["principal"], row["name"], row["operations"]) for row in found] == [
        ("User:amends-processor", f"amends.processor-{other}-changelog", ["Read", "Write"]),
        ("User:amends-processor", "amends-processor", ["Delete"]),
    ]


def test_who_only_looks_writes_nothing_and_agents_write_no_lane() -> None:
    def writes(part: Part) -> set[str]:
        return {r.name for r in rights_of(part, SETTINGS) if Operation.WRITE in r.operations}

    assert writes(Part.CONSOLE) == writes(Part.TOPICS) == set()
    assert writes(Part.AGENTS) == writes(Part.DECISIONS) == {"amends.ledger"}
    assert not any(".undo." in name and not name.startswith("dlq.") for name in writes(Part.COMPENSATOR))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lane", "payment"], "there is no lane 'payment'"),
        (["--principal", "processors=User:x"], "PART=TYPE:NAME"),
        (["--principal", "processor=x"], "PART=TYPE:NAME"),
    ],
)
def test_what_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert run(["acls", *arguments]) == USAGE
    assert words in capsys.readouterr().err


def test_the_table_of_the_documents_is_the_table_of_the_code() -> None:
    """docs/security.md, "Who needs which rights": part, resource, name and operations of the default settings."""
    page = (ROOT / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| (\w+) \| ([\w ]+) \| `([^`]+)` \| ([\w, ]+) \|$", page, flags=re.MULTILINE)
    found = {(part, kind, name, operations) for part, kind, name, operations in rows}
    wanted = {
        (part.value, _kind(right.resource, right.prefixed), right.name, ", ".join(right.operations))
        for part in Part
        for right in rights_of(part, KafkaSettings(lanes=("L",)))
    }
    assert found == wanted
    assert len(rows) == len(wanted)


def _kind(resource: Resource, prefixed: bool) -> str:
    kind = resource.value.replace("-", " ")
    return f"{kind} prefix" if prefixed else kind
