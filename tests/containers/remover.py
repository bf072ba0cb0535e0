"""Run as a script: removes containers when the process that asked for it is gone, however it went.

Where testcontainers' own reaper can't be had. Lines come in: `+ ID`, `- ID`; at the end of input every container still
named is removed.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterable


class Remover:
    """Started with the first container of this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def keep_in_mind(self, container: str) -> None:
        self._tell(f"+ {container}")

    def forget(self, container: str) -> None:
        self._tell(f"- {container}")

    def _tell(self, line: str) -> None:
        if self._process is None:
            command = [sys.executable, __file__]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody killed it
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def watch(lines: Iterable[str]) -> None:
    """Follow the parent's lines to their end, then remove what is left."""
    named: dict[str, None] = {}
    for line in lines:
        verb, _, container = line.rstrip("\n").partition(" ")
        if verb == "+":
            named[container] = None
        else:
            named.pop(container, None)
    if not named:
        return
    import docker
    import requests

    client = docker.from_env()
    for container in named:
        with contextlib.suppress(docker.errors.DockerException, requests.RequestException):
            client.api.remove_container(container, v=True, force=True)
    client.close()


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    watch(sys.stdin)
