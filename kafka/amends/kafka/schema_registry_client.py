"""The calls of a schema registry that amends makes, as Confluent's, Karapace and Apicurio (ccompat) answer them.

One connection, kept open over calls; not to be shared between threads. Nothing of the credentials is in any error.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import quote, urlsplit

from amends.kafka.schema_registry_answers import (
    NO_REGISTRY,
    NOT_FOUND,
    NoSchemaRegistry,
    Registered,
    SchemaRegistryAnswered,
    SchemaRegistryAway,
    SchemaRegistryRefused,
    answer_of,
    are_types,
    id_in,
    level_in,
    registered_in,
    schema_in,
    versions_in,
)
from amends.kafka.schema_registry_settings import SchemaRegistrySettings
from amends.kafka.schema_registry_tls import secured, words_of

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
ANSWER_BYTES_MAX = 4 * 1024 * 1024


class SchemaRegistryClient:
    """Asks the registry of `settings`.

    Raises:
        SettingsWrong: a file of certificates can't be read.
    """

    def __init__(
        self, settings: SchemaRegistrySettings, *, monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1000
    ) -> None:
        self._settings = settings
        self._urls = list(settings.url)
        self._connection: http.client.HTTPConnection | None = None
        self._monotonic_ms = monotonic_ms
        self._until_ms: float | None = None
        self._is_known_registry = False
        self._secured = secured(settings) if any(url.startswith("https") for url in self._urls) else None
        self._headers = {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE}
        if settings.password is not None:
            who = f"{settings.user}:{settings.password.get_secret_value()}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(who).decode()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def within(self, duration_ms: float) -> Self:
        """Let all calls from now on end after `duration_ms` together."""
        self._until_ms = self._monotonic_ms() + duration_ms
        return self

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- calls: each raises SchemaRegistryFault, by what is to be done about it ---------------------------------------

    def schema(self, number: int) -> dict[str, Any] | None:
        """Return what the registry holds under an id, None if there is no such id."""
        found = self._or_none("GET", f"/schemas/ids/{number}")
        return None if found is None else schema_in(self._urls[0], found)

    def find(self, subject: str, schema: str) -> Registered | None:
        """Return `schema` as it is registered under `subject`, None if it is not."""
        found = self._or_none("POST", f"/subjects/{quote(subject, safe='')}", {"schema": schema})
        return None if found is None else registered_in(self._urls[0], found)

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, oldest first; none if there is no such subject."""
        found = self._or_none("GET", f"/subjects/{quote(subject, safe='')}/versions")
        return [] if found is None else versions_in(self._urls[0], found)

    def version(self, subject: str, number: int) -> Registered | None:
        found = self._or_none("GET", f"/subjects/{quote(subject, safe='')}/versions/{number}")
        return None if found is None else registered_in(self._urls[0], found)

    def compatibility(self, subject: str) -> str:
        """Return the level that is set for a subject, "" if it has none of its own."""
        found = self._or_none("GET", f"/config/{quote(subject, safe='')}")
        return "" if found is None else level_in(self._urls[0], found)

    def set_compatibility(self, subject: str, level: str) -> None:
        self._asked("PUT", f"/config/{quote(subject, safe='')}", {"compatibility": level})

    def register(self, subject: str, schema: str) -> int:
        """Register a schema, or find it registered; return its id."""
        said = self._asked("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})
        return id_in(self._urls[0], said)

    # --- HTTP -------------------------------------------------------------------------------------------------------

    def _or_none(self, method: str, path: str, body: object = None) -> Any:
        try:
            return self._asked(method, path, body)
        except SchemaRegistryAnswered as error:
            if error.status != NOT_FOUND:
                raise
            if not error.is_absence and not self._is_registry():
                raise NoSchemaRegistry(f"{error}; {NO_REGISTRY}") from error
            return None

    def _is_registry(self) -> bool:
        """Return whether a registry is at this path. Older ones (Apicurio 2) say 404 as any server does."""
        if self._is_known_registry:
            return True
        try:
            self._is_known_registry = are_types(self._asked("GET", "/schemas/types"))
        except (SchemaRegistryAnswered, NoSchemaRegistry):
            return False
        return self._is_known_registry

    def _asked(self, method: str, path: str, body: object = None) -> Any:
        """Ask each address until one answers."""
        away: SchemaRegistryAway | None = None
        for _ in range(len(self._urls)):
            try:
                return self._asked_once(method, path, body)
            except SchemaRegistryAway as error:
                away = away or error
                self.close()
                self._urls.append(self._urls.pop(0))
        assert away is not None
        raise away

    def _asked_once(self, method: str, path: str, body: object) -> Any:
        url = self._urls[0]
        data = None if body is None else json.dumps(body).encode()
        while True:
            timeout_s = self._timeout_s(url)
            reused = self._connection is not None
            try:
                return answer_of(url, *self._exchanged(url, method, path, data, timeout_s))
            except ssl.SSLError as error:
                self.close()
                if isinstance(error, ssl.SSLEOFError):
                    raise SchemaRegistryAway(f"{url} closed the connection{self._perhaps(url)}") from error
                raise SchemaRegistryRefused(f"{url}: {words_of(error)}") from error
            except (http.client.HTTPException, OSError) as error:
                self.close()
                if reused and not isinstance(error, TimeoutError):
                    continue  # it had closed a connection that was idle
                hint = self._perhaps(url) if isinstance(error, ConnectionResetError) else ""
                raise SchemaRegistryAway(
                    f"{url} (AMENDS_SCHEMA_REGISTRY__URL) does not answer: {error or type(error).__name__}{hint}"
                ) from error

    def _exchanged(self, url: str, method: str, path: str, data: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connected(url, timeout_s)
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
        self._connection.request(method, urlsplit(url).path + path, data, self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX)

    def _perhaps(self, url: str) -> str:
        """Return what a connection that is closed at once may mean."""
        if not url.startswith("https") or self._settings.ssl_certificate_location:
            return ""
        return (
            "; if it asks who we are, set AMENDS_SCHEMA_REGISTRY__SSL_CERTIFICATE_LOCATION and "
            "AMENDS_SCHEMA_REGISTRY__SSL_KEY_LOCATION"
        )

    def _connected(self, url: str, timeout_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        assert parts.hostname is not None
        if self._secured is not None and parts.scheme == "https":
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=self._secured)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)

    def _timeout_s(self, url: str) -> float:
        left_ms = float(self._settings.request_ms)
        if self._until_ms is not None:
            left_ms = min(left_ms, self._until_ms - self._monotonic_ms())
        if left_ms <= 0:
            raise SchemaRegistryAway(f"{url} did not answer in time")
        return left_ms / 1000
