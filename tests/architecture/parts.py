"""What the architecture tests judge: the parts, and which of their modules are pure."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("schemas", "tools", "kafka", "producers", "processors", "compensators", "console", "local", "testing")

PURE = (
    "amends.schemas.*",
    "amends.tools.*",
    "amends.kafka.errors",
    "amends.producers.approving",
    "amends.producers.calls",
    "amends.producers.effects",
    "amends.producers.family",
    "amends.producers.fencing",
    "amends.producers.flow",
    "amends.producers.images",
    "amends.producers.known_steps",
    "amends.producers.outcome",
    "amends.producers.refusals",
    "amends.producers.savepoint_flow",
    "amends.producers.savepoints",
    "amends.producers.scope_flow",
    "amends.producers.settling",
    "amends.producers.story",
    "amends.processors.acknowledging",
    "amends.processors.admission",
    "amends.processors.alarms",
    "amends.processors.approving",
    "amends.processors.asking",
    "amends.processors.attempts",
    "amends.processors.breakers",
    "amends.processors.carrying",
    "amends.processors.children",
    "amends.processors.closing",
    "amends.processors.condemned",
    "amends.processors.contracts",
    "amends.processors.dependencies",
    "amends.processors.diagnosis",
    "amends.processors.echoing",
    "amends.processors.elsewhere",
    "amends.processors.emission",
    "amends.processors.failing",
    "amends.processors.faust_changelog",
    "amends.processors.folding",
    "amends.processors.gates",
    "amends.processors.ladder",
    "amends.processors.memory",
    "amends.processors.outbox",
    "amends.processors.parked",
    "amends.processors.partition",
    "amends.processors.placing",
    "amends.processors.plan",
    "amends.processors.policies",
    "amends.processors.records",
    "amends.processors.refolding",
    "amends.processors.refolds",
    "amends.processors.runs",
    "amends.processors.saga",
    "amends.processors.slots",
    "amends.processors.state",
    "amends.processors.story",
    "amends.processors.tenure",
    "amends.processors.terms",
    "amends.processors.timeouts",
    "amends.processors.timers",
    "amends.processors.turning",
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
    "amends.console.granting",
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
