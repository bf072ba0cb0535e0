"""Where the registry's Redis is and how one gets in, out of the settings; what does not fit together is refused."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import SecretStr

from amends.compensators.settings import CompensatorSettings
from amends.kafka.errors import SettingsWrong

PORT, SENTINEL_PORT = 6_379, 26_379
FORMS = "redis://HOST:PORT/0, unix:///PATH or redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/0, rediss… for TLS"
PREFIX = "AMENDS_COMPENSATOR__REDIS_"
URL = f"{PREFIX}URL"


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """Whom we believe and who we are; paths of PEM files."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """`nodes`: of Redis, or its sentinels if there is a `service`. `path`: of a socket, in place of nodes."""

    nodes: tuple[tuple[str, int], ...]
    path: str = ""
    service: str = ""
    database: int = 0
    cluster: bool = False
    tls: Tls | None = None
    own: Credentials = Credentials()
    sentinels: Credentials = Credentials()


def address_of(settings: CompensatorSettings) -> RedisAddress | None:
    """Return the address, None where there is to be no registry.

    Raises:
        SettingsWrong: it is no address of a Redis, or settings would have no effect; no secret is shown.
    """
    url = _text(settings.redis_url)
    if not url:
        return None
    try:
        parts = urlsplit(url)
        made = _made(parts, settings)
    except SettingsWrong:
        raise
    except ValueError:  # whose words may hold a part of the password
        raise SettingsWrong(
            f"{URL} is no URL of a Redis: {FORMS}, with what is special in a password written as %XX"
        ) from None
    if parts.query or parts.fragment:
        raise SettingsWrong(f"{URL} has options behind a ? or #: they are settings of their own, {PREFIX}…")
    _refuse_what_has_no_effect(settings, made)
    return made


def _made(parts: SplitResult, settings: CompensatorSettings) -> RedisAddress:
    """Raises ValueError, SettingsWrong."""
    own, tls = _credentials(parts, settings), _tls(parts, settings)
    if parts.scheme == "unix" and parts.path and not parts.hostname:
        return RedisAddress((), path=unquote(parts.path), own=own)
    if parts.scheme in ("redis", "rediss"):
        (node,) = _nodes(parts, PORT)
        database = _database(parts.path.strip("/"))
        return RedisAddress((node,), database=database, cluster=settings.redis_cluster, tls=tls, own=own)
    if parts.scheme in ("redis+sentinel", "rediss+sentinel"):
        service, _, database_text = parts.path.strip("/").partition("/")
        if not service:
            raise SettingsWrong(f"{URL} names no service: redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/0")
        sentinels = Credentials(settings.redis_sentinel_user, _text(settings.redis_sentinel_password) or None)
        return RedisAddress(
            _nodes(parts, SENTINEL_PORT),
            service=unquote(service),
            database=_database(database_text),
            tls=tls,
            own=own,
            sentinels=sentinels,
        )
    raise ValueError(parts.scheme)


def _nodes(parts: SplitResult, port: int) -> tuple[tuple[str, int], ...]:
    """Return hosts and ports; several stand between commas. Raises ValueError."""
    found: list[tuple[str, int]] = []
    for each in parts.netloc.rpartition("@")[2].split(","):
        place = urlsplit(f"//{each}")
        if not place.hostname:
            raise ValueError(each)
        found.append((place.hostname, place.port or port))
    return tuple(found)


def _database(text: str) -> int:
    number = int(text or "0")
    if number < 0:
        raise ValueError(text)
    return number


def _credentials(parts: SplitResult, settings: CompensatorSettings) -> Credentials:
    inner, at, _ = parts.netloc.rpartition("@")
    user, _, password = inner.partition(":")
    given = Credentials(settings.redis_user, _text(settings.redis_password) or None)
    if not at:
        return given
    if given != Credentials():
        raise SettingsWrong(f"user or password stand in {URL}, and in {PREFIX}USER or {PREFIX}PASSWORD: leave one out")
    return Credentials(unquote(user) or None, unquote(password) or None)


def _tls(parts: SplitResult, settings: CompensatorSettings) -> Tls | None:
    made = Tls(
        settings.redis_ssl_ca_location,
        settings.redis_ssl_certificate_location,
        settings.redis_ssl_key_location,
        _text(settings.redis_ssl_key_password) or None,
    )
    if not parts.scheme.startswith("rediss"):
        if made != Tls():
            raise SettingsWrong(f"{PREFIX}SSL_… would have no effect: begin {URL} with rediss for TLS")
        return None
    for name, path in (("CA", made.ca), ("CERTIFICATE", made.certificate), ("KEY", made.key)):
        if path is not None and not os.access(path, os.R_OK):
            raise SettingsWrong(f"{PREFIX}SSL_{name}_LOCATION: the file {path} can't be read")
    if made.certificate is not None:
        try:
            # Without any password OpenSSL would ask for it at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(made.certificate, made.key, made.key_password or "")
        except OSError:
            raise SettingsWrong(
                f"{PREFIX}SSL_CERTIFICATE_LOCATION, {PREFIX}SSL_KEY_LOCATION: they do not belong together, or "
                f"{PREFIX}SSL_KEY_PASSWORD is missing or wrong"
            ) from None
    return made


def _refuse_what_has_no_effect(settings: CompensatorSettings, made: RedisAddress) -> None:
    if settings.redis_cluster and not made.cluster:
        raise SettingsWrong(f"{PREFIX}CLUSTER=true wants {URL} to name a node: redis://HOST:PORT or rediss://…")
    if made.cluster and made.database:
        raise SettingsWrong(f"a Redis Cluster has only database 0, and {URL} names {made.database}")
    if made.cluster and made.tls is not None and made.tls.key_password:
        raise SettingsWrong(f"{PREFIX}SSL_KEY_PASSWORD: the client takes none for a cluster; give it a key without one")
    if not made.service and (settings.redis_sentinel_user or settings.redis_sentinel_password):
        raise SettingsWrong(f"{PREFIX}SENTINEL_… would have no effect: {URL} begins not with redis+sentinel")


def _text(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()
