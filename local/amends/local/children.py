"""Child processes and folders that do not outlive this process, however it ends."""

from __future__ import annotations

import atexit
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from amends.local import leash

# Below the range from which Linux takes ports for outgoing connections (32768 and up), so that a server that is
# stopped and started again finds its port free.
PORT_FIRST, PORT_LAST = 20_000, 32_000


class _Leash:
    """The one leash of this process: see `leash.py`. Made anew after a fork, so that a child's children are its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def tell(self, line: str) -> None:
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                self._start()
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _start(self) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", leash.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        atexit.register(self._end, self._owner)

    def _end(self, owner: int) -> None:
        process = self._process
        if process is None or owner != os.getpid():
            return
        self._process = None
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=30)


_leash = _Leash()


class Child:
    """A process of ours, in a session of its own (Ctrl-C reaches it only through us), killed when we are gone."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdout: IO[bytes] | int | None = subprocess.DEVNULL,
        stderr: IO[bytes] | int | None = subprocess.STDOUT,
        folder: Path | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            list(arguments),
            env=dict(environment) if environment is not None else None,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            start_new_session=True,
        )
        _leash.tell(f"+ {self.pid} {leash.start_of(self.pid)}")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Return how it ended (negative: by that signal), None while it runs."""
        return self.process.poll()

    def wait(self, timeout_ms: int) -> int:
        """Wait for its end and return the exit code. Raises `subprocess.TimeoutExpired`."""
        code = self.process.wait(timeout=timeout_ms / 1000)
        _leash.tell(f"- {self.pid}")
        return code

    def kill(self) -> None:
        """End it by SIGKILL and wait until it is gone."""
        if self.alive:
            self.process.kill()
        self.wait(10_000)

    def stop(self, grace_ms: int = 10_000) -> int:
        """Ask it to end (SIGTERM; woken if frozen), kill it after the grace. Returns the exit code."""
        if self.alive:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)
            try:
                return self.wait(grace_ms)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.wait(10_000)


def make_folder(purpose: str) -> Path:
    """Make a temporary folder that is removed when this process is gone, if `remove_folder` was not called before."""
    folder = Path(tempfile.mkdtemp(prefix=f"amends-{purpose}-"))
    _leash.tell(f"folder {folder}")
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder made by `make_folder`."""
    leash.remove_folder(str(folder))
    _leash.tell(f"forget {folder}")


def keep_folder(folder: Path) -> None:
    """Leave a folder made by `make_folder` where it is, for somebody to look at."""
    _leash.tell(f"forget {folder}")


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now; whoever binds it must be ready to find it taken."""
    for _ in range(200):
        port = random.randrange(PORT_FIRST, PORT_LAST)  # noqa: S311 - not a secret
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port on 127.0.0.1 between {PORT_FIRST} and {PORT_LAST}")
