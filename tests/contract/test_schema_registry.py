"""What amends asks of a schema registry, of one of ours and of Apicurio itself: the same suite for both.

A real one gives its ids once, so each test has subjects of its own: records' names get a namespace.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.apicurio import NotFetched, apicurio, why_not
from tests.contract.schema_registry_server import OurRegistry
from tests.core.record_samples import avro_body, full

from amends.kafka import registering
from amends.kafka.errors import SettingsWrong
from amends.kafka.registering import LEVEL, Subject, examine, ids_of, register, subject_of, text_of
from amends.kafka.schema_registry import SchemaRegistry
from amends.kafka.schema_registry_answers import NoSchemaRegistry, SchemaRegistryAnswered
from amends.kafka.schema_registry_client import SchemaRegistryClient
from amends.kafka.schema_registry_settings import SchemaRegistrySettings
from amends.schemas.codec import (
    ON_TOPICS,
    Record,
    UnreadableRecord,
    decode,
    encode_value,
    schema_of,
    use_framing,
)
from amends.schemas.facts import StepEvent, Timeout
from amends.schemas.framing import frame, framed_id


@pytest.fixture(scope="module", params=["ours", pytest.param("apicurio", marks=pytest.mark.kafka)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if request.param == "ours":
            yield stack.enter_context(OurRegistry()).url
            return
        reason = why_not()
        if reason is not None:
            pytest.skip(f"no Apicurio Registry: {reason}")
        try:
            url = stack.enter_context(apicurio())
        except NotFetched as error:
            pytest.skip(f"no Apicurio Registry: {error}")
        yield url


@pytest.fixture
def settings(url: str) -> SchemaRegistrySettings:
    return SchemaRegistrySettings(url=(url,), request_ms=60_000, start_within_ms=300_000)


@pytest.fixture
def client(settings: SchemaRegistrySettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistryClient]:
    """A client, and subjects that no other test has."""
    namespace = f"amends.t{uuid.uuid4().hex[:8]}"

    def schema(record: type[Record]) -> dict[str, Any]:
        return {**schema_of(record), "namespace": namespace}

    monkeypatch.setattr(registering, "schema_of", schema)
    with SchemaRegistryClient(settings) as client:
        yield client


@pytest.fixture
def registry(settings: SchemaRegistrySettings, client: SchemaRegistryClient) -> Iterator[SchemaRegistry]:
    before = use_framing(None)
    registry = SchemaRegistry(settings)
    yield registry
    use_framing(before)
    registry.stop()


def of(subjects: list[Subject], record: type[Record]) -> Subject:
    return next(subject for subject in subjects if subject.subject == subject_of(record))


def changed(record: type[Record], **field: Any) -> str:
    schema = json.loads(text_of(record))
    schema["fields"].append(field)
    return json.dumps(schema)


def test_nothing_is_registered_at_first_and_each_subject_says_what_to_do(client: SchemaRegistryClient) -> None:
    assert ids_of(client) == {}
    for subject in examine(client):
        assert (subject.id, subject.version, subject.versions) == (None, None, ())
        assert "amends schemas register" in subject.problems[0]


def test_registering_sets_the_level_and_gives_ids_and_again_changes_nothing(client: SchemaRegistryClient) -> None:
    subjects = register(client)
    assert [subject.problems for subject in subjects] == [()] * len(ON_TOPICS)
    assert {subject.compatibility for subject in subjects} == {LEVEL}
    ids = ids_of(client)
    assert len(set(ids.values())) == len(ON_TOPICS)
    assert of(subjects, Timeout).id == ids[Timeout]
    assert register(client) == subjects == examine(client)


def test_the_registry_keeps_to_the_level(client: SchemaRegistryClient) -> None:
    register(client)
    with pytest.raises(SchemaRegistryAnswered) as refused:
        client.register(subject_of(Timeout), changed(Timeout, name="mood", type="string"))
    assert refused.value.status == 409


def test_a_schema_comes_back_by_its_id_as_it_was_registered(client: SchemaRegistryClient) -> None:
    register(client)
    for record, number in ids_of(client).items():
        found = client.schema(number)
        assert found is not None
        assert json.loads(found["schema"]) == json.loads(text_of(record))


def test_what_is_not_there_is_none_and_no_error(client: SchemaRegistryClient) -> None:
    assert client.schema(2_000_000_000) is None
    assert client.versions("amends.nothing") == []
    assert client.compatibility("amends.nothing") == ""
    assert client.find("amends.nothing", text_of(Timeout)) is None
    register(client)
    assert client.version(subject_of(Timeout), 99) is None
    assert client.find(subject_of(Timeout), changed(Timeout, name="mood", type="string")) is None


def test_what_does_not_fit_is_named_by_subject_version_and_field_and_nothing_is_changed(
    client: SchemaRegistryClient,
) -> None:
    client.register(subject_of(StepEvent), changed(StepEvent, name="mood", type="string"))
    subjects = register(client)
    (problem, *_) = of(subjects, StepEvent).problems
    assert "version 1: StepEvent.mood is gone, and had no default" in problem
    assert ids_of(client) == {}
    assert client.versions(subject_of(Timeout)) == []


def test_a_newer_version_that_fits_may_stand_beside_ours(client: SchemaRegistryClient) -> None:
    client.register(subject_of(Timeout), changed(Timeout, name="mood", type=["null", "string"], default=None))
    subject = of(register(client), Timeout)
    assert (subject.version, subject.versions, subject.problems) == (2, (1, 2), ())


def test_a_level_that_somebody_lowered_is_a_problem_until_it_is_set_again(client: SchemaRegistryClient) -> None:
    register(client)
    client.set_compatibility(subject_of(Timeout), "NONE")
    (problem,) = of(examine(client), Timeout).problems
    assert problem.startswith("its compatibility is NONE, and must be FULL_TRANSITIVE")
    assert of(register(client), Timeout).problems == ()


def test_a_process_learns_its_ids_and_reads_what_it_framed_and_what_it_did_not(
    client: SchemaRegistryClient, registry: SchemaRegistry
) -> None:
    plain = encode_value(full(StepEvent))
    register(client)
    use_framing(registry.start().framing)
    framed = encode_value(full(StepEvent))
    assert framed_id(framed) == ids_of(client)[StepEvent]
    assert decode(framed) == decode(plain) == full(StepEvent)


def test_a_strangers_id_is_looked_up_and_one_that_is_nobodys_is_unreadable(
    client: SchemaRegistryClient, registry: SchemaRegistry
) -> None:
    register(client)
    newer = changed(Timeout, name="mood", type=["null", "string"], default=None)
    number = client.register(subject_of(Timeout), newer)
    use_framing(registry.start().framing)
    assert decode(frame(number) + avro_body(full(Timeout), json.loads(newer), mood="blue")) == full(Timeout)
    with pytest.raises(UnreadableRecord, match="none that the registry knows"):
        decode(frame(2_000_000_000) + b"\x02a")


def test_a_start_with_nothing_registered_is_refused(registry: SchemaRegistry) -> None:
    with pytest.raises(SettingsWrong, match="amends schemas register"):
        registry.start()


def test_a_path_that_is_no_registrys_is_told(client: SchemaRegistryClient, settings: SchemaRegistrySettings) -> None:
    with (
        SchemaRegistryClient(settings.model_copy(update={"url": (f"{settings.url[0]}/wrong",)})) as lost,
        pytest.raises(NoSchemaRegistry, match="no registry at this path"),
    ):
        lost.versions(subject_of(Timeout))
