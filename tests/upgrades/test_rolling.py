"""Today's version rolled out over the last release and back, under load. The long ones are `make upgrades`.

Processors go first each time, so that on the way there today's processors command the release's compensators, and on
the way back the release's processors command today's compensators.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.upgrades.__main__ import ORDERS, play
from tests.upgrades.previous import NoSuchVersion, take_out
from tests.upgrades.rolling import REFOLD, rolling

from amends.local.kafka_server import KafkaServer
from amends.local.redis_server import RedisServer
from amends.local.servers import Servers

LAST = "0.1.0"


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_promise_is_broken_while_a_release_is_rolled_out_over_another_and_back(
    kafka: KafkaServer, own_redis: RedisServer, tmp_path: Path
) -> None:
    try:
        previous = take_out(LAST, tmp_path)
    except NoSuchVersion as missing:
        pytest.skip(str(missing))
    seed = int(os.environ.get("UPGRADE_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
    print(f"seed {seed}: UPGRADE_SEED={seed} plays these orders again")
    with rolling(
        Servers(kafka, own_redis),
        previous,
        tmp_path,
        new_settings={"AMENDS_KAFKA__RECORDS_OF": LAST},
        old_arguments=(REFOLD,),
    ) as played:
        runs = play(played, ORDERS["processors"], seed, at_once=3, between_s=1.0)
        strays = played.strays()
    told = [f"{run.order}, {run.plan}: {problem}" for run in runs for problem in run.problems]
    assert told == []
    assert strays == []
    assert played.stage.crashed == []
    assert {run.plan.seed % 2 for run in runs} == {0, 1}, "agents of one version only"
