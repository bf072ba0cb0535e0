"""Who runs in a chaos: two processors, three compensators, and thirty agents, five to a process."""

from __future__ import annotations

import signal
import subprocess
import threading
from dataclasses import dataclass, field

from tests.chaos.tools import LANES
from tests.killing.stage import Stage

from amends.local.parts import Part
from amends.processors.watchdog import EXIT_CODE

PROCESSES_OF_AGENTS, AGENTS_EACH = 6, 5
AGENTS_END_MS = 90_000
NO_ANSWER = 75
"""How a part ends that finds no brokers when it starts: whoever looks after it starts it again."""
HANGS = "have not ended"
"""What a processor says that ends because its client hangs in a commit (confluentinc/librdkafka#5456)."""


@dataclass
class Troupe(Stage):
    """A stage with agents. `said` is what each workflow's agent said last."""

    seed: int = 0
    module: str = "tests.chaos.tools"
    lanes: tuple[str, ...] = LANES
    compensators_wanted: int = 3
    excused: frozenset[int] = frozenset({NO_ANSWER})
    agents: list[Part] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    _heard: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        super().start()
        for _ in range(PROCESSES_OF_AGENTS):
            self._start_agents()

    def groups(self) -> tuple[list[Part], ...]:
        return (*super().groups(), self.agents)

    def dismiss_agents(self) -> list[str]:
        """Tell all agents to end what they do and begin nothing; return who did not end in time, killed."""
        with self._lock:
            agents, self.agents = self.agents, []
        for part in agents:
            part.child.process.send_signal(signal.SIGTERM)
        late = []
        for part in agents:
            try:
                code = part.child.wait(AGENTS_END_MS)
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                late.append(f"{part.name} ended with {code}:\n{part.last_words()}")
                part.kill()
        return late

    def heard(self) -> dict[str, str]:
        """Return what each workflow's agent said last."""
        with self._heard:
            return dict(self.said)

    def _may_end(self, part: Part, code: int | None) -> bool:
        return super()._may_end(part, code) or (code == EXIT_CODE and HANGS in part.last_words())

    def _replace(self, part: Part) -> None:
        if part.name.startswith("agents"):
            self._start_agents()
        else:
            super()._replace(part)

    def _start_agents(self) -> None:
        self._count += 1
        name = f"agents-{self._count}"
        arguments = (str(self.seed), f"s{self.seed}-a{self._count}", str(AGENTS_EACH))
        part = self.parts.python(name, "tests.chaos.agents", *arguments, on_line=self._hear)
        self.agents.append(part)
        self.told(f"started {name} (pid {part.pid})")

    def _hear(self, line: str) -> None:
        workflow, _, word = line.partition(" ")
        with self._heard:
            self.said[workflow] = word
