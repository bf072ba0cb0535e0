"""What the story's HTTP services share: JSON over stdlib HTTP, SQLite, an honest history of every effect, fault
switches.
"""

from __future__ import annotations

import argparse
import json
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from amends.local.story.faults import LOOPBACK, FaultSwitches, HeldCall

HISTORY = """
CREATE TABLE IF NOT EXISTS history (
  number INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, effect TEXT NOT NULL, id TEXT NOT NULL, order_id TEXT NOT NULL,
  key TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
  key TEXT PRIMARY KEY, call TEXT NOT NULL, status INTEGER NOT NULL, body TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a route answers."""

    status: int
    body: Any


@dataclass(frozen=True, slots=True)
class Request:
    """One call, inside one SQLite transaction: what it does is done when it returns, or not at all when it raises."""

    database: sqlite3.Connection
    parts: tuple[str, ...]
    query: Mapping[str, str]
    body: Mapping[str, Any]
    key: str

    def record(self, effect: str, identity: str, order: str, **detail: Any) -> None:
        """Write an effect into the history; nothing ever removes it from there."""
        values = (int(time.time() * 1000), effect, identity, order, self.key, json.dumps(detail))
        self.database.execute(
            "INSERT INTO history (at_ms, effect, id, order_id, key, detail) VALUES (?, ?, ?, ?, ?, ?)", values
        )


Route = Callable[[Request], Reply]


@dataclass(frozen=True, slots=True)
class Routes:
    """A service's calls by "METHOD /path/{}"; `keyed` ones answer a repeated Idempotency-Key with their first answer,
    and do nothing.
    """

    schema: str
    routes: Mapping[str, Route]
    keyed: frozenset[str] = field(default_factory=frozenset[str])


class Service:
    """A service's state: database, switches, routes. Calls run one at a time; held calls do not block others."""

    def __init__(self, routes: Routes, database: Path) -> None:
        self.routes = routes
        self.faults = FaultSwitches()
        self._lock = threading.Lock()
        self._database = sqlite3.connect(database, check_same_thread=False, isolation_level=None)
        self._database.row_factory = sqlite3.Row
        self._database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + HISTORY + routes.schema)

    def close(self) -> None:
        self.faults.let_go()
        self._database.close()

    def answer(
        self, call: str, parts: tuple[str, ...], query: Mapping[str, str], body: Any, key: str, peer: tuple[str, int]
    ) -> Reply | None:
        """Do one call. None: the connection is to be closed without an answer."""
        fault = self.faults.next_for(call)
        if fault == "down":
            return Reply(503, {"error": "the service is down"})
        if fault == "refuse":
            return Reply(422, {"error": "refused"})
        held = HeldCall(call, fault or "", peer[1], key, peer[0])
        if fault == "hang_before_effect":
            self.faults.hold(held)
            return None
        reply = self._transact(call, parts, query, body, key)
        if fault == "hang_after_effect":
            self.faults.hold(held)
            return None
        return reply

    def history(self) -> list[dict[str, Any]]:
        with self._lock:
            return [dict(row) for row in self._database.execute("SELECT * FROM history ORDER BY number")]

    def _transact(self, call: str, parts: tuple[str, ...], query: Mapping[str, str], body: Any, key: str) -> Reply:
        keyed = call in self.routes.keyed and key != ""
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                first = self._first_answer(call, key) if keyed else None
                if first is not None:
                    return first
                reply = self.routes.routes[call](Request(self._database, parts, query, body, key))
                if keyed and reply.status < 500:
                    values = (key, call, reply.status, json.dumps(reply.body))
                    self._database.execute("INSERT INTO answers (key, call, status, body) VALUES (?, ?, ?, ?)", values)
                return reply
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            finally:
                if self._database.in_transaction:
                    self._database.execute("COMMIT")

    def _first_answer(self, call: str, key: str) -> Reply | None:
        row = self._database.execute("SELECT call, status, body FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        if row["call"] != call:
            return Reply(422, {"error": f"this Idempotency-Key belongs to {row['call']}"})
        return Reply(row["status"], json.loads(row["body"]))


def pattern_of(method: str, path: str) -> tuple[str, tuple[str, ...]]:
    """Return the route's name and its variable parts: names and variables alternate, `/labels/l_1/void` is
    `/labels/{}/void`.
    """
    segments = [segment for segment in path.split("/") if segment]
    shape = ["{}" if index % 2 else segment for index, segment in enumerate(segments)]
    return f"{method} /" + "/".join(shape), tuple(segments[1::2])


def make_server(service: Service, port: int = 0, host: str = LOOPBACK) -> ThreadingHTTPServer:
    """Return a server; the caller runs and closes it."""

    class Handler(QuietHandler):
        def serve(self, method: str) -> None:
            address = urlsplit(self.path)
            body = self._body()
            if body is None:
                self._send(Reply(400, {"error": "the body is not a JSON object"}))
                return
            reply = switch_reply(service.faults, method, address.path, body)
            if reply is None and (method, address.path) == ("GET", "/history"):
                reply = Reply(200, service.history())
            if reply is None:
                call, parts = pattern_of(method, address.path)
                if call not in service.routes.routes:
                    reply = Reply(404, {"error": f"no such call: {call}"})
                else:
                    query = {name: values[-1] for name, values in parse_qs(address.query).items()}
                    key = self.headers.get("Idempotency-Key", "")
                    reply = service.answer(call, parts, query, body, key, self.client_address[:2])
            self._send(reply)

        def _body(self) -> dict[str, Any] | None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                body = json.loads(content or b"{}")
            except ValueError:
                return None
            return body if isinstance(body, dict) else None

        def _send(self, reply: Reply | None) -> None:
            if reply is None:
                self.close_connection = True
                return
            content = json.dumps(reply.body).encode()
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return QuietServer((host, port), Handler)


def switch_reply(faults: FaultSwitches, method: str, path: str, body: Mapping[str, Any]) -> Reply | None:
    """Answer the calls that are for the switches; None if this one is not."""
    match method, path:
        case "GET", "/healthz":
            return Reply(200, {"ok": True})
        case "POST", "/faults":
            try:
                faults.set(str(body.get("call")), str(body.get("fault")), int(body.get("times", 1)))
            except ValueError as wrong:
                return Reply(400, {"error": str(wrong)})
            return Reply(200, {})
        case "DELETE", "/faults":
            faults.clear()
            return Reply(200, {})
        case "GET", "/held":
            return Reply(200, faults.held())
        case "DELETE", "/held":
            faults.let_go()
            return Reply(200, {})
        case _:
            return None


class QuietHandler(BaseHTTPRequestHandler):
    """One call after the other on a connection, each by `serve`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the time line is the demo's."""

    def do_GET(self) -> None:
        self.serve("GET")

    def do_POST(self) -> None:
        self.serve("POST")

    def do_DELETE(self) -> None:
        self.serve("DELETE")

    def serve(self, method: str) -> None:
        """Answer one call."""
        raise NotImplementedError


class QuietServer(ThreadingHTTPServer):
    """Callers of ours are killed in the middle of calls: that is no news."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop what a connection cut by its caller raises."""


def run(name: str, routes: Routes) -> None:
    """Serve until SIGTERM: the `main` of a service's process."""
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--database", type=Path, required=True)
    arguments = parser.parse_args()
    service = Service(routes, arguments.database)
    serve(make_server(service, arguments.port, arguments.host))
    service.close()


def serve(server: ThreadingHTTPServer) -> None:
    """Serve until SIGTERM, then close."""
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.05)
    server.server_close()
