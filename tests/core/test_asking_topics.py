"""What the settings of topics can't be read for: where no broker answers, starting again is all there is to do."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin._config import ConfigEntry

from amends.kafka import topics
from amends.kafka.errors import KafkaFault, ReadTimedOut
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import settings_answered
from amends.processors import start
from amends.processors.start import BrokerAwayError, TopicsRefusedError, check_start

Answer = Future[dict[str, ConfigEntry]]


def failed(code: int) -> dict[str, Answer]:
    answer = Answer()
    answer.set_exception(KafkaException(KafkaError(code)))
    return {"amends.ledger": answer}


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN])
def test_a_broker_that_dies_while_it_is_asked_has_not_answered(code: int) -> None:
    with pytest.raises(ReadTimedOut, match="the settings of the topics can't be read"):
        settings_answered(failed(code))


def test_a_broker_that_says_nothing_has_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "REQUEST_S", 0.01)
    with pytest.raises(ReadTimedOut, match="no answer"):
        settings_answered({"amends.ledger": Answer()})


def test_a_broker_that_refuses_has_answered() -> None:
    with pytest.raises(KafkaFault, match="authorization") as fault:
        settings_answered(failed(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert not isinstance(fault.value, ReadTimedOut)


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [(ReadTimedOut("no answer"), BrokerAwayError), (KafkaFault("not allowed"), TopicsRefusedError)],
)
def test_a_processor_that_can_not_look_at_its_topics_ends_with_a_word_and_a_code(
    fault: KafkaFault, refusal: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise fault

    monkeypatch.setattr(start, "require_topics", fails)
    with pytest.raises(refusal, match=str(fault)):
        check_start(KafkaSettings(), refold=False)
