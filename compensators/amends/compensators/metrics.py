"""What a compensator counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """The metrics of one worker, in a registry of their own."""

    def __init__(self) -> None:
        self.collectors = CollectorRegistry()
        new = self.collectors
        self.ends = Counter(
            "amends_undo_ends", "How undos, probes and re-sends ended here", ["tool", "end"], registry=new
        )
        self.unreadable = Counter("amends_undo_unreadable", "Commands nobody could read", ["lane"], registry=new)
        self.broken = Counter("amends_undo_broken", "Commands given up on by a bug in the worker", registry=new)
        self.registry_away = Counter("amends_registry_away", "Calls the registry's Redis did not answer", registry=new)
        self.killed = Gauge("amends_handler_processes_killed", "Processes of the pool that were ended", registry=new)
        self.open = Gauge("amends_undo_commands_open", "Commands taken and not done", registry=new)
        self.seconds = Histogram("amends_undo_command_seconds", "From taking a command to its end", registry=new)

    def text(self) -> bytes:
        return generate_latest(self.collectors)
