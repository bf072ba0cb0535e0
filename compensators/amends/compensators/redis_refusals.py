"""Why a Redis that is there does not let us in, and which setting to change. One that is away is no refusal."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, ResponseError

from amends.compensators.redis_address import PREFIX, URL

LOOK_S = 4.0
PING = b"PING\r\n"
LEAST = (
    "+evalsha +script|load +time +hmget +hset +del +pexpire, on keys that begin with "
    "AMENDS_COMPENSATOR__REGISTRY_PREFIX; on a cluster also +cluster|slots +cluster|info +command"
)
"""What the registry asks of a user; docs/security.md has it as a line to copy."""

_NO_RIGHT = re.compile(r"NOPERM|ACL failure|can't run this command|no permissions? to", re.IGNORECASE)
_ALERT = re.compile(r"alert[_ ](certificate|bad[_ ]certificate|unknown[_ ]ca)", re.IGNORECASE)
_WRONG_WORD = re.compile(r"WRONGPASS|NOAUTH|invalid username-password|Authentication required", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client connects to, and how."""

    host: str
    port: int
    with_tls: bool
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)


def why_unusable(error: BaseException, places: Sequence[Place]) -> str:
    """Return what is wrong and what to change, or nothing where Redis is merely out of reach. May look at the ports."""
    text = " ".join(str(each) for each in _chain(error))
    if isinstance(error, NoPermissionError) or (isinstance(error, ResponseError) and _NO_RIGHT.search(text)):
        return f"Redis lets this user do too little: {error}. Let it ({PREFIX}USER) do {LEAST}"
    if isinstance(error, AuthenticationError) or _WRONG_WORD.search(text):
        return f"Redis refuses the registry's credentials: {error}. See to {PREFIX}USER, {PREFIX}PASSWORD or {URL}"
    if "DENIED " in text and "protected mode" in text:
        return (
            "Redis is in protected mode and answers nobody from another machine: give it a password, or set "
            "`protected-mode no` where only our parts can reach it"
        )
    distrust = next((each for each in _chain(error) if isinstance(each, ssl.SSLCertVerificationError)), None)
    if distrust is not None or "CERTIFICATE_VERIFY_FAILED" in text:
        return _distrusted(distrust.verify_message if distrust is not None else text)
    if _ALERT.search(text):
        return _turned_away(text)
    if any(isinstance(each, InvalidResponse) for each in _chain(error)):
        there = ", ".join(f"{place.host}:{place.port}" for place in places)
        return f"what answers at {there} is no Redis ({error}): {URL} is to name one"
    return next(filter(None, map(_seen_at, places)), "")


def _turned_away(why: str) -> str:
    settings = f"{PREFIX}SSL_CERTIFICATE_LOCATION and {PREFIX}SSL_KEY_LOCATION"
    return f"Redis refuses this client's certificate, or that it has none ({why}): see to {settings}"


def _distrusted(words: str) -> str:
    told = f"Redis shows a certificate that is not to be believed: {words}. "
    if "expired" in words or "not yet valid" in words:
        return told + "It needs a new one (or this machine's clock is wrong)"
    if "mismatch" in words.lower():
        return told + f"Name the host as its certificate does: {URL}"
    return told + f"Name the authority that signed it: {PREFIX}SSL_CA_LOCATION"


def _seen_at(place: Place) -> str:
    """Return what is wrong between a client and a port, as two connections show it, or nothing."""
    where = f"Redis at {place.host}:{place.port}"
    try:
        with socket.create_connection((place.host, place.port), timeout=LOOK_S) as plain:
            if place.with_tls and (why := _refused_in_tls(plain, place)):
                return _turned_away(why)
            if not place.with_tls and _greets_in_tls(plain, place.host):
                return f"{where} speaks TLS: begin {URL} with rediss in place of redis"
        if place.with_tls:
            with socket.create_connection((place.host, place.port), timeout=LOOK_S) as plain:
                plain.sendall(PING)
                if plain.recv(1) in (b"+", b"-"):
                    return f"{where} speaks no TLS: begin {URL} with redis, or name a port that does"
    except OSError:
        pass
    return ""


def _refused_in_tls(plain: socket.socket, place: Place) -> str:
    """Return how a server that greets in TLS takes leave of our certificate, or nothing."""
    try:
        context = _greeting()
        if place.certificate:
            context.load_cert_chain(place.certificate, place.key, place.key_password or "")
        with context.wrap_socket(plain, server_hostname=place.host) as connection:
            connection.recv(1)  # what is sent before would have the alert of TLS 1.3 lost in a reset
    except ssl.SSLError as error:
        return str(error.reason) if "ALERT" in (error.reason or "") else ""
    except OSError:  # silence, or a close: a proxy before a Redis that is away does that, too
        pass
    return ""


def _greets_in_tls(plain: socket.socket, host: str) -> bool:
    try:
        _greeting().wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True


def _greeting() -> ssl.SSLContext:
    """What greets anybody: it is only to be seen who is there, and nothing secret is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def places_of(client: Any) -> list[Place]:
    """Return where a client connects to first: a server, a cluster's first nodes, or the sentinels."""
    sentinel = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    clients = sentinel.sentinels if sentinel is not None else [client]
    return [place for each in clients for place in _places(each)]


def _places(client: Any) -> Iterator[Place]:
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        options = pool.connection_kwargs
        if "host" in options:
            yield _place(options["host"], options["port"], options)
        return
    for node in getattr(getattr(client, "nodes_manager", None), "startup_nodes", {}).values():
        yield _place(node.host, node.port, node.connection_kwargs)


def _place(host: str, port: int, options: Mapping[str, Any]) -> Place:
    own = (options.get(f"ssl_{name}") for name in ("certfile", "keyfile", "password"))
    return Place(host, int(port), "ssl_cert_reqs" in options, *own)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
