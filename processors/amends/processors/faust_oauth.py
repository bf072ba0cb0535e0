"""Tokens for OAUTHBEARER by client credentials (RFC 6749, 4.4), as librdkafka's `oidc` method asks for them."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field

from aiokafka.abc import AbstractTokenProvider

REQUEST_S = 10.0
RENEWED_AT = 0.8
"""Of a token's life, after which the next connection asks for a new one."""
LIFE_S = 300.0
"""Where the server does not say how long a token lives."""


class NoTokenError(Exception):
    """The token endpoint did not give one. Connecting fails, and is tried again by the client."""


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Where a token comes from, and who asks for it."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    ca_file: str | None = None

    def request(self) -> urllib.request.Request:
        fields = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        pair = ":".join(urllib.parse.quote(part, safe="") for part in (self.client_id, self.client_secret))
        return urllib.request.Request(  # noqa: S310  # an operator's own setting
            self.url,
            data=urllib.parse.urlencode(fields).encode(),
            headers={
                "Authorization": "Basic " + base64.b64encode(pair.encode()).decode(),
                "Accept": "application/json",
            },
        )


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Asks about once per life of a token, however many connections there are. May be used by several loops."""

    def __init__(self, client: ClientCredentials) -> None:
        self._client = client
        self._token = ""
        self._good_until_s = 0.0

    async def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  # its base returns nothing
        """Return a token. Raises NoTokenError."""
        if time.monotonic() >= self._good_until_s:
            self._token, life_s = await asyncio.to_thread(self._asked)
            self._good_until_s = time.monotonic() + RENEWED_AT * life_s
        return self._token

    def _asked(self) -> tuple[str, float]:
        context = ssl.create_default_context(cafile=self._client.ca_file)
        url = self._client.url
        try:
            with urllib.request.urlopen(self._client.request(), timeout=REQUEST_S, context=context) as answer:  # noqa: S310
                said = json.load(answer)
            return str(said["access_token"]), float(said.get("expires_in", LIFE_S))
        except urllib.error.HTTPError as error:
            error.close()
            raise NoTokenError(f"{url} answered {error.code} {error.reason}: are client id and secret right?") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NoTokenError(f"no token from {url}: {type(error).__name__}: {error}") from None
