"""Forgetting a group's offsets: what passes is waited for."""

from __future__ import annotations

import time

import pytest

from amends.kafka.errors import ReadTimedOut
from amends.kafka.groups import forget_group
from amends.kafka.settings import KafkaSettings
from amends.local.children import free_port


def test_brokers_that_are_away_are_asked_until_the_end_and_nobody_is_said_to_have_refused() -> None:
    settings = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}")
    began_at = time.monotonic()
    with pytest.raises(ReadTimedOut, match=r"group amends-processor can't be (deleted|forgotten)"):
        forget_group(settings, "amends-processor", within_s=1.2)
    assert time.monotonic() - began_at >= 1.0
