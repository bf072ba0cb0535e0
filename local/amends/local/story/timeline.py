"""The demo's time line: lines as they happen, from several threads."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

COLOURS = {
    "agent": "36",
    "compensator": "32",
    "processor": "34",
    "demo": "33",
    "world": "35",
}


class Timeline:
    """Prints `seconds  who  what`; in colour where the output is a terminal."""

    def __init__(self, output: TextIO | None = None, *, several: bool = False) -> None:
        self._output = output if output is not None else sys.stdout
        self._several = several
        self._lock = threading.Lock()
        self._start_s = time.monotonic()

    def say(self, who: str, what: str, workflow_id: str = "") -> None:
        """Print one line. The workflow is named where there are several."""
        elapsed_s = time.monotonic() - self._start_s
        about = f"{workflow_id}: " if self._several and workflow_id else ""
        self._print(f"{elapsed_s:7.2f} s  {self._coloured(who, who.ljust(12))} {about}{what}")

    def heading(self, text: str) -> None:
        """Print a line that stands alone."""
        self._print(f"\n{text}")

    def line(self, text: str) -> None:
        """Print a line as it is."""
        self._print(text)

    def _print(self, text: str) -> None:
        with self._lock:
            print(text, file=self._output, flush=True)

    def _coloured(self, who: str, text: str) -> str:
        colour = COLOURS.get(who)
        return f"\033[{colour}m{text}\033[0m" if colour and self._output.isatty() else text
