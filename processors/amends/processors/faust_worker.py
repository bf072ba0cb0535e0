"""The Faust app of a processor, and the worker that runs it: under `faust worker` and `amends processor` alike."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, cast

import faust
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    GroupAuthorizationFailedError,
    InconsistentGroupProtocolError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)
from faust.types import EventT, ProducerT, StreamT
from mode.types.signals import BaseSignalT

from amends.kafka.health import HealthServer
from amends.kafka.seldom import collect_seldom
from amends.kafka.settings import KafkaSettings
from amends.processors.engine import EngineError, Faults, FoldFactory, RightMissingError, no_faults
from amends.processors.engine_change import TwoEnginesError, two_engines_in_words
from amends.processors.faust_engine import BrokerFaultError, FaustEngine
from amends.processors.faust_options import app_options
from amends.processors.faust_table import state_table
from amends.processors.settings import ProcessorSettings
from amends.processors.watching import health_server, watchdog
from amends.schemas.topics import FAUST

logger = logging.getLogger(__name__)

AGENT = "amends.fold"
TABLE = "amends-state"
NOT_LET_IN = (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    GroupAuthorizationFailedError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)
STOP_S = 15.0
"""A worker that is to end and hangs in doing so is ended after this: with its broker away Faust waits a minute."""
EXIT_LATE = 75


class SendGuard(faust.Sensor):
    """Ends the process when a record that Faust sent is not acknowledged: Faust would commit past it."""

    def __init__(self, fail: Callable[[BaseException], object]) -> None:
        super().__init__()
        self._fail = fail

    def on_send_error(self, producer: ProducerT, exc: BaseException, state: Any) -> None:
        self._fail(_told("a record was not acknowledged", exc))


class ProcessorApp(faust.App):
    """One agent that folds the ledger, one table that is the state."""

    engine: FaustEngine
    processor_settings: ProcessorSettings
    kafka_settings: KafkaSettings
    before_start: Callable[[], None]
    """Raises EngineError if the worker must not start. Blocks."""

    async def on_first_start(self) -> None:
        """Nothing is kept on disk: no folder is made."""

    async def on_start(self) -> None:
        await super().on_start()
        self.add_future(self.engine.serve())

    async def on_stop(self) -> None:
        await self.engine.leave()
        await super().on_stop()


class ProcessorWorker(faust.Worker):
    """Ends with the engine's words and exit code when the engine can't go on."""

    app: ProcessorApp  # pyright: ignore[reportIncompatibleVariableOverride]

    _health: HealthServer | None = None
    _not_started: BaseException | None = None
    _late: threading.Timer | None = None

    async def start(self) -> None:
        try:
            await super().start()
        except Exception as error:
            self._not_started = error  # Faust says of a crash why it was one, and not of a start
            raise

    @property
    def reason(self) -> BaseException | None:
        """Why it ends, if it has not been asked to."""
        return self.crash_reason or self._not_started

    async def on_first_start(self) -> None:
        await super().on_first_start()  # from here on there is a log
        self._health = health_server(
            self.app.kafka_settings, self.app.processor_settings, lambda: self.app.engine.progress
        )

    def execute_from_commandline(self) -> NoReturn:
        app, engine = self.app, self.app.engine
        try:
            app.before_start()
        except EngineError as error:
            self._refuse(error)
        engine.on_failure = self._end
        settings = app.processor_settings
        watch = watchdog(settings, lambda: engine.progress)
        watch.start()
        collect_seldom()
        try:
            super().execute_from_commandline()
        except SystemExit as ended:
            failure = engine.failure or _as_failure(self, settings)
            if failure is not None:
                self._refuse(failure)
            raise ended from None
        finally:
            watch.stop()
            if self._health is not None:
                self._health.stop()
            engine.close()
            logger.info("stopped: %s", engine.progress)
            if self._late is not None:
                self._late.cancel()

    def _on_sigterm(self) -> None:
        self._end_in_time(EXIT_LATE)
        super()._on_sigterm()

    def _on_sigint(self) -> None:
        self._end_in_time(EXIT_LATE)
        super()._on_sigint()

    def _end_in_time(self, exit_code: int) -> None:
        """From now on there are `STOP_S` seconds to end in order; then the process ends without."""
        if self._late is None:
            self._late = threading.Timer(STOP_S, _end_without_order, (exit_code,))
            self._late.daemon = True
            self._late.start()

    def _end(self, failure: EngineError) -> None:
        """Stop in order; without order if that takes too long. Called in the loop, or in a thread of Faust."""
        logger.error("the processor ends: %s", failure)
        self._end_in_time(failure.exit_code)
        self.loop.call_soon_threadsafe(self._on_sigterm)

    def _refuse(self, error: EngineError) -> NoReturn:
        sys.stderr.write(f"amends processor: {error}\n")
        sys.stderr.flush()
        raise SystemExit(error.exit_code)


def _end_without_order(exit_code: int) -> None:
    sys.stderr.write(
        f"amends processor: it did not end in order within {STOP_S:g} s (does no broker answer?) and ends as it is "
        f"(exit code {exit_code}). Nothing is lost: who takes its partitions folds on from its last checkpoint\n"
    )
    sys.stderr.flush()
    os._exit(exit_code)


def _as_failure(worker: ProcessorWorker, settings: ProcessorSettings) -> EngineError | None:
    """Return why Faust crashed, in words; None if it did not."""
    reason = worker.reason
    if reason is None:
        return None
    if isinstance(reason, InconsistentGroupProtocolError):
        return TwoEnginesError(two_engines_in_words(FAUST, settings.application_id))
    failure = _told("Faust ended", reason)
    is_brokers = isinstance(reason, KafkaError) and not isinstance(failure, RightMissingError)
    return BrokerFaultError(str(failure)) if is_brokers else failure


def _told(what: str, reason: BaseException) -> EngineError:
    """Return a failure for what Faust's client met."""
    words = f"{what}: {type(reason).__name__}: {reason}"
    if isinstance(reason, NOT_LET_IN):
        return RightMissingError(f"{words}. What a processor needs: `amends acls --engine faust`")
    return EngineError(words)


def make_app(
    kafka: KafkaSettings,
    settings: ProcessorSettings,
    fold: FoldFactory,
    *,
    refold: bool = False,
    faults: Faults = no_faults,
    before_start: Callable[[], None] = lambda: None,
    **more: Any,
) -> ProcessorApp:
    """Return the app. Nothing is connected before a worker starts.

    Args:
        more: settings of Faust beside those that a promise rests on, and in their place.

    Raises OptionRefusedError: the client's options can't be expressed.
    """
    app = ProcessorApp(settings.application_id, **{**app_options(kafka, settings), "Worker": ProcessorWorker, **more})
    app.engine = engine = FaustEngine(kafka, settings, fold, refold=refold, faults=faults)
    app.before_start = before_start
    app.processor_settings = settings
    app.kafka_settings = kafka
    table = state_table(app, TABLE, kafka.topics.changelog(FAUST), kafka.partitions, engine.changelog_ends, engine.take)
    engine.write = table.write
    engine.consumer = lambda: app.consumer
    engine.is_rebalancing = lambda: app.rebalancing
    app.sensors.add(SendGuard(engine.fail))
    ledger = app.topic(
        kafka.topics.ledger,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        partitions=kafka.partitions,
        allow_empty=True,
    )

    async def fold_ledger(stream: StreamT[Any]) -> None:
        """Fold the ledger. Facts are acknowledged to Faust behind the checkpoint that holds them."""
        assert isinstance(stream, faust.Stream)
        by_hand = stream.noack()

        async def acknowledge(event: EventT[Any]) -> None:
            await by_hand.ack(event)

        events = cast("AsyncIterator[EventT[Any]]", by_hand.events())
        async for event in events:
            await engine.take_fact(event, acknowledge)

    app.agent(ledger, name=AGENT, concurrency=1)(fold_ledger)

    def revoked(sender: Any, /, *args: Any, signal: BaseSignalT[Any], **more: Any) -> Awaitable[None]:
        return engine.revoked()

    app.on_partitions_revoked.connect(revoked)  # pyright: ignore[reportArgumentType]  # typed for mypy_extensions
    return app
