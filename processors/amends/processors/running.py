"""Running a processor in this process: the real fold under the engine that the settings name."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from amends.kafka.errors import SettingsWrong
from amends.kafka.seldom import collect_seldom
from amends.kafka.servers import kafka_of_settings
from amends.kafka.settings import KafkaSettings, load_settings
from amends.processors.breakers import BreakerTerms
from amends.processors.engine import EngineError, FoldFactory
from amends.processors.partition import Partition
from amends.processors.settings import ProcessorSettings
from amends.processors.start import check_start, learn_schemas
from amends.processors.terms import Terms
from amends.processors.transactions import TransactionalEngine
from amends.processors.watching import health_server, watchdog
from amends.schemas.topics import FAUST

if TYPE_CHECKING:
    from amends.processors.faust_worker import ProcessorApp

logger = logging.getLogger(__name__)

EXIT_SETTINGS = 2
SWITCH_INTERVAL_S = 0.0003
"""The client's threads share the interpreter with the fold; with the default of 5 ms each answer waits for it."""


class SettingsRefusedError(EngineError):
    """A setting is missing."""

    exit_code = EXIT_SETTINGS


class NoFaustError(EngineError):
    """The engine faust is asked for, and Faust is not installed."""

    exit_code = 78


def run(kafka: KafkaSettings, settings: ProcessorSettings, *, refold: bool = False, accept_loss: bool = False) -> None:
    """Run a processor in this process's main thread until SIGTERM or SIGINT.

    Raises:
        EngineError: it can't start or go on. Under Faust the process ends with its words and code in place of that.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if settings.engine == FAUST:
        app = faust_app(kafka, settings, refold=refold, accept_loss=accept_loss)
        app.Worker(loglevel=logging.getLogger().level or logging.INFO).execute_from_commandline()
    _check(kafka, settings, refold=refold, accept_loss=accept_loss)
    engine = TransactionalEngine(kafka, settings, fold_of(kafka, settings), refold=refold)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: engine.stop())
    watch = watchdog(settings, lambda: engine.progress)
    health = health_server(kafka, settings, lambda: engine.progress)
    watch.start()
    collect_seldom()
    try:
        engine.run()
    finally:
        watch.stop()
        if health is not None:
            health.stop()
    logger.info("stopped: %s", engine.progress)


def faust_app(
    kafka: KafkaSettings, settings: ProcessorSettings, *, refold: bool = False, accept_loss: bool = False
) -> ProcessorApp:
    """Return the Faust app of a processor. It connects to nothing before a worker starts it.

    Raises EngineError: Faust is not installed, or can't express the client's options.
    """
    try:
        from amends.processors.faust_worker import make_app
    except ModuleNotFoundError as missing:
        raise NoFaustError(
            f"the engine faust needs Faust, and {missing.name} is not there: install amends[faust], or unset "
            "AMENDS_PROCESSOR__ENGINE"
        ) from missing

    return make_app(
        kafka,
        settings,
        fold_of(kafka, settings),
        refold=refold,
        before_start=lambda: _check(kafka, settings, refold=refold, accept_loss=accept_loss),
    )


def faust_app_from_environment() -> ProcessorApp:
    """Return the app as the environment has it; wrong settings end the process with words. For `faust -A`."""
    try:
        kafka = load_settings(KafkaSettings, "kafka")
        settings = load_settings(ProcessorSettings, "processor", engine=FAUST)
        app = faust_app(kafka, settings)
    except SettingsWrong as wrong:
        sys.stderr.write(f"amends processor: {wrong}\n")
        raise SystemExit(EXIT_SETTINGS) from None
    except EngineError as error:
        sys.stderr.write(f"amends processor: {error}\n")
        raise SystemExit(error.exit_code) from None
    check = app.before_start

    def before_start() -> None:
        _require_servers_and_schemas(settings)
        check()

    app.before_start = before_start
    return app


def _require_servers_and_schemas(settings: ProcessorSettings) -> None:
    try:
        kafka_of_settings()
        learn_schemas(settings)
    except SettingsWrong as wrong:
        raise SettingsRefusedError(str(wrong)) from wrong


def _check(kafka: KafkaSettings, settings: ProcessorSettings, *, refold: bool, accept_loss: bool) -> None:
    check_start(
        kafka, refold=refold, accept_loss=accept_loss, engine=settings.engine, application_id=settings.application_id
    )


def fold_of(kafka: KafkaSettings, settings: ProcessorSettings) -> FoldFactory:
    """Return the factory of the real fold."""
    terms = Terms(
        topics=kafka.topics,
        lanes=frozenset(kafka.lanes),
        command_repeat_ms=settings.command_repeat_ms,
        grace_ms=settings.grace_ms,
        carry_after_ms=settings.carry_after_ms or kafka.ledger_retention_ms // 2,
        source=f"/amends/processors/{settings.instance_id or f'{socket.gethostname()}-{os.getpid()}'}",
        group=settings.application_id,
        breaker=BreakerTerms(
            settings.breaker_failures,
            settings.breaker_pause_ms,
            settings.breaker_pause_cap_ms,
            settings.breaker_incident_ms,
        ),
        partitions=kafka.partitions,
        lane_undos_max=settings.lane_undos_max,
        tool_undos_max=settings.tool_undos_max,
        tool_undos_per_minute=settings.tool_undos_per_minute,
    )
    return lambda partition: Partition(partition, terms)
