"""What must be true before a processor folds: topics as the protocol wants them, and no state of another engine."""

from __future__ import annotations

from amends.kafka.errors import ReadTimedOut, TopicsWrong
from amends.kafka.reader import PartitionReader
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import require_topics
from amends.processors.engine import EngineError, OtherEngineError

OTHER_ENGINES = ("faust",)


class TopicsRefusedError(EngineError):
    """The topics are not as the protocol wants them; the message has a sentence for each."""

    exit_code = 78


class BrokerAwayError(EngineError):
    """The broker did not answer at the start. Starting again later may help."""

    exit_code = 75


def check_start(kafka: KafkaSettings, *, refold: bool) -> None:
    """Return if a processor may start.

    Raises:
        TopicsRefusedError: topics are missing or wrong.
        OtherEngineError: another engine has folded this ledger and this one has not, and it is not to `refold`.
        BrokerAwayError: nobody answers.
    """
    try:
        require_topics(kafka)
        if not refold:
            _refuse_other_engine(kafka)
    except TopicsWrong as wrong:
        raise TopicsRefusedError(str(wrong)) from wrong
    except ReadTimedOut as late:
        raise BrokerAwayError(f"no answer from Kafka at {kafka.bootstrap_servers}: {late}") from late


def _refuse_other_engine(kafka: KafkaSettings) -> None:
    topics = kafka.topics
    with PartitionReader(kafka) as reader:
        if _written(reader, topics.changelog()):
            return
        for engine in OTHER_ENGINES:
            if _written(reader, topics.changelog(engine)):
                raise OtherEngineError(
                    f"the state of this ledger was kept by the engine {engine} (topic {topics.changelog(engine)}), and "
                    "the engine transactions has none. Stop every processor of the other engine, then start once with "
                    "--refold: the state is built anew from the ledger"
                )


def _written(reader: PartitionReader, topic: str) -> bool:
    """Return whether anything was ever written to `topic`; False if there is no such topic."""
    try:
        partitions = reader.partitions_of(topic)
    except TopicsWrong:
        return False
    return any(reader.ends(topic, range(partitions)).values())
