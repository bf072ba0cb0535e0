"""What the architecture tests judge: the parts, and which of their modules are pure."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("schemas", "tools", "kafka", "producers", "processors", "compensators", "console", "local", "testing")

PURE = (
    "amends.schemas.*",
    "amends.tools.*",
    "amends.kafka.errors",
    "amends.producers.calls",
    "amends.producers.effects",
    "amends.producers.flow",
    "amends.producers.images",
    "amends.producers.outcome",
    "amends.producers.refusals",
    "amends.producers.scope_flow",
    "amends.processors.attempts",
    "amends.processors.dependencies",
    "amends.processors.diagnosis",
    "amends.processors.elsewhere",
    "amends.processors.emission",
    "amends.processors.ladder",
    "amends.processors.memory",
    "amends.processors.outbox",
    "amends.processors.partition",
    "amends.processors.plan",
    "amends.processors.records",
    "amends.processors.runs",
    "amends.processors.saga",
    "amends.processors.state",
    "amends.processors.story",
    "amends.processors.tenure",
    "amends.processors.terms",
    "amends.processors.timeouts",
    "amends.processors.timers",
    "amends.processors.undos",
    "amends.processors.windows",
    "amends.processors.workflow",
    "amends.compensators.attempt",
    "amends.compensators.comparing",
    "amends.compensators.decide",
    "amends.compensators.effects",
    "amends.compensators.inventory",
    "amends.compensators.ladder",
    "amends.compensators.ownership",
    "amends.compensators.progress",
    "amends.compensators.verdicts",
    "amends.console.phrases",
    "amends.console.read_model",
    "amends.console.rulings",
    "amends.console.steps",
    "amends.console.story",
)
"""Modules that decide and do no I/O. `*` stands for every module of a part."""

IMPURE = frozenset({
    "asyncio", "concurrent", "confluent_kafka", "faust", "multiprocessing", "prometheus_client", "random", "redis",
    "secrets", "select", "selectors", "signal", "socket", "ssl", "subprocess", "threading", "time", "urllib",
})  # fmt: skip
"""What no pure module imports, itself or through another module of amends."""


def portion(part: str) -> Path:
    """Return the folder of `amends.<part>`."""
    return ROOT / part / "amends" / part
