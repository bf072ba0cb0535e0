"""For tests that start whole programs: what they left running, found by a mark that processes inherit; and ports."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid

import psutil

from amends.local.children import free_port


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


BUS = 10_000
"""By so much the port of a Redis Cluster's own talk is higher than a node's port."""
EPHEMERAL_FIRST = 32_768
"""From here Linux takes the ports of connections that go out: one of these is often taken, and never free for long."""


def free_port_with_a_bus() -> int:
    """Return a free port for a node of a Redis Cluster, whose second port is free too."""
    for _ in range(1_000):
        port = free_port()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            if port + BUS < EPHEMERAL_FIRST:
                probe.bind(("127.0.0.1", port + BUS))
                return port
    raise OSError("no two free ports for a node of a Redis Cluster")
