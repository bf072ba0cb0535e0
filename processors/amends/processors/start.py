"""What must be true before a processor folds: topics as the protocol wants them, and no state of another engine."""

from __future__ import annotations

from amends.kafka.errors import AccessRefused, KafkaFault, ReadTimedOut, TopicsWrong
from amends.kafka.owned import HEAD
from amends.kafka.reader import PartitionReader
from amends.kafka.records import TopicPartition
from amends.kafka.rights import OTHER_ENGINES, Part, rights_of
from amends.kafka.schema_registry_opening import open_schema_registry
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import require_topics
from amends.processors import records
from amends.processors.engine import EngineError, OtherEngineError, RightMissingError
from amends.processors.state import CLOSED_PHASES, Header
from amends.processors.watchdog import end_process
from amends.schemas.commands import Phase


class TopicsRefusedError(EngineError):
    """The topics are not as the protocol wants them; the message has a sentence for each."""

    exit_code = 78


class BrokerAwayError(EngineError):
    """The broker did not answer at the start. Starting again later may help."""

    exit_code = 75


class RefoldLosesError(EngineError):
    """The state holds open workflows that the ledger could not give back."""

    exit_code = 78


NAMED_MAX = 10
"""Workflows named in a refusal."""


def learn_schemas() -> None:
    """Make the schema registry of the settings, if one is set, the one of this process.

    A fact whose schema can't be had yet holds the fold up for a while, then it is unreadable: a dead letter and an
    incident, until it is read. But a processor that has never heard from the registry ends itself instead: to it every
    fact of a stranger would look so.

    Raises:
        SettingsWrong: a setting is wrong, or the registry answers that something must be changed.
    """
    open_schema_registry(waits=True, gives_up=end_process)


def check_start(
    kafka: KafkaSettings,
    *,
    refold: bool,
    accept_loss: bool = False,
    application_id: str = "amends-processor",
) -> None:
    """Return if a processor may start.

    Raises:
        RightMissingError: Kafka does not let it in, or grants it too little.
        TopicsRefusedError: topics are missing or wrong, or may not be looked at.
        OtherEngineError: another engine has folded this ledger and this one has not, and it is not to `refold`.
        RefoldLosesError: it is to `refold`, and the ledger holds neither start nor Carry of a workflow that is open;
            unless the loss is accepted.
        BrokerAwayError: nobody answers.
    """
    try:
        require_topics(kafka, rights_of(Part.PROCESSOR, kafka, application_id=application_id))
        if not refold:
            _refuse_other_engine(kafka)
        elif not accept_loss:
            _refuse_loss(kafka)
    except TopicsWrong as wrong:
        raise TopicsRefusedError(str(wrong)) from wrong
    except AccessRefused as refused:
        raise RightMissingError(str(refused)) from refused
    except ReadTimedOut as late:
        raise BrokerAwayError(f"no answer from Kafka at {kafka.bootstrap_servers}: {late}") from late
    except KafkaFault as fault:  # it answered that we may not
        raise TopicsRefusedError(f"Kafka at {kafka.bootstrap_servers}: {fault}") from fault


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


def _refuse_loss(kafka: KafkaSettings) -> None:
    lost = _lost_by_refolding(kafka)
    if not lost:
        return
    more = f" and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
    raise RefoldLosesError(
        f"{len(lost)} open workflow(s) began before the ledger begins, and no Carry of them stands on it: "
        f"{', '.join(sorted(lost)[:NAMED_MAX])}{more}. Built anew from the ledger, the state would not hold them, and "
        "what they did would never be undone. Start without --refold; or look after them by hand, and start with "
        "--refold --accept-loss"
    )


def _lost_by_refolding(kafka: KafkaSettings) -> list[str]:
    """Return the ids of workflows that are open and that the ledger could not give back."""
    ledger, changelog = kafka.topics.ledger, kafka.topics.changelog()
    headers: dict[tuple[int, bytes], bytes | None] = {}
    with PartitionReader(kafka) as reader:
        ends = reader.ends(changelog, range(kafka.partitions))
        starts = {p: reader.watermarks(TopicPartition(ledger, p))[0] for p in range(kafka.partitions)}
        ends = {place: end for place, end in ends.items() if starts[place.partition] > 0}
        for batch in reader.read(dict.fromkeys(ends, HEAD), ends):
            for record in batch:
                if record.key is not None and records.is_header_key(record.key):
                    headers[record.partition, record.key] = record.value
    lost: list[str] = []
    for (partition, _), value in headers.items():
        header = _header(value)
        if header is None or header.phase in (Phase.NONE, *CLOSED_PHASES):
            continue
        if max(header.started_offset, header.carried_to + 1) < starts[partition]:
            lost.append(header.workflow_id)
    return lost


def _header(value: bytes | None) -> Header | None:
    """Return a header that can be read: a state that can't is what one refolds for."""
    try:
        return None if value is None or records.decode_parked(value) else records.decode_header(value)
    except (ValueError, TypeError, KeyError, IndexError):
        return None


def _written(reader: PartitionReader, topic: str) -> bool:
    """Return whether anything was ever written to `topic`; False if there is no such topic."""
    try:
        partitions = reader.partitions_of(topic)
    except TopicsWrong:
        return False
    return any(reader.ends(topic, range(partitions)).values())
