"""Is a server ready? The least of two wire protocols, so that starting a server needs no client library."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

METADATA, METADATA_VERSION = 3, 1


def kafka_answers(host: str, port: int, timeout_ms: int = 1_000) -> bool:
    """Tell whether a Kafka broker answers and counts itself among the live brokers."""
    return kafka_brokers(host, port, timeout_ms) > 0


def kafka_brokers(host: str, port: int, timeout_ms: int = 1_000) -> int:
    """Return how many brokers are alive, by the word of this one (Metadata request, version 1); 0 if it is silent."""
    client = b"amends-local"
    no_topics = struct.pack(">i", 0)
    body = struct.pack(">hhih", METADATA, METADATA_VERSION, 1, len(client)) + client + no_topics
    try:
        with socket.create_connection((host, port), timeout=timeout_ms / 1000) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            size, _correlation, brokers = struct.unpack(">iii", _exactly(connection, 12))
    except OSError:
        return 0
    return int(brokers) if size > 8 else 0


def redis_answers(host: str, port: int, timeout_ms: int = 1_000) -> bool:
    """Tell whether a Redis answers PING (a server still loading its data does not)."""
    try:
        with socket.create_connection((host, port), timeout=timeout_ms / 1000) as connection:
            connection.sendall(b"*1\r\n$4\r\nPING\r\n")
            return _exactly(connection, 7) == b"+PONG\r\n"
    except OSError:
        return False


def answers(port: int, timeout_ms: int = 1_000) -> bool:
    """Tell whether something on this machine takes connections on the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_ms / 1000):
            return True
    except OSError:
        return False


def wait_for(ready: Callable[[], bool], *, alive: Callable[[], bool], deadline_ms: int, every_ms: int = 20) -> bool:
    """Ask until it is ready (True), or it died or the deadline passed (False)."""
    end = time.monotonic() + deadline_ms / 1000
    while time.monotonic() < end:
        if ready():
            return True
        if not alive():
            return False
        time.sleep(every_ms / 1000)
    return False


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError("the server closed the connection")
        received += part
    return received
