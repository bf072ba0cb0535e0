"""`amends schemas`: what it tells people and programs about the schema registry, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from tests.contract.schema_registry_server import OurRegistry

from amends.console.application import run
from amends.kafka.registering import LEVEL, text_of
from amends.kafka.schema_registry_client import SchemaRegistryClient
from amends.kafka.schema_registry_settings import SchemaRegistrySettings
from amends.schemas.codec import ON_TOPICS
from amends.schemas.facts import StepEvent

Said = tuple[int, str, str]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OurRegistry]:
    with OurRegistry() as server:
        monkeypatch.setenv("AMENDS_SCHEMA_REGISTRY__URL", server.url)
        yield server


@pytest.fixture
def amends(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*arguments: str) -> Said:
        code = run(["schemas", *arguments])
        said = capsys.readouterr()
        return code, " ".join(said.out.split()), " ".join(said.err.split())

    return call


def test_what_is_missing_is_listed_then_registered_then_all_is_well(
    server: OurRegistry, amends: Callable[..., Said]
) -> None:
    code, out, _ = amends("check")
    assert (code, "run `amends schemas register`" in out) == (4, True)
    code, out, _ = amends("register")
    assert (code, out) == (0, f"the schema registry has all {len(ON_TOPICS)} schemas; each subject is {LEVEL}")
    code, out, _ = amends("list")
    assert (code, out.count(LEVEL)) == (0, len(ON_TOPICS))
    assert amends("check")[0] == 0


def test_programs_get_subjects_ids_and_problems(server: OurRegistry, amends: Callable[..., Said]) -> None:
    amends("register")
    with SchemaRegistryClient(SchemaRegistrySettings(url=(server.url,))) as client:
        client.set_compatibility("amends.StepEvent", "BACKWARD")
    code, out, _ = amends("check", "--json")
    subjects = {row["subject"]: row for row in json.loads(out)["subjects"]}
    assert code == 4
    assert len({row["id"] for row in subjects.values()}) == len(ON_TOPICS)
    assert subjects["amends.StepEvent"]["compatibility"] == "BACKWARD"
    assert "must be FULL_TRANSITIVE" in subjects["amends.StepEvent"]["problems"][0]
    assert json.loads(amends("list", "--json")[1])["subjects"] == list(subjects.values())


def test_what_does_not_fit_is_named_and_nothing_is_registered(server: OurRegistry, amends: Callable[..., Said]) -> None:
    other = json.loads(text_of(StepEvent))
    other["fields"] = [{**field, "type": "long"} if field["name"] == "step_id" else field for field in other["fields"]]
    with SchemaRegistryClient(SchemaRegistrySettings(url=(server.url,))) as client:
        client.register("amends.StepEvent", json.dumps(other))
        code, out, _ = amends("register", "--json")
        (row,) = (row for row in json.loads(out)["subjects"] if row["subject"] == "amends.StepEvent")
        assert code == 4
        assert 'version 1: StepEvent.step_id was "long" and became "string"' in row["problems"][0]
        assert client.versions("amends.Timeout") == []


def test_each_way_not_to_be_served_has_its_exit_code_and_its_words(
    server: OurRegistry, amends: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fault = (503, b"down for repair")
    code, _, err = amends("register")
    assert (code, "down for repair" in err) == (1, True)
    server.fault = (401, b"")
    code, _, err = amends("list")
    assert (code, "AMENDS_SCHEMA_REGISTRY__PASSWORD" in err) == (2, True)
    monkeypatch.delenv("AMENDS_SCHEMA_REGISTRY__URL")
    code, _, err = amends("register")
    assert (code, "AMENDS_SCHEMA_REGISTRY__URL" in err) == (2, True)
    code, out, _ = amends("check")
    assert (code, "all can be read" in out) == (0, True)
