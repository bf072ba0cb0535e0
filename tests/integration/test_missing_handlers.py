"""A compensator that has not the handlers which waiting commands name says so at start, and can be told to start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.test_worker import LANE, Bench, bench_on

from amends.compensators.settings import CompensatorSettings
from amends.compensators.waiting import HandlersMissing, require_handlers, waiting_commands
from amends.compensators.worker import Worker
from amends.kafka import KafkaSettings
from amends.local.kafka_server import KafkaServer
from amends.tools import HandlerRegistry


@pytest.fixture(params=["embedded_kafka", pytest.param("kafka", marks=pytest.mark.kafka)])
def bench(request: pytest.FixtureRequest, topic_prefix: str, redis_url: str, tmp_path: Path) -> Iterator[Bench]:
    broker: KafkaServer = request.getfixturevalue(request.param)
    with bench_on(broker, topic_prefix, redis_url, tmp_path) as bench:
        yield bench


def waiting_in(kafka: KafkaSettings, **bounds: int) -> list[str]:
    return sorted(command.workflow_id for command in waiting_commands(kafka, (LANE,), **bounds))


@pytest.mark.redis
async def test_a_start_without_a_handler_that_waiting_commands_name_is_refused_with_what_to_change(
    bench: Bench,
) -> None:
    for workflow in ("w1", "w2"):
        bench.command(bench.undo(workflow, handler="files.renamed"))
    bench.command(bench.undo("w3"))
    with pytest.raises(HandlersMissing) as raised:
        await Worker(bench.kafka, bench.settings()).run(asyncio.Event())
    words = str(raised.value)
    for said in ("tests.integration.undo_tools", "the undo of files.renamed", "2 steps of w", "MODULE", "old name"):
        assert said in words
    assert "files.plain" not in words
    assert "AMENDS_COMPENSATOR__MISSING_HANDLERS=incident" in words
    assert waiting_in(bench.kafka) == ["w1", "w2", "w3"], "a look takes nothing"


@pytest.mark.redis
async def test_told_to_start_all_the_same_what_is_missing_fails_and_the_others_go_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.command(bench.undo("w1", handler="files.renamed"))
    bench.command(bench.undo("w2"))
    async with bench.worker(missing_handlers="incident"):
        await bench.until(lambda: bench.undo_statuses("w2") == ["STARTED", "UNDONE"])
        await bench.until(lambda: bench.undo_statuses("w1") == ["STARTED", "FAILED"])
        await bench.until_committed(2)
    assert "the undo of files.renamed, lane files: 1 step of w1" in caplog.text
    assert waiting_in(bench.kafka) == [], "what was done before is looked at no more"
    require_handlers(bench.kafka, bench.settings(), (LANE,), HandlerRegistry())


def test_records_that_are_no_commands_stop_no_look(bench: Bench) -> None:
    bench.publisher.publish_sync(bench.kafka.topics.undo(LANE), key=b"w", value=b"\xc3\x01 no command")
    bench.command(bench.undo("w1"))
    assert waiting_in(bench.kafka) == ["w1"]


def test_a_look_is_bounded_and_says_what_it_left(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    command = bench.undo("w1")
    for _ in range(5):
        bench.command(command)
    assert waiting_in(bench.kafka, records_max=2) == ["w1", "w1"]
    assert "looked at 2 waiting commands for missing handlers; about 3 were not" in caplog.text


def test_a_broker_that_is_away_is_a_warning_and_no_reason_not_to_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nobody = KafkaSettings(bootstrap_servers="127.0.0.1:1", lanes=(LANE,))
    with caplog.at_level(logging.WARNING):
        require_handlers(nobody, CompensatorSettings(), (LANE,), HandlerRegistry(), deadline_ms=200)
    assert "could not look at all waiting commands" in caplog.text
