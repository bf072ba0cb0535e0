"""A short chaos on one broker. The long ones are `make chaos`; see docs/proofs.md."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.chaos.chaos import chaos
from tests.chaos.evidence import told

from amends.local.kafka_server import why_no_apache_kafka
from amends.local.redis_server import why_no_redis_server

SECONDS = 45.0


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_promise_is_broken_while_chance_kills_freezes_and_cuts_off_all_parts(tmp_path: Path) -> None:
    why_not = why_no_apache_kafka() or why_no_redis_server()
    if why_not is not None:
        pytest.skip(f"no Apache Kafka: {why_not}")
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
    print(f"seed {seed}: CHAOS_SEED={seed} plays this schedule again")
    with chaos(seed, 1, tmp_path, print) as played:
        verdict = played.play(SECONDS)
    print(verdict)
    names = dict.fromkeys(line.partition(": ")[0] for line in verdict.wrong)
    assert not verdict.wrong, "\n".join([f"seed {seed}", *verdict.wrong, *told(list(names)[:3], tmp_path)])
    assert verdict.begun > 0
