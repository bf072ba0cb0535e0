"""A load process of the bench, and what it says."""

from __future__ import annotations

import time

from amends.local.parts import Part, Parts


class Agent:
    """The load process, and what it said."""

    def __init__(self, parts: Parts, name: str, load: str, seconds: float, warm_s: float) -> None:
        per_second, in_flight = (load.removesuffix("/s"), "1") if load.endswith("/s") else ("0", load)
        self._lines: list[str] = []
        self.part: Part = parts.python(
            name,
            "bench.agent",
            *("--name", name, "--in-flight", in_flight, "--per-second", per_second),
            *("--seconds", str(seconds), "--warm-s", str(warm_s)),
            on_line=self._lines.append,
        )

    def wait_for(self, prefix: str, within_s: float) -> str:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            found = next((line for line in self._lines if line.startswith(prefix)), None)
            if found is not None:
                return found
            if not self.part.child.alive and not any(line.startswith(prefix) for line in self._lines):
                time.sleep(0.2)
                if not any(line.startswith(prefix) for line in self._lines):
                    break
            time.sleep(0.05)
        raise SystemExit(f"the load ended early:\n{self.part.last_words(30)}")
