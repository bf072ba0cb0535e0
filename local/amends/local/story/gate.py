"""The network before the payment service: passes every call on to it, and can hold an answer back.

The payment service of the story is `localstripe`, which nobody here wrote and which has no fault switches. A switch is
written as for the other services, by method and path pattern: `POST /v1/refunds` (path segments beyond the first two
alternate between variable and name: `POST /v1/payment_intents/{}/confirm`).
"""

from __future__ import annotations

import argparse
import http.client
import json
from http.server import ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import urlsplit

from amends.local.story.faults import LOOPBACK, FaultSwitches, HeldCall
from amends.local.story.http_service import QuietHandler, QuietServer, Reply, serve, switch_reply

HOP_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date", "server"})
Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""
SWITCH_PATHS = frozenset({"/healthz", "/faults", "/held"})


def call_of(method: str, path: str) -> str:
    """Return the name of a payment call: `POST /v1/payment_intents/pi_1/confirm` is `POST
    /v1/payment_intents/{}/confirm`.
    """
    segments = [segment for segment in path.split("/") if segment]
    shape = [segment if index < 2 or index % 2 else "{}" for index, segment in enumerate(segments)]
    return f"{method} /" + "/".join(shape)


class PassingHandler(QuietHandler):
    """What a gate needs: to pass a call on to `target` (host:port), and an answer back."""

    target: ClassVar[str]

    def content(self) -> bytes:
        """Return the call's body. Once for each call."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def pass_on(self, method: str, content: bytes) -> Answer:
        """Return what the service answers."""
        connection = http.client.HTTPConnection(self.target, timeout=30)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS}
            connection.request(method, self.path, content or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer the caller."""
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def make_gate(
    upstream: str, port: int = 0, faults: FaultSwitches | None = None, *, host: str = LOOPBACK
) -> ThreadingHTTPServer:
    """Return the gate before `upstream` (http://host:port); the caller runs and closes it."""
    switches = faults or FaultSwitches()

    class Handler(PassingHandler):
        target = urlsplit(upstream).netloc

        def serve(self, method: str) -> None:
            content = self.content()
            path = urlsplit(self.path).path
            if path in SWITCH_PATHS:
                reply = switch_reply(switches, method, path, json.loads(content or b"{}"))
                self._json(reply or Reply(404, {"error": "no such switch"}))
                return
            call = call_of(method, path)
            fault = switches.next_for(call)
            key = self.headers.get("Idempotency-Key", "")
            held = HeldCall(call, fault or "", self.client_address[1], key, self.client_address[0])
            if fault == "down":
                self._json(Reply(503, {"error": {"message": "the service is down", "type": "api_error"}}))
            elif fault == "refuse":
                self._json(
                    Reply(402, {"error": {"message": "declined", "type": "card_error", "code": "card_declined"}})
                )
            elif fault == "hang_before_effect":
                self._cut(held)
            else:
                status, headers, body = self.pass_on(method, content)
                if fault == "hang_after_effect":
                    self._cut(held)
                else:
                    self.send(status, headers, body)

        def _cut(self, held: HeldCall) -> None:
            switches.hold(held)
            self.close_connection = True

        def _json(self, reply: Reply) -> None:
            self.send(reply.status, [("Content-Type", "application/json")], json.dumps(reply.body).encode())

    return QuietServer((host, port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(prog="gate")
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    arguments = parser.parse_args()
    serve(make_gate(arguments.upstream, arguments.port, host=arguments.host))


if __name__ == "__main__":
    main()
