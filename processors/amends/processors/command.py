"""`amends processor`: folds the ledger until SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from typing import Annotated

import typer

from amends.kafka.errors import SettingsWrong
from amends.kafka.health import HealthServer
from amends.kafka.schema_registry_opening import with_schema_registry, with_schema_registry_metrics
from amends.kafka.seldom import collect_seldom
from amends.kafka.servers import kafka_of_settings
from amends.kafka.settings import KafkaSettings, load_settings
from amends.processors.breakers import BreakerTerms
from amends.processors.engine import EngineError, FoldFactory
from amends.processors.health import ProcessorHealth, prometheus_metrics
from amends.processors.partition import Partition
from amends.processors.settings import ProcessorSettings
from amends.processors.start import check_start, learn_schemas
from amends.processors.terms import Terms
from amends.processors.transactions import TransactionalEngine
from amends.processors.watchdog import WatchdogThread

logger = logging.getLogger(__name__)

app = typer.Typer(help="Fold the ledger: decide what is to be undone, and tell the compensators.", add_completion=False)

EXIT_SETTINGS = 2
SWITCH_INTERVAL_S = 0.0003
"""The client's threads share the interpreter with the fold; with the default of 5 ms each answer waits for it."""


@app.callback(invoke_without_command=True)
def processor(
    refold: Annotated[
        bool, typer.Option("--refold", help="Leave the state behind and build it anew from the ledger.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Refold though open workflows can't be built from the ledger any more."),
    ] = False,
    instance_id: Annotated[
        str | None, typer.Option("--instance", help="Name that stays over restarts (static membership).")
    ] = None,
    health_port: Annotated[
        int | None, typer.Option("--health-port", help="Port of /healthz and /metrics; 0 takes a free one.")
    ] = None,
) -> None:
    """Run until SIGTERM or Ctrl-C, then stop after a last checkpoint. Start as many as there are partitions at most."""
    try:
        kafka = kafka_of_settings()
        settings = load_settings(ProcessorSettings, "processor", instance_id=instance_id, health_port=health_port)
    except SettingsWrong as wrong:
        typer.echo(f"amends processor: {wrong}", err=True)
        raise typer.Exit(EXIT_SETTINGS) from wrong
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        learn_schemas()
    except SettingsWrong as wrong:
        typer.echo(f"amends processor: {wrong}", err=True)
        raise typer.Exit(EXIT_SETTINGS) from wrong
    try:
        run(kafka, settings, refold=refold, accept_loss=accept_loss)
    except EngineError as error:
        typer.echo(f"amends processor: {error}", err=True)
        raise typer.Exit(error.exit_code) from error


def run(kafka: KafkaSettings, settings: ProcessorSettings, *, refold: bool = False, accept_loss: bool = False) -> None:
    """Run a processor in this process's main thread until SIGTERM or SIGINT.

    Raises:
        EngineError: it can't start or go on.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    check_start(kafka, refold=refold, accept_loss=accept_loss, application_id=settings.application_id)
    engine = TransactionalEngine(kafka, settings, fold_of(kafka, settings), refold=refold)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: engine.stop())
    watchdog = WatchdogThread(settings.stall_ms, lambda: engine.progress, _monotonic_ms)
    health = _health(engine, settings)
    watchdog.start()
    collect_seldom()
    try:
        engine.run()
    finally:
        watchdog.stop()
        if health is not None:
            health.stop()
    logger.info("stopped: %s", engine.progress)


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


def _health(engine: TransactionalEngine, settings: ProcessorSettings) -> HealthServer | None:
    if settings.health_port is None:
        return None
    server = HealthServer(
        with_schema_registry(ProcessorHealth(lambda: engine.progress, settings.stall_ms // 2, _monotonic_ms)),
        with_schema_registry_metrics(prometheus_metrics(lambda: engine.progress)),
        host=settings.health_host,
        port=settings.health_port,
    ).start()
    logger.info("/healthz and /metrics on http://%s:%d", settings.health_host, server.port)
    return server


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
