"""What a processor says about itself: health that tests progress, and metrics for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from amends.kafka.health import Health
from amends.kafka.turned_away import turned_away
from amends.processors.watchdog import Progress, Watchdog

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class ProcessorHealth:
    """Healthy as long as facts are folded, or there are none to fold.

    Args:
        stall_ms: without progress for this long while there is lag: unhealthy. Shorter than the watchdog's.
    """

    def __init__(self, progress: Callable[[], Progress], stall_ms: int, monotonic_ms: Callable[[], int]) -> None:
        self._progress = progress
        self._judge = Watchdog(stall_ms)
        self._monotonic_ms = monotonic_ms
        self._lock = threading.Lock()

    def __call__(self) -> Health:
        with self._lock:
            seen = self._progress()
            reason = self._judge.verdict(self._monotonic_ms(), seen)
        if reason is None and seen.turns == 0:
            reason = "it has not started to work yet"
        refused = turned_away.words()
        waits = bool(refused) and not reason
        return Health(not (refused or reason), refused or reason or "", asdict(seen), waits=waits)


def prometheus_metrics(progress: Callable[[], Progress]) -> Callable[[], bytes] | None:
    """Return what renders the metrics, None if prometheus-client is not installed (extra `processors`)."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ModuleNotFoundError:
        return None

    class ProgressCollector(Collector):
        def collect(self) -> Iterator[Metric]:
            seen = progress()
            for name, words, value in (
                ("folded", "Facts folded", seen.folded),
                ("emitted", "Commands, echoes and incidents sent", seen.emitted),
                ("checkpoints", "Checkpoints kept", seen.kept),
                ("checkpoints_aborted", "Checkpoints aborted, and tried again", seen.aborted),
                ("checkpoints_refused", "Checkpoints refused because another owner is there", seen.refused),
                ("restored", "Records of the changelog read to restore state", seen.restored),
            ):
                yield CounterMetricFamily(f"amends_processor_{name}", words, value=value)
            for name, words, gauge in (
                ("lag_facts", "Facts appended and not folded yet", -1 if seen.lag is None else seen.lag),
                ("partitions", "Ledger partitions that are folded here", len(seen.partitions)),
                ("partitions_taking", "Ledger partitions that are being taken over", len(seen.taking)),
                ("unconfirmed", "Emissions on their way", seen.unconfirmed),
            ):
                yield GaugeMetricFamily(f"amends_processor_{name}", words, value=gauge)

    registry = CollectorRegistry()
    registry.register(ProgressCollector())
    return lambda: generate_latest(registry)
