"""Whether brokers answer, as /healthz tells it."""

from __future__ import annotations

import threading

import pytest

from amends.kafka.health import Health
from amends.kafka.reaching import SILENT_MAX_MS, Reach

WELL = Health(True, "", {"open": 3})


class Brokers:
    """Brokers that answer or not, and a clock."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.answer = True
        self.asked = threading.Semaphore(0)

    def __call__(self) -> bool:
        self.asked.release()
        return self.answer

    def clock(self) -> int:
        return self.now_ms


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def test_a_part_whose_brokers_are_silent_is_unhealthy_and_need_not_be_started_anew(brokers: Brokers) -> None:
    reach = Reach(brokers, now_ms=brokers.clock)
    judged = reach.judging(lambda: WELL)
    brokers.now_ms += SILENT_MAX_MS - 1
    assert judged().healthy
    brokers.now_ms += 1
    seen = judged()
    assert (seen.healthy, seen.waits) == (False, True)
    assert "no broker has answered for 30 s" in seen.reason
    assert "AMENDS_KAFKA__BOOTSTRAP_SERVERS" in seen.reason
    assert seen.detail == {"open": 3, "brokers_silent_ms": SILENT_MAX_MS}


@pytest.mark.parametrize("answers", [True, False])
def test_an_answer_ends_the_silence(brokers: Brokers, answers: bool) -> None:
    brokers.answer = answers
    reach = Reach(brokers, now_ms=brokers.clock, every_s=60)
    brokers.now_ms += SILENT_MAX_MS
    reach.start()
    assert brokers.asked.acquire(timeout=10)
    reach.stop()
    assert reach.judging(lambda: WELL)().healthy is answers


def test_what_is_wrong_with_the_part_itself_comes_before_the_brokers_silence(brokers: Brokers) -> None:
    reach = Reach(brokers, now_ms=brokers.clock)
    brokers.now_ms += SILENT_MAX_MS
    seen = reach.judging(lambda: Health(False, "its loop has not come round", {}))()
    assert (seen.reason, seen.waits) == ("its loop has not come round", False)
