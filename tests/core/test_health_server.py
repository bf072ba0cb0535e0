"""`/healthz` and `/metrics` over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from amends.kafka.health import Health, HealthServer
from amends.processors.health import prometheus_metrics
from amends.processors.watchdog import Progress


class Part:
    def __init__(self) -> None:
        self.health = Health(True, detail={"folded": 3})


@pytest.fixture
def part() -> Part:
    return Part()


@pytest.fixture
def server(part: Part) -> Iterator[HealthServer]:
    running = HealthServer(lambda: part.health, prometheus_metrics(lambda: Progress(folded=3, lag=None))).start()
    yield running
    running.stop()


def get(server: HealthServer, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_healthy_part_says_so(server: HealthServer) -> None:
    status, body = get(server, "/healthz")
    assert status == 200
    assert json.loads(body) == {"healthy": True, "reason": "", "folded": 3}


def test_a_stalled_part_answers_503_with_the_reason(server: HealthServer, part: Part) -> None:
    part.health = Health(False, "nothing moves")
    status, body = get(server, "/healthz")
    assert status == 503
    assert json.loads(body)["reason"] == "nothing moves"


def test_what_starting_anew_would_not_help_is_no_reason_to_end_a_part(server: HealthServer, part: Part) -> None:
    part.health = Health(False, "nothing moves")
    assert get(server, "/livez")[0] == 503
    part.health = Health(False, "the broker turns us away", waits=True)
    assert get(server, "/livez")[0] == 200
    assert get(server, "/healthz")[0] == 503


def test_metrics_are_in_prometheus_text(server: HealthServer) -> None:
    status, body = get(server, "/metrics")
    assert status == 200
    assert b"amends_processor_folded_total 3.0" in body
    assert b"amends_processor_lag_facts -1.0" in body


def test_another_path_is_not_found(server: HealthServer) -> None:
    assert get(server, "/")[0] == 404
