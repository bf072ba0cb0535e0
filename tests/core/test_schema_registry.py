"""The schema registry of a process: what a start learns, what it says when it can't, and what becomes of unknown ids.

Against a server of ours (`tests/contract/schema_registry_server.py`), which stands under one suite with a real one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.contract.schema_registry_server import OurRegistry
from tests.core.record_samples import avro_body, full, least

from amends.kafka.errors import SettingsWrong
from amends.kafka.registering import SchemasRefused, examine, register, subject_of, text_of
from amends.kafka.schema_registry import SchemaRegistry
from amends.kafka.schema_registry_answers import (
    NoSchemaRegistry,
    SchemaRegistryAway,
    SchemaRegistryFault,
    SchemaRegistryRefused,
)
from amends.kafka.schema_registry_client import SchemaRegistryClient
from amends.kafka.schema_registry_settings import SchemaRegistrySettings
from amends.schemas.codec import ON_TOPICS, UnreadableRecord, decode, encode_value, schema_of, use_framing
from amends.schemas.facts import StepEvent, Timeout
from amends.schemas.framing import frame, framed_id

SECRET = "s3cret-and-long"


@pytest.fixture
def server() -> Iterator[OurRegistry]:
    with OurRegistry() as server:
        yield server


Made = Callable[..., SchemaRegistry]


@pytest.fixture
def made(server: OurRegistry) -> Iterator[Made]:
    """Make registries that end with the test."""
    before = use_framing(None)
    registries: list[SchemaRegistry] = []

    def make(
        *, unknown_within_ms: int = 200, gives_up: Callable[[str], object] | None = None, **more: Any
    ) -> SchemaRegistry:
        settings = settings_of(server, **more)
        registries.append(SchemaRegistry(settings, unknown_within_ms=unknown_within_ms, gives_up=gives_up))
        use_framing(registries[-1].framing)
        return registries[-1]

    yield make
    use_framing(before)
    for registry in registries:
        registry.stop()


def settings_of(server: OurRegistry, **more: Any) -> SchemaRegistrySettings:
    return SchemaRegistrySettings(**{"url": (server.url,), "again_ms": 50, "request_ms": 1_000, **more})


def registered(server: OurRegistry) -> None:
    with SchemaRegistryClient(settings_of(server)) as client:
        assert not [subject for subject in register(client) if subject.problems]
    server.asked.clear()


def wait_until(is_so: Callable[[], bool], within_s: float = 20) -> None:
    until = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until, "not in time"
        threading.Event().wait(0.01)


# --- a start ---------------------------------------------------------------------------------------------------------


def test_ids_are_learned_at_the_start_and_no_write_or_read_asks_again(server: OurRegistry, made: Made) -> None:
    registered(server)
    registry = made().start()
    asked = len(server.asked)
    for record in ON_TOPICS:
        value = encode_value(full(record))
        assert framed_id(value) is not None
        assert decode(value) == full(record)
    assert len(server.asked) == asked
    assert registry.state.known


def test_a_start_without_registered_schemas_is_refused_and_names_the_command(made: Made) -> None:
    with pytest.raises(SettingsWrong, match=r"amends\.StepEvent.*amends schemas register"):
        made().start()


def test_a_start_registers_nothing_unless_asked(server: OurRegistry, made: Made) -> None:
    with pytest.raises(SchemasRefused):
        made().start()
    assert not [asked for asked in server.asked if asked.endswith("/versions") or asked.startswith("PUT")]


def test_a_start_registers_what_is_missing_if_asked(server: OurRegistry, made: Made) -> None:
    assert made(auto_register=True).start().state.known
    with SchemaRegistryClient(settings_of(server)) as client:
        assert client.compatibility(subject_of(Timeout)) == "FULL_TRANSITIVE"
        assert client.find(subject_of(Timeout), text_of(Timeout)) is not None


def test_an_incompatible_schema_refuses_the_start_with_subject_and_field(server: OurRegistry, made: Made) -> None:
    other = json.loads(text_of(StepEvent))
    other["fields"].append({"name": "mood", "type": "string"})
    with SchemaRegistryClient(settings_of(server)) as client:
        client.register("amends.StepEvent", json.dumps(other))
    with pytest.raises(SchemasRefused, match=r"amends\.StepEvent: .*version 1: StepEvent\.mood is gone") as refused:
        made(auto_register=True).start()
    assert "delete it from the subject" in str(refused.value)


def test_a_registry_that_is_away_refuses_no_start_and_is_asked_until_it_answers(
    server: OurRegistry, made: Made
) -> None:
    registered(server)
    server.fault = (503, b"down for repair")
    registry = made().start()
    assert not registry.state.known
    assert "HTTP 503" in registry.state.words
    assert encode_value(least(Timeout))[:2] == b"\xc3\x01"
    server.fault = None
    wait_until(lambda: registry.state.known)
    assert encode_value(least(Timeout))[:1] == b"\x00"
    assert registry.state.words == ""


def test_nothing_that_listens_is_away_too(made: Made) -> None:
    registry = made(url=("http://127.0.0.1:9",)).start()
    assert "does not answer" in registry.state.words


def test_a_registry_that_never_answers_holds_a_start_up_for_a_bounded_time(made: Made) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        assert not made(url=(url,), start_within_ms=300).start().state.known
        assert time.monotonic() - begun < 10


def test_the_next_address_is_asked_where_one_is_away(server: OurRegistry, made: Made) -> None:
    registered(server)
    assert made(url=("http://127.0.0.1:9", server.url)).start().state.known


def test_schemas_that_are_missing_when_it_comes_back_are_told_and_waited_for(server: OurRegistry, made: Made) -> None:
    server.fault = (500, b"")
    registry = made().start()
    server.fault = None
    wait_until(lambda: "amends schemas register" in registry.state.words)
    registered(server)
    wait_until(lambda: registry.state.known)


@pytest.mark.parametrize("user", ["agent:wrong", "nobody"])
def test_a_wrong_password_refuses_the_start_and_is_shown_nowhere(
    server: OurRegistry, made: Made, caplog: pytest.LogCaptureFixture, user: str
) -> None:
    registered(server)
    server.user = f"agent:{SECRET}"
    assert made(user="agent", password=SECRET).start().state.known
    more = {"user": "agent", "password": f"{SECRET}-not"} if user != "nobody" else {}
    with pytest.raises(SettingsWrong, match="AMENDS_SCHEMA_REGISTRY__PASSWORD") as refused:
        made(**more).start()
    assert SECRET not in f"{refused.value}{caplog.text}{settings_of(server, **more)!r}"


def test_what_is_no_registry_refuses_the_start(server: OurRegistry, made: Made) -> None:
    with pytest.raises(SettingsWrong, match="no registry at this path"):
        made(url=(f"{server.url}/wrong",)).start()
    server.fault = (200, b"<html>hello</html>")
    with pytest.raises(SettingsWrong, match="is no schema registry"):
        made().start()


ODD_ANSWERS = [
    b"", b"null", b"true", b"7", b'"words"', b"[]", b"{}", b"[null]", b'["1"]', b"[1e999]", b'{"id": null}',
    b'{"id": "1"}',
    b'{"id": 1e999}', b'{"id": NaN}', b'{"id": true}', b'{"id": -1}', b'{"id": 4294967296}', b'{"id": [1]}',
    b'{"schema": 7}', b'{"subject": "s", "version": 1, "schema": "{}"}', b'{"subject": 1, "id": 1, "schema": "{}"}',
    b'{"compatibilityLevel": 7}', b'{"message": {"a": 1}, "error_code": "40401"}', b'{"error_code": 404}',
    b"<html>hello</html>", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 900 + b"1" + b"}" * 900,
]  # fmt: skip
CALLS: list[Callable[[SchemaRegistryClient], object]] = [
    lambda client: client.schema(1),
    lambda client: client.find("amends.Timeout", text_of(Timeout)),
    lambda client: client.versions("amends.Timeout"),
    lambda client: client.version("amends.Timeout", 1),
    lambda client: client.compatibility("amends.Timeout"),
    lambda client: client.set_compatibility("amends.Timeout", "FULL_TRANSITIVE"),
    lambda client: client.register("amends.Timeout", text_of(Timeout)),
    examine,
    register,
]


@pytest.mark.parametrize("status", [200, 302, 400, 404, 409])
def test_an_answer_of_whatever_shape_is_taken_or_an_error_of_ours(server: OurRegistry, status: int) -> None:
    with SchemaRegistryClient(settings_of(server)) as client:
        for body in ODD_ANSWERS:
            server.fault = (status, body)
            for call in CALLS:
                with contextlib.suppress(SchemaRegistryFault):
                    call(client)


@pytest.mark.parametrize(
    ("call", "body", "wanted"),
    [
        (CALLS[0], b"[]", "asked for a schema, it answered "),
        (CALLS[1], b'{"subject": "s"}', "asked for a registered schema"),
        (CALLS[2], b'{"versions": [1]}', "asked for the versions of a subject"),
        (CALLS[3], b"7", "asked for a registered schema"),
        (CALLS[4], b"[]", "asked for a compatibility level"),
        (CALLS[6], b'{"identity": 1}', "asked for an id"),
        (CALLS[6], b'{"id": 4294967296}', "a record has 4 bytes for it"),
    ],
)
def test_an_answer_of_another_shape_names_what_was_asked_for_and_the_setting_to_look_at(
    server: OurRegistry, call: Callable[[SchemaRegistryClient], object], body: bytes, wanted: str
) -> None:
    server.fault = (200, body)
    with SchemaRegistryClient(settings_of(server)) as client, pytest.raises(NoSchemaRegistry) as told:
        call(client)
    assert wanted in str(told.value)
    assert "AMENDS_SCHEMA_REGISTRY__URL" in str(told.value)


@pytest.mark.parametrize("body", ODD_ANSWERS)
def test_a_start_is_refused_by_whatever_answers_in_another_shape(server: OurRegistry, made: Made, body: bytes) -> None:
    server.fault = (200, body)
    with pytest.raises(SettingsWrong, match="AMENDS_SCHEMA_REGISTRY__URL"):
        made(auto_register=True).start()


def test_a_registry_that_says_404_without_a_code_of_its_own_does_not_have_it(server: OurRegistry, made: Made) -> None:
    server.codes = False  # as Apicurio 2, or a gateway that writes its own body
    with pytest.raises(SchemasRefused, match="amends schemas register"):
        made().start()
    with SchemaRegistryClient(settings_of(server)) as client:
        assert client.versions("amends.Timeout") == []
        assert client.compatibility("amends.Timeout") == ""
        assert client.schema(1) is None
    assert made(auto_register=True).start().state.known


def test_a_404_of_what_is_no_registry_is_no_answer_about_schemas(server: OurRegistry, made: Made) -> None:
    for body in (
        b"404 page not found",
        b'{"error_code": 404, "message": "HTTP 404 Not Found"}',
        b'{"detail": "Not Found"}',
    ):
        server.fault = (404, body)
        with pytest.raises(SettingsWrong, match="no registry at this path") as refused:
            made().start()
        assert "AMENDS_SCHEMA_REGISTRY__URL" in str(refused.value)


FORKED = """
import os, sys, time
from amends.kafka.schema_registry_opening import open_schema_registry
from amends.schemas.codec import encode_value
from amends.schemas.facts import Timeout

registry = open_schema_registry()
assert not registry.state.known
child = os.fork()
if child == 0:
    print("forked", flush=True)
    until = time.monotonic() + 60
    while not registry.state.known and time.monotonic() < until:
        time.sleep(0.01)
    print("known" if registry.state.known else registry.state.words, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_child_goes_on_asking_a_registry_that_was_away(server: OurRegistry) -> None:
    registered(server)
    server.fault = (503, b"")
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")},
        "AMENDS_SCHEMA_REGISTRY__URL": server.url,
        "AMENDS_SCHEMA_REGISTRY__AGAIN_MS": "50",
    }
    with subprocess.Popen([sys.executable, "-c", FORKED], env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        server.fault = None
        assert parent.stdout.readline() == "known\n"


# --- ids of others ---------------------------------------------------------------------------------------------------


def strangers(server: OurRegistry) -> bytes:
    """Register another program's schema of a Timeout; return a value written with it."""
    schema = json.loads(text_of(Timeout))
    schema["fields"].append({"name": "mood", "type": ["null", "string"], "default": None})
    with SchemaRegistryClient(settings_of(server)) as client:
        number = client.register("amends.Timeout", json.dumps(schema))
    server.asked.clear()
    return frame(number) + avro_body(full(Timeout), schema, mood="blue")


def reads_once_mended(server: OurRegistry, registry: SchemaRegistry, value: bytes, fault: tuple[int, bytes]) -> None:
    """Read `value`, a Timeout, while the registry is hurt until it was asked once."""
    server.fault = fault
    failures = registry.state.failures

    def mend() -> None:
        wait_until(lambda: registry.state.failures > failures)
        server.fault = None

    mending = threading.Thread(target=mend)
    mending.start()
    assert decode(value) == full(Timeout)
    mending.join()


def test_an_unknown_id_is_asked_for_once_and_kept(server: OurRegistry, made: Made) -> None:
    registered(server)
    value = strangers(server)
    made().start()
    server.asked.clear()
    assert [decode(value) for _ in range(3)] == [full(Timeout)] * 3
    assert server.asked == [f"GET /schemas/ids/{framed_id(value)}"]
    server.fault = (503, b"")
    assert decode(value) == full(Timeout)


def test_a_short_outage_is_waited_out(server: OurRegistry, made: Made) -> None:
    registered(server)
    value = strangers(server)
    registry = made(unknown_within_ms=20_000).start()
    reads_once_mended(server, registry, value, (503, b""))


def test_a_long_outage_is_waited_out_once_and_ends_when_it_answers(server: OurRegistry, made: Made) -> None:
    registered(server)
    value = strangers(server)
    registry = made(unknown_within_ms=300, again_ms=60_000).start()
    server.fault = (503, b"")
    begun = time.monotonic()
    with pytest.raises(UnreadableRecord, match=r"could not be looked up: .*HTTP 503"):
        decode(value)
    assert time.monotonic() - begun >= 0.3
    asked = len(server.asked)
    for _ in range(100):
        with pytest.raises(UnreadableRecord):
            decode(value)
    assert len(server.asked) == asked, "within the outage nothing waits"
    registry._ask_again_ms = 0
    server.fault = None
    assert decode(value) == full(Timeout)


def test_our_own_ids_are_read_in_an_outage(server: OurRegistry, made: Made) -> None:
    registered(server)
    made().start()
    value = encode_value(full(StepEvent))
    server.fault = (503, b"")
    assert decode(value) == full(StepEvent)


def test_an_id_that_it_does_not_have_is_unreadable_at_once_and_not_asked_for_again(
    server: OurRegistry, made: Made
) -> None:
    registered(server)
    made(again_ms=60_000, unknown_within_ms=20_000).start()
    server.asked.clear()
    for _ in range(50):
        with pytest.raises(UnreadableRecord, match="schema 4711 is none that the registry knows"):
            decode(frame(4711) + b"\x02a")
    assert server.asked == ["GET /schemas/ids/4711"] * 2, "twice: its servers may learn one after another"


def test_a_process_that_never_heard_from_it_gives_up_instead_of_taking_a_fleet_for_strangers(
    server: OurRegistry, made: Made
) -> None:
    registered(server)
    value = strangers(server)
    server.fault = (503, b"")
    said: list[str] = []
    made(unknown_within_ms=100, again_ms=60_000, gives_up=said.append).start()
    with pytest.raises(UnreadableRecord):
        decode(value)
    assert len(said) == 1
    assert "has not answered since the start" in said[0]


def test_a_process_that_has_its_ids_does_not_give_up(server: OurRegistry, made: Made) -> None:
    registered(server)
    value = strangers(server)
    said: list[str] = []
    made(unknown_within_ms=100, gives_up=said.append).start()
    server.fault = (503, b"")
    with pytest.raises(UnreadableRecord):
        decode(value)
    assert said == []


def test_a_gateways_page_in_place_of_an_answer_makes_no_record_unreadable_before_its_time(
    server: OurRegistry, made: Made
) -> None:
    registered(server)
    value = strangers(server)
    registry = made(unknown_within_ms=20_000).start()
    reads_once_mended(server, registry, value, (404, b"default backend - 404"))


@pytest.mark.parametrize(
    "answer",
    [
        {"schema": "{}", "schemaType": "PROTOBUF"},
        {"schema": text_of(Timeout), "references": [{"name": "a", "subject": "b", "version": 1}]},
        {"schema": '"string"'},
        {"schema": "no JSON"},
        {},
        [],
    ],
)
def test_an_answer_that_is_no_schema_of_ours_makes_the_record_unreadable(
    server: OurRegistry, made: Made, answer: Any
) -> None:
    registered(server)
    made().start()
    server.fault = (200, json.dumps(answer).encode())
    with pytest.raises(UnreadableRecord, match="schema 4711"):
        decode(frame(4711) + b"\x02a")


def test_calls_that_are_refused_name_who_must_act(server: OurRegistry) -> None:
    with SchemaRegistryClient(settings_of(server)) as client:
        server.fault = (403, b"")
        with pytest.raises(SchemaRegistryRefused, match="HTTP 403"):
            client.schema(1)
        server.fault = (429, b"too many")
        with pytest.raises(SchemaRegistryAway, match="too many"):
            client.schema(1)


def test_every_record_on_a_topic_has_a_subject_of_its_own() -> None:
    assert len({subject_of(record) for record in ON_TOPICS}) == len(ON_TOPICS)
    assert subject_of(StepEvent) == "amends.StepEvent"
    assert json.loads(text_of(StepEvent)) == schema_of(StepEvent)
