"""For tests that start whole programs: what they left running, found by a mark that processes inherit."""

from __future__ import annotations

import time
import uuid

import psutil


def new_mark() -> dict[str, str]:
    """Return an environment variable that marks a process and all its descendants."""
    return {"STORY_MARK": uuid.uuid4().hex}


def marked(mark: dict[str, str]) -> list[str]:
    """Return the command lines of live processes that carry the mark."""
    ((name, value),) = mark.items()
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def left_running(mark: dict[str, str], deadline_s: float = 10) -> list[str]:
    """Return what still runs after the deadline; empty as soon as nothing does."""
    end = time.monotonic() + deadline_s
    while (found := marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return found
