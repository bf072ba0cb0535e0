"""How a worker of Faust ends."""

from __future__ import annotations

import subprocess
import sys

STARTED_WHEN_THE_BROKER_HAD_GONE = """
from amends.kafka.settings import KafkaSettings
from amends.processors.faust_worker import make_app
from amends.processors.partition import Partition
from amends.processors.settings import ProcessorSettings
from amends.processors.terms import Terms

settings = ProcessorSettings(engine="faust")
app = make_app(KafkaSettings(bootstrap_servers="127.0.0.1:9"), settings, lambda n: Partition(n, Terms()))
app.Worker(loglevel="ERROR").execute_from_commandline()
"""


def test_a_broker_that_goes_while_faust_starts_is_to_be_tried_again() -> None:
    """Found by chaos: the broker had answered when it was looked for, and was away when Faust's client came."""
    ended = subprocess.run(
        [sys.executable, "-c", STARTED_WHEN_THE_BROKER_HAD_GONE], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 75, ended.stderr
    assert "amends processor: Faust ended: KafkaConnectionError" in ended.stderr
