"""A token endpoint for OAUTHBEARER: client credentials in, signed tokens out, and the keys to check them by."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE = "kafka"
LIFE_S = 300
AWAY = "/away"
"""What is asked for here is answered by nobody but a gateway."""


class TokenEndpoint:
    """Knows clients by id and secret. Serves `token_url` and `keys_url` on 127.0.0.1 while in its `with`."""

    def __init__(self, clients: Mapping[str, str]) -> None:
        self.given = 0
        """Tokens that were given out."""
        self._clients = dict(clients)
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="token-endpoint", daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.token_url, self.keys_url = f"{self.url}/token", f"{self.url}/keys"

    def __enter__(self) -> TokenEndpoint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def token(self, client_id: str, client_secret: str) -> str | None:
        """Return a token for a client, None for one that is not known."""
        if self._clients.get(client_id) != client_secret:
            return None
        self.given += 1
        now = int(time.time())
        claims = {"sub": client_id, "aud": AUDIENCE, "iss": self.url, "iat": now, "exp": now + LIFE_S}
        signed = f"{_part({'alg': 'RS256', 'typ': 'JWT', 'kid': '1'})}.{_part(claims)}"
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256"}
        return {"keys": [{**key, "n": _number(numbers.n), "e": _number(numbers.e)}]}


def _handler(endpoint: TokenEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, endpoint.keys())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            if self.path == AWAY:
                self._answer(503, {"error": "temporarily_unavailable"})
                return
            scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
            client_id, _, secret = base64.b64decode(encoded).decode().partition(":") if scheme == "Basic" else ("",) * 3
            token = endpoint.token(client_id, secret)
            if token is None:
                self._answer(401, {"error": "invalid_client", "error_description": "no such client"})
            else:
                self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": LIFE_S})

        def _answer(self, status: int, document: Mapping[str, Any]) -> None:
            body = json.dumps(document).encode()
            with contextlib.suppress(ConnectionError):  # a client that ends does not wait for its token
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """The tests say what they want to know."""

    return Handler


def _part(document: Mapping[str, Any]) -> str:
    return _text(json.dumps(document).encode())


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
