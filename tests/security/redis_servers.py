"""Redis servers of the tests of security: each with a configuration of its own, gone after its block."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError
from tests.conftest import NO_REDIS
from tests.integration.kafka_parts import eventually
from tests.security.certificates import Authority, Identity

BOSS = "boss-password"
USER, WORD = "amends", "word-of:amends/%"
LEAST = ("evalsha", "script|load", "time", "hmget", "hset", "del", "pexpire")
"""What docs/security.md says that the registry needs on any Redis."""
READS = ("config|get", "cluster|info")
"""What it asks at start, and goes without."""
ON_A_CLUSTER = ("cluster|slots", "command")


def user_line(name: str = USER, word: str = WORD, commands: tuple[str, ...] = (*LEAST, *READS)) -> str:
    """Return the line of redis.conf that docs/security.md shows."""
    return f"user {name} on >{word} resetchannels ~amends:undo:* -@all " + " ".join(f"+{each}" for each in commands)


@contextlib.contextmanager
def redis_server(folder: Path, lines: list[str], *, sentinel: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server with these lines of configuration. Does not wait for it."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip(NO_REDIS + "there is no `redis-server` on the PATH")
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "redis.conf"
    configuration.write_text("\n".join(["bind 127.0.0.1", f"dir {folder}", "save ''".replace("''", '""'), *lines, ""]))
    with (folder / "log").open("wb") as log:
        command = [binary, str(configuration), *(["--sentinel"] if sentinel else [])]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def tls_lines(port: int, own: Identity, authority: Authority, *, clients: bool = False) -> list[str]:
    return [
        "port 0", f"tls-port {port}", f"tls-cert-file {own.certificate}", f"tls-key-file {own.key}",
        f"tls-ca-cert-file {authority.file}", f"tls-auth-clients {'yes' if clients else 'no'}",
    ]  # fmt: skip


def durable() -> list[str]:
    return ["appendonly yes", "maxmemory-policy noeviction"]


def boss(port: int, **options: object) -> Redis:
    """A client that may do everything."""
    return Redis(host="127.0.0.1", port=port, password=BOSS, socket_timeout=5, **options)  # type: ignore[arg-type]


def await_answer(port: int, **options: object) -> None:
    def answers() -> bool:
        with contextlib.suppress(RedisError, OSError), contextlib.closing(boss(port, **options)) as client:
            return bool(client.ping())
        return False

    eventually(answers)


Settings = Mapping[str, object]
