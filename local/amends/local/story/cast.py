"""Who plays in a scene: the processor, the compensators, the agents, each its own process.

Processor and compensators that run elsewhere are nobody's here, and only the agents are.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable

from amends.local.children import free_port
from amends.local.errors import ServerUnavailable
from amends.local.parts import Part, Parts
from amends.local.story.tools import LANES
from amends.local.wire import answers, wait_for

READY_DEADLINE_MS = 30_000


class Cast:
    """The processes of one scene. Those that are killed are taken off the lists by who kills them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.processors: list[Part] = []
        self.compensators: list[Part] = []
        self.agents: dict[str, Part] = {}
        self._health: dict[str, int] = {}
        self._started: Counter[str] = Counter()

    def start_processor(self) -> Part:
        self.processors.append(self._start_part("processor", "processor"))
        return self.processors[-1]

    def start_compensator(self) -> Part:
        lanes = [argument for lane in LANES for argument in ("--lane", lane)]
        self.compensators.append(self._start_part("compensator", "compensator", "amends.local.story.tools", *lanes))
        return self.compensators[-1]

    def _start_part(self, what: str, *arguments: str) -> Part:
        port = free_port()
        self._started[what] += 1
        name = f"{what}-{self._started[what]}"
        part = self._parts.amends(name, *arguments, "--health-port", str(port))
        self._health[name] = port
        return part

    def wait_until_ready(self) -> None:
        """Until every part answers: agents that come before the processor would only wait for it."""
        for part in (*self.processors, *self.compensators):
            ready = functools.partial(answers, self._health[part.name])
            if not wait_for(ready, alive=functools.partial(_runs, part), deadline_ms=READY_DEADLINE_MS):
                raise ServerUnavailable(f"{part.name} did not start:\n{part.last_words()}")

    def start_agent(self, order: str, method: str, *, mail: bool, on_line: Callable[[str], None]) -> Part:
        """Start the agent of one order; `on_line` is called from a thread with each line it prints."""
        arguments = [order, "--payment-method", method, *(["--mail"] if mail else [])]
        agent = self._parts.python(f"agent-{order}", "amends.local.story.agent", *arguments, on_line=on_line)
        self.agents[order] = agent
        return agent

    def order_of(self, part: Part) -> str:
        """Return the order whose agent this is, empty if it is no agent."""
        return next((order for order, agent in self.agents.items() if agent is part), "")

    def dead(self) -> list[Part]:
        """Return the processors and compensators that ended by themselves."""
        return [part for part in (*self.processors, *self.compensators) if not part.child.alive]

    def stop(self) -> None:
        """Stop all that run."""
        self._parts.stop()


def _runs(part: Part) -> bool:
    return part.child.alive
