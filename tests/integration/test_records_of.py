"""An agent that writes for an older release: what it can say is said, what it can't is refused before the call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.core.agent_tools import WORLD, charge
from tests.integration.answering import Answerer

from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.kafka_server import KafkaServer
from amends.producers import ProducerSettings, Runtime, Succeeded, workflow
from amends.producers.kafka_ledger import kafka_runtime
from amends.tools import compensable
from amends.tools.errors import LedgerUnavailable


@compensable("shop.pay", fence="strict")
def pay(amount: int) -> dict[str, str]:
    WORLD.append(f"pay {amount}")
    return {"id": "pay_1"}


@pay.undo(arguments={"payment": "output.id"})
def repay(payment: str) -> None:
    WORLD.append(f"repay {payment}")


@pytest.fixture
def settings(embedded_kafka: KafkaServer, topic_prefix: str) -> KafkaSettings:
    settings = KafkaSettings(
        bootstrap_servers=embedded_kafka.bootstrap_servers,
        topic_prefix=topic_prefix,
        partitions=2,
        replication_factor=1,
        embedded=True,
        records_of="0.1.0",
    )
    create_topics(settings)
    WORLD.clear()
    return settings


@pytest.fixture
def runtime(settings: KafkaSettings) -> Iterator[Runtime]:
    runtime = kafka_runtime(settings, ProducerSettings(standing_within_ms=10_000))
    yield runtime
    runtime.close()


def test_a_call_that_the_release_can_not_be_told_of_is_refused_and_the_workflow_goes_on(
    runtime: Runtime, settings: KafkaSettings
) -> None:
    with Answerer(settings) as processor, workflow("w", agent="shop", runtime=runtime) as wf:
        with pytest.raises(LedgerUnavailable, match=r"Contract\.fence is set, of which release 0\.1\.0 knows nothing"):
            pay(500)
        charge("cus_1", 500)
    assert wf.outcome == Succeeded()
    assert not [done for done in WORLD if done.startswith("pay")]
    assert "shop.charge SUCCEEDED" in processor.statuses("w")
    assert not [told for told in processor.statuses("w") if told == "shop.pay STARTED"]
