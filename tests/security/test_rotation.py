"""A password that is changed under a running processor: it says so, goes on trying, and goes on once it is right."""

from __future__ import annotations

import time
import uuid

import pytest
from tests.integration.kafka_parts import eventually
from tests.security.acls import grant_all
from tests.security.parts import await_undone, compensator, fail_a_workflow, processor
from tests.security.secured import REAUTHENTICATES, Secured, secret_of, set_password

from amends.kafka.topics import create_topics
from amends.processors.health import ProcessorHealth

pytestmark = [pytest.mark.kafka]


def test_a_processor_whose_password_is_changed_says_so_and_goes_on_once_it_is_right(
    secured: Secured, topic_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    grant_all(secured, topic_prefix)
    create_topics(secured.settings("PLAIN", "topics", topic_prefix))
    others = {part: secured.settings("PLAIN", part, topic_prefix) for part in ("compensator", "agents")}
    before, after = (f"w-{uuid.uuid4().hex[:8]}" for _ in range(2))
    own = secured.settings(REAUTHENTICATES, "processor", topic_prefix)
    with processor(own) as running, compensator(others["compensator"]):
        health = ProcessorHealth(lambda: running.engine.progress, 60_000, lambda: int(time.monotonic() * 1000))
        fail_a_workflow(others["agents"], before)
        await_undone(before)
        assert health().healthy
        set_password(secured, "processor", REAUTHENTICATES, "another")
        try:
            eventually(lambda: not health().healthy)
            assert "turns this process away" in health().reason
            assert "invalid credentials" in health().reason
        finally:
            set_password(secured, "processor", REAUTHENTICATES, secret_of("processor"))
        fail_a_workflow(others["agents"], after)
        await_undone(after)
        assert not running.ended
    assert "goes on trying" in caplog.text
    assert secret_of("processor") not in caplog.text
