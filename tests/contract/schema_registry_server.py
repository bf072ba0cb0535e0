"""A schema registry of ours, in this process: answers what Confluent's API documents for the calls amends makes.

It stands under the same suite as a real one (`test_schema_registry.py`). Faults can be turned on: a test's registry is
away, slow, or asks for a password.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from tests.core.compatibility import incompatibilities

NO_SUBJECT, NO_VERSION, NO_SCHEMA, NO_LEVEL = 40401, 40402, 40403, 40408
LEVELS = ("NONE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE")


class Refused(Exception):  # noqa: N818
    def __init__(self, status: int, code: int, words: str) -> None:
        super().__init__(words)
        self.status, self.code = status, code


class OurRegistry:
    """Serve on 127.0.0.1.

    Attributes:
        fault: what answers in place of the registry: (status, body); None: the registry.
        asked: "METHOD path" of every request.
        user: "name:password" that is asked for; None: nobody is.
        codes: errors have codes of their own; without, they say no more than HTTP does.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, port: int = 0, like: OurRegistry | None = None) -> None:
        self.fault: tuple[int, bytes] | None = None
        self.user: str | None = None
        self.codes = True
        self.asked: list[str] = []
        self._lock = threading.Lock()
        self._ids: dict[str, int] = like._ids if like else {}
        self._subjects: dict[str, dict[int, str]] = like._subjects if like else {}
        self._levels: dict[str, str] = like._levels if like else {}
        self._scheme = "http" if tls is None else "https"
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # --- the API ----------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, body: Any) -> Any:
        with self._lock:
            for wanted, pattern, call in self._calls():
                match = re.fullmatch(pattern, path)
                if wanted == method and match:
                    return call(*(unquote(part) for part in match.groups()), *([body] if body is not None else []))
        raise Refused(404, 404, "HTTP 404 Not Found")

    def _calls(self) -> list[tuple[str, str, Callable[..., Any]]]:
        return [
            ("GET", r"/subjects", lambda: sorted(self._subjects)),
            ("GET", r"/schemas/types", lambda: ["JSON", "PROTOBUF", "AVRO"]),
            ("GET", r"/schemas/ids/(\d+)", self._by_id),
            ("GET", r"/subjects/([^/]+)/versions", lambda subject: sorted(self._subject(subject))),
            ("GET", r"/subjects/([^/]+)/versions/(\d+)", self._version),
            ("POST", r"/subjects/([^/]+)", self._find),
            ("POST", r"/subjects/([^/]+)/versions", self._register),
            ("GET", r"/config/([^/]+)", self._level),
            ("PUT", r"/config/([^/]+)", self._set_level),
        ]

    def _subject(self, subject: str) -> dict[int, str]:
        if subject not in self._subjects:
            raise Refused(404, NO_SUBJECT, f"Subject '{subject}' not found.")
        return self._subjects[subject]

    def _by_id(self, number: str) -> Any:
        for schema, known in self._ids.items():
            if known == int(number):
                return {"schema": schema}
        raise Refused(404, NO_SCHEMA, f"Schema {number} not found")

    def _version(self, subject: str, number: str) -> Any:
        schema = self._subject(subject).get(int(number))
        if schema is None:
            raise Refused(404, NO_VERSION, f"Version {number} not found.")
        return {"subject": subject, "version": int(number), "id": self._ids[schema], "schema": schema}

    def _find(self, subject: str, body: Any) -> Any:
        for number, schema in self._subject(subject).items():
            if _parsed(schema) == _parsed(body["schema"]):
                return self._version(subject, str(number))
        raise Refused(404, NO_SCHEMA, "Schema not found")

    def _register(self, subject: str, body: Any) -> Any:
        new, versions = _parsed(body["schema"]), self._subjects.get(subject, {})
        known = next((schema for schema in versions.values() if _parsed(schema) == new), None)
        if known is None:
            if self._levels.get(subject) == "FULL_TRANSITIVE":
                for number, schema in versions.items():
                    problems = list(incompatibilities(_parsed(schema), new))
                    if problems:
                        raise Refused(409, 409, f"Schema being registered is incompatible with {number}: {problems}")
            known = next((schema for schema in self._ids if _parsed(schema) == new), body["schema"])
            self._ids.setdefault(known, len(self._ids) + 1)
            self._subjects.setdefault(subject, {})[max(versions, default=0) + 1] = known
        return {"id": self._ids[known]}

    def _level(self, subject: str) -> Any:
        if subject not in self._levels:
            raise Refused(404, NO_LEVEL, f"Subject '{subject}' does not have subject-level compatibility configured")
        return {"compatibilityLevel": self._levels[subject]}

    def _set_level(self, subject: str, body: Any) -> Any:
        if body["compatibility"] not in LEVELS:
            raise Refused(422, 42203, "Invalid compatibility level")
        self._levels[subject] = body["compatibility"]
        return {"compatibility": body["compatibility"]}


def _parsed(text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        raise Refused(422, 42201, "Invalid schema") from None
    if not isinstance(found, dict) or found.get("type") != "record" or "fields" not in found:
        raise Refused(422, 42201, "Invalid schema")
    return found


def _handler(registry: OurRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10
        disable_nagle_algorithm = True  # headers and body are two packets, and the second would wait 40 ms

        def do_GET(self) -> None:
            self._heard()

        def do_POST(self) -> None:
            self._heard()

        def do_PUT(self) -> None:
            self._heard()

        def _heard(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            path = urlsplit(self.path).path
            registry.asked.append(f"{self.command} {path}")
            if registry.fault is not None:
                self._say(*registry.fault)
                return
            wanted = registry.user
            if wanted is not None:
                given = self.headers.get("Authorization", "")
                if given != "Basic " + base64.b64encode(wanted.encode()).decode():
                    self._say(401, b'{"error_code": 40101, "message": "Unauthorized"}')
                    return
            try:
                self._say(200, json.dumps(registry.answer(self.command, path, body)).encode())
            except Refused as refused:
                code = refused.code if registry.codes else refused.status
                said = {"error_code": code, "message": str(refused)}
                self._say(refused.status, json.dumps(said).encode())

        def _say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Tests read what was asked from `asked`."""

    return Handler
