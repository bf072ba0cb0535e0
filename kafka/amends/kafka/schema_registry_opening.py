"""The schema registry of a process: opened from the settings, told of in health and metrics, mended after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace

from amends.kafka.health import Health
from amends.kafka.loading import load_settings
from amends.kafka.schema_registry import PATIENCE_MS, SchemaRegistry
from amends.kafka.schema_registry_settings import SECTION, SchemaRegistrySettings
from amends.schemas.codec import use_framing

_lock = threading.Lock()
_opened: SchemaRegistry | None = None


def open_schema_registry(
    *, waits_max_ms: int = PATIENCE_MS, gives_up: Callable[[str], object] | None = None, learns: bool = True
) -> SchemaRegistry | None:
    """Make the schema registry of the settings this process's; return it, or None where none is set.

    Called again, it returns the one that is open.

    Args:
        waits_max_ms: what an id means is waited for as long as the settings have it, and no longer than this.
        gives_up: see SchemaRegistry.
        learns: our ids are learned now, in a bounded time; else with `try_learn`.

    Raises:
        SettingsWrong: a setting is wrong, or the registry answers that something must be changed.
    """
    global _opened
    with _lock:
        if _opened is not None:
            return _opened
        settings = load_settings(SchemaRegistrySettings, SECTION)
        if not settings.is_set:
            return None
        patience_ms = min(waits_max_ms, settings.unknown_within_ms)
        registry = SchemaRegistry(settings, unknown_within_ms=patience_ms, gives_up=gives_up)
        if learns:
            registry.start()
        use_framing(registry.framing)
        _opened = registry
        return registry


def close_schema_registry() -> None:
    """End the one that is open: records are written as without one. Without any it does nothing."""
    global _opened
    with _lock:
        closed, _opened = _opened, None
        use_framing(None)
    if closed is not None:
        closed.stop()


def with_schema_registry(health: Callable[[], Health]) -> Callable[[], Health]:
    """Return `health` with how it stands with the schema registry, which makes nobody unhealthy: nothing waits for it.

    Where a record does, progress tells.
    """

    def judged() -> Health:
        seen, registry = health(), _opened
        if registry is None:
            return seen
        state = registry.state
        encoding = "registry" if state.known else "single-object"
        return replace(seen, detail={**seen.detail, "schema_registry": {"encoding": encoding, "trouble": state.words}})

    return judged


def with_schema_registry_metrics(metrics: Callable[[], bytes] | None) -> Callable[[], bytes] | None:
    """Return `metrics` with those of the schema registry."""
    if metrics is None:
        return None

    def told() -> bytes:
        registry = _opened
        if registry is None:
            return metrics()
        state = registry.state
        return (
            metrics()
            + (
                "# HELP amends_schema_registry_known Our schemas' ids are known: records are written in its framing\n"
                "# TYPE amends_schema_registry_known gauge\n"
                f"amends_schema_registry_known {int(state.known)}\n"
                "# HELP amends_schema_registry_failures_total Times the schema registry could not be asked\n"
                "# TYPE amends_schema_registry_failures_total counter\n"
                f"amends_schema_registry_failures_total {state.failures}\n"
            ).encode()
        )

    return told


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    if _opened is not None:
        _opened.begin_again()


os.register_at_fork(after_in_child=_after_fork_in_child)
