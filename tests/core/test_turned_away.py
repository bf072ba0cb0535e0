"""What a running part hears when brokers turn it away: said now and then, kept for a while, told by /healthz."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from amends.kafka.turned_away import COUNTS_MS, SAY_AGAIN_S, TurnedAway, turned_away
from amends.processors.health import ProcessorHealth
from amends.processors.watchdog import Progress

REFUSED = KafkaError(KafkaError._AUTHENTICATION, "Authentication failed: Invalid username or password")
NO_RIGHT = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed")
AWAY = KafkaError(KafkaError._TRANSPORT, "Connection refused")


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def nothing_was_heard() -> Iterator[None]:
    turned_away.forget()
    yield
    turned_away.forget()


def test_a_refusal_counts_for_a_while_and_a_broker_that_is_away_is_none() -> None:
    clock = Clock()
    heard = TurnedAway(clock)
    heard.hear(AWAY)
    assert heard.words() == ""
    heard.hear(REFUSED)
    assert "Invalid username or password" in heard.words()
    clock.now_s += COUNTS_MS / 1000 - 1
    heard.hear(AWAY)
    assert heard.words()
    clock.now_s += 1
    assert heard.words() == ""


def test_it_is_said_again_now_and_then_however_often_it_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    heard = TurnedAway(clock)
    with caplog.at_level(logging.ERROR):
        for _ in range(100):
            heard.hear(NO_RIGHT)
            clock.now_s += SAY_AGAIN_S / 50
    assert [record.message.count("Topic authorization failed") for record in caplog.records] == [1, 1]


def test_a_processor_that_is_turned_away_is_not_healthy_though_nothing_waits() -> None:
    health = ProcessorHealth(lambda: Progress(turns=1, lag=0), 10_000, lambda: 0)
    assert health().healthy
    turned_away.hear(REFUSED)
    assert not health().healthy
    assert "Invalid username or password" in health().reason
