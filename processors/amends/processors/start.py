"""What must be true before a processor folds: topics as the protocol wants them, and no other engine at its place."""

from __future__ import annotations

from amends.kafka.errors import AccessRefused, KafkaFault, ReadTimedOut, TopicsWrong
from amends.kafka.rights import Part, rights_of
from amends.kafka.schema_registry_opening import open_schema_registry
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import require_topics
from amends.processors.engine import EngineError, RightMissingError
from amends.processors.engine_change import (
    RefoldLosesError,
    leave_other_engine,
    refuse_loss,
    refuse_other_engine,
    refuse_two_engines,
    require_sight_of_other_engine,
)
from amends.processors.settings import ProcessorSettings
from amends.processors.watchdog import end_process
from amends.schemas.topics import FAUST, TRANSACTIONS

__all__ = ["BrokerAwayError", "RefoldLosesError", "TopicsRefusedError", "check_start", "learn_schemas"]


class TopicsRefusedError(EngineError):
    """The topics are not as the protocol wants them; the message has a sentence for each."""

    exit_code = 78


class BrokerAwayError(EngineError):
    """The broker did not answer at the start. Starting again later may help."""

    exit_code = 75


def learn_schemas(settings: ProcessorSettings) -> None:
    """Make the schema registry of the settings, if one is set, the one of this process.

    A fact whose schema can't be had yet holds the fold up for a while, then it is unreadable: a dead letter and an
    incident, until it is read. But a processor that has never heard from the registry ends itself instead: to it every
    fact of a stranger would look so.

    Raises:
        SettingsWrong: a setting is wrong, or the registry answers that something must be changed.
    """
    # Faust folds in the loop that says the worker lives: a third of the session is what it may be held up.
    waits_max_ms = settings.session_timeout_ms // 3 if settings.engine == FAUST else settings.stall_ms // 2
    open_schema_registry(waits_max_ms=waits_max_ms, gives_up=end_process)


def check_start(
    kafka: KafkaSettings,
    *,
    refold: bool,
    accept_loss: bool = False,
    application_id: str = "amends-processor",
    engine: str = TRANSACTIONS,
) -> None:
    """Return if a processor may start. With `refold`, the state of another engine is left behind from now on.

    Raises:
        RightMissingError: Kafka does not let it in, or grants it too little.
        TopicsRefusedError: topics are missing or wrong, or may not be looked at.
        TwoEnginesError: processors of another engine are at work.
        OtherEngineError: another engine has folded this ledger last, and it is not to `refold`.
        RefoldLosesError: it is to `refold`, and the ledger holds neither start nor Carry of a workflow that is open;
            unless the loss is accepted.
        BrokerAwayError: nobody answers.
    """
    try:
        rights = rights_of(Part.PROCESSOR, kafka, application_id=application_id, engine=engine)
        require_topics(kafka, rights, engine)
        refuse_two_engines(kafka, engine, application_id)
        if not refold:
            refuse_other_engine(kafka, engine)
            return
        require_sight_of_other_engine(kafka, engine, application_id)
        if not accept_loss:
            refuse_loss(kafka)
        leave_other_engine(kafka, engine, application_id)
    except TopicsWrong as wrong:
        raise TopicsRefusedError(str(wrong)) from wrong
    except AccessRefused as refused:
        raise RightMissingError(str(refused)) from refused
    except ReadTimedOut as late:
        raise BrokerAwayError(
            f"no answer from Kafka at {kafka.bootstrap_servers} (AMENDS_KAFKA__BOOTSTRAP_SERVERS): {late}"
        ) from late
    except KafkaFault as fault:  # it answered that we may not
        raise TopicsRefusedError(f"Kafka at {kafka.bootstrap_servers}: {fault}") from fault
