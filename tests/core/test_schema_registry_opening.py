"""The schema registry of a process: opened once, closed, and told of to those who watch a part."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.schema_registry_server import OurRegistry
from tests.core.record_samples import full

from amends.kafka.errors import SettingsWrong
from amends.kafka.health import Health
from amends.kafka.schema_registry_opening import (
    close_schema_registry,
    open_schema_registry,
    with_schema_registry,
    with_schema_registry_metrics,
)
from amends.schemas.codec import encode_value
from amends.schemas.facts import StepEvent
from amends.schemas.framing import framed_id


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OurRegistry]:
    close_schema_registry()
    with OurRegistry() as server:
        monkeypatch.setenv("AMENDS_SCHEMA_REGISTRY__URL", server.url)
        monkeypatch.setenv("AMENDS_SCHEMA_REGISTRY__AUTO_REGISTER", "true")
        yield server
        close_schema_registry()


def healthy() -> Health:
    return Health(True, "", {"open": 3})


def is_framed() -> bool:
    return framed_id(encode_value(full(StepEvent))) is not None


def test_none_is_opened_where_none_is_set(server: OurRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMENDS_SCHEMA_REGISTRY__URL")
    assert open_schema_registry() is None
    assert with_schema_registry(healthy)() == healthy()
    assert with_schema_registry_metrics(None) is None


def test_it_is_opened_once_until_it_is_closed(server: OurRegistry) -> None:
    opened = open_schema_registry()
    assert opened is not None
    assert is_framed()
    asked = len(server.asked)
    assert open_schema_registry() is opened
    assert len(server.asked) == asked
    close_schema_registry()
    assert not is_framed()


def test_one_that_only_reads_asks_nothing_until_it_is_to_write(server: OurRegistry) -> None:
    opened = open_schema_registry(learns=False)
    assert opened is not None
    assert (server.asked, is_framed()) == ([], False)
    assert opened.try_learn() == ""
    assert is_framed()


def test_one_that_refuses_is_not_opened(server: OurRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENDS_SCHEMA_REGISTRY__AUTO_REGISTER", "false")
    with pytest.raises(SettingsWrong):
        open_schema_registry()
    assert with_schema_registry(healthy)() == healthy()


def test_health_and_metrics_tell_how_it_stands_and_nobody_is_unhealthy_for_it(server: OurRegistry) -> None:
    server.fault = (503, b"away")
    opened = open_schema_registry()
    assert opened is not None
    seen = with_schema_registry(healthy)()
    assert seen.healthy
    assert seen.detail["open"] == 3
    told = seen.detail["schema_registry"]
    assert isinstance(told, dict)
    assert (told["encoding"], "HTTP 503" in told["trouble"]) == ("single-object", True)
    metrics = with_schema_registry_metrics(lambda: b"a 1\n")
    assert metrics is not None
    lines = metrics().decode().splitlines()
    assert lines[0] == "a 1"
    assert "amends_schema_registry_known 0" in lines
    server.fault = None
    assert opened.try_learn(10_000) == ""
    assert with_schema_registry(healthy)().detail["schema_registry"] == {"encoding": "registry", "trouble": ""}
    assert "amends_schema_registry_known 1" in metrics().decode().splitlines()
