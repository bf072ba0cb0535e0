"""`/healthz` and `/metrics` of a long-running part: a small HTTP server of the standard library in a thread of its own.

Loopback unless told otherwise: it has no password, and says how much work there is. It only reads what it is given, so
a part that hangs still answers, and says that it hangs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a part makes progress, and what a person may want to know. No secrets in `detail`."""

    healthy: bool
    reason: str = ""
    detail: Mapping[str, object] = field(default_factory=dict[str, object])
    waits: bool = False
    """What is wrong is outside: started anew, the part would wait for it, too."""


class HealthServer:
    """Answers `/healthz` with 200 or 503 and a JSON body, `/livez` too but with 200 where starting the part anew would
    not help, `/metrics` with what `metrics` returns (404 without it).

    Args:
        port: 0 takes any free port; `.port` is the one taken.
        metrics: the Prometheus text format, in bytes.

    Raises:
        OSError: the port is taken.
    """

    def __init__(
        self,
        health: Callable[[], Health],
        metrics: Callable[[], bytes] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._server = ThreadingHTTPServer((host, port), _handler(health, metrics))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="amends-health", daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close the port. May be called once, after `start`."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(health: Callable[[], Health], metrics: Callable[[], bytes] | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds that a client may take to say what it wants

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path in ("/healthz", "/livez"):
                seen = health()
                body = {"healthy": seen.healthy, "reason": seen.reason, **seen.detail}
                fine = seen.healthy or (path == "/livez" and seen.waits)
                self._answer(200 if fine else 503, "application/json", json.dumps(body).encode())
            elif path == "/metrics" and metrics is not None:
                self._answer(200, _TEXT, metrics())
            else:
                self._answer(404, "text/plain", b"there is /healthz, /livez and /metrics\n")

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A probe every few seconds is no news."""

    return Handler
