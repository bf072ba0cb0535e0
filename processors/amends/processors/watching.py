"""What watches an engine from outside its loop, whichever engine it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from amends.kafka.health import HealthServer
from amends.kafka.reaching import ReachingHealthServer, reach_of
from amends.kafka.schema_registry_opening import with_schema_registry, with_schema_registry_metrics
from amends.kafka.settings import KafkaSettings
from amends.processors.health import ProcessorHealth, prometheus_metrics
from amends.processors.settings import ProcessorSettings
from amends.processors.watchdog import Progress, WatchdogThread

logger = logging.getLogger(__name__)


def watchdog(settings: ProcessorSettings, progress: Callable[[], Progress]) -> WatchdogThread:
    """Return the watchdog; it is not started."""
    return WatchdogThread(settings.stall_ms, progress, _monotonic_ms)


def health_server(
    kafka: KafkaSettings, settings: ProcessorSettings, progress: Callable[[], Progress]
) -> HealthServer | None:
    """Start `/healthz` and `/metrics`; return None if the settings want none."""
    if settings.health_port is None:
        return None
    server = ReachingHealthServer(
        reach_of(kafka),
        with_schema_registry(ProcessorHealth(progress, settings.stall_ms // 2, _monotonic_ms)),
        with_schema_registry_metrics(prometheus_metrics(progress)),
        host=settings.health_host,
        port=settings.health_port,
    ).start()
    logger.info("/healthz and /metrics on http://%s:%d", settings.health_host, server.port)
    return server


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
