"""The door for callbacks on a real broker: what it took is on the ledger, and what the ledger did not take is not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
from tests.core.ledger import contract_of
from tests.core.test_callbacks import CALL, NOW_MS, SETTINGS, TOKEN_SECRET, UNDO, Post, said

from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.servers import KafkaServer
from amends.producers.callback_start import settle_callback
from amends.producers.callbacks import CallbackDoor
from amends.producers.effects import Acknowledged
from amends.producers.kafka_ledger import KafkaLedger
from amends.schemas.codec import encode
from amends.schemas.facts import Decision, Resolution, StepEvent, StepStatus, UndoEvent, UndoStatus
from amends.tools import Undone
from amends.tools.callbacks import write_token


@pytest.fixture
def kafka_settings(embedded_kafka: KafkaServer, topic_prefix: str) -> KafkaSettings:
    settings = KafkaSettings(
        bootstrap_servers=embedded_kafka.bootstrap_servers,
        topic_prefix=topic_prefix,
        partitions=1,
        replication_factor=1,
        embedded=True,
    )
    create_topics(settings)
    return settings


@pytest.fixture
def ledger(kafka_settings: KafkaSettings) -> Iterator[KafkaLedger]:
    ledger = KafkaLedger(kafka_settings)
    yield ledger
    ledger.close()


def started(ledger: KafkaLedger) -> int:
    contract = contract_of("t")
    assert contract.undo is not None
    undo = dataclasses.replace(contract.undo, arguments={"charge": "output.id", "customer": "input.customer"})
    write = ledger.write(
        StepEvent(
            "w",
            "t",
            "p1",
            0,
            StepStatus.STARTED,
            "t",
            contract=encode(dataclasses.replace(contract, undo=undo)),
            input_payload=b'{"customer":"cus_1"}',
        )
    )
    assert isinstance(write, Acknowledged)
    return write.offset


async def test_a_callback_resolves_the_undos_arguments_from_the_intent_on_the_ledger(ledger: KafkaLedger) -> None:
    offset = started(ledger)
    token = write_token(dataclasses.replace(CALL, started_offset=offset), TOKEN_SECRET)
    door = CallbackDoor(ledger, SETTINGS, now_ms=lambda: NOW_MS)
    assert await Post(said(outcome="present", output={"id": "ch_1"}), token=token).to(door) == 204
    ((_, fact),) = ledger.history("w", offset + 1, offset + 1)
    assert isinstance(fact, Resolution)
    assert (fact.decision, fact.attempts, fact.by) == (Decision.PRESENT, ("p1",), "callback msg_1")
    assert json.loads(fact.undo_arguments or b"") == {"charge": "ch_1", "customer": "cus_1"}


def test_code_settles_as_a_webhook_does(
    ledger: KafkaLedger, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bootstrap_servers", "topic_prefix", "partitions", "replication_factor", "embedded"):
        monkeypatch.setenv(f"AMENDS_KAFKA__{name.upper()}", str(getattr(kafka_settings, name)))
    monkeypatch.setenv("AMENDS_CALLBACKS__TOKEN_SECRETS", TOKEN_SECRET)
    offset = started(ledger)
    settle_callback(write_token(UNDO, TOKEN_SECRET), Undone("in the export of 3 May"))
    ((_, fact),) = ledger.history("w", offset + 1, offset + 1)
    assert isinstance(fact, UndoEvent)
    assert (fact.status, fact.owner, fact.verified) == (UndoStatus.UNDONE, "delivery", True)
