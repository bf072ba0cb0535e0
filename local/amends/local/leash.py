"""Run as a script: ends processes and removes folders when the process that asked for it is gone.

`children.py` starts one leash per parent and keeps the writing end of its standard input. Lines come in:
`+ PID START`, `- PID`, `folder PATH`, `forget PATH`. At the end of input (the parent stopped, crashed or was killed by
SIGKILL) every process still named is killed, then every folder still named is removed. `START` is the process's start
time, so that a pid that was given to somebody else in the meantime is left alone.
Standard library only, no imports of amends: it must start in milliseconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable


def start_of(pid: int) -> str:
    """Return what distinguishes this process from a later one of the same pid; empty where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def remove_folder(path: str) -> None:
    """Remove a folder whose files a dying process may still be writing; gives up after two seconds."""
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.exists(path):
            return
        time.sleep(0.1)


def watch(lines: Iterable[str]) -> None:
    """Follow the parent's lines to their end, then end what is left."""
    processes: dict[int, str] = {}
    folders: dict[str, None] = {}
    for line in lines:
        verb, _, rest = line.rstrip("\n").partition(" ")
        if verb == "+":
            named, _, start = rest.partition(" ")
            processes[int(named)] = start
        elif verb == "-":
            processes.pop(int(rest), None)
        elif verb == "folder":
            folders[rest] = None
        elif verb == "forget":
            folders.pop(rest, None)
    for pid, started in processes.items():
        if start_of(pid) == started:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
    for folder in folders:
        remove_folder(folder)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    watch(sys.stdin)
