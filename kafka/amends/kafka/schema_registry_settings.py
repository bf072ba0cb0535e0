"""Settings of the schema registry: `AMENDS_SCHEMA_REGISTRY__<NAME>`, or table `[schema_registry]` of the file."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

SECTION = "schema_registry"

Milliseconds = Annotated[int, Field(ge=1, le=600_000)]


class SchemaRegistrySettings(BaseModel):
    """Where the schema registry is, and how long anything waits for it. Without a URL there is none.

    Attributes:
        url: where its API is, with the path if it has one; several, separated by commas, are the same registry, and
            the next is asked where one does not answer.
        auto_register: register at the start what is missing. Off, a start without registered schemas is refused.
        user, password: for HTTP basic authentication.
        ssl_ca_location: file of the certificates that its own is signed by; None: those that Python trusts.
        ssl_certificate_location, ssl_key_location, ssl_key_password: who we are, where it asks.
        request_ms: how long one request may take.
        start_within_ms: how long a start waits for it; then records are written as without a registry.
        again_ms: how long until a registry that was away is asked again.
        unknown_within_ms: how long a processor waits for what an id means before it takes the record as unreadable.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: tuple[str, ...] = ()
    auto_register: bool = False
    user: str = ""
    password: SecretStr | None = None
    ssl_ca_location: str | None = None
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    ssl_key_password: SecretStr | None = None
    request_ms: Milliseconds = 2_000
    start_within_ms: Milliseconds = 5_000
    again_ms: Milliseconds = 5_000
    unknown_within_ms: Annotated[int, Field(ge=0, le=30_000)] = 20_000

    @field_validator("url")
    @classmethod
    def _urls_are_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = _parts(url)
            if parts is None:
                raise ValueError("is no address such as http://HOST:8081 or https://HOST/apis/ccompat/v7")
            if parts.username is not None or parts.password is not None:
                raise ValueError(
                    "holds a user or a password: give them with AMENDS_SCHEMA_REGISTRY__USER and "
                    "AMENDS_SCHEMA_REGISTRY__PASSWORD, which are shown nowhere"
                )
            if parts.query or parts.fragment:
                raise ValueError("holds a query (?) or a fragment (#), which no registry wants")
        return tuple(url.rstrip("/") for url in urls)

    @model_validator(mode="after")
    def _what_belongs_together_is_there(self) -> Self:
        if self.user and self.password is None:
            raise ValueError("USER without a password: set AMENDS_SCHEMA_REGISTRY__PASSWORD")
        if self.password is not None and not self.user:
            raise ValueError("PASSWORD without a user: set AMENDS_SCHEMA_REGISTRY__USER")
        if self.ssl_key_location and not self.ssl_certificate_location:
            raise ValueError("SSL_KEY_LOCATION without SSL_CERTIFICATE_LOCATION: a key needs its certificate")
        secured = self.ssl_ca_location or self.ssl_certificate_location
        if secured and any(url.startswith("http://") for url in self.url):
            raise ValueError("certificates are given, but URL begins with http://: set https://, or leave them out")
        return self

    @property
    def is_set(self) -> bool:
        return bool(self.url)


def _parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:
        return None
    return parts if fits else None
