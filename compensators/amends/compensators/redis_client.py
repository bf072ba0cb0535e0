"""Clients of the registry's Redis: one server, a socket, a service behind sentinels, a cluster; with TLS or without.

redis-py would try a call ten times over; a registry that is away is better gone without at once.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection
from redis.backoff import NoBackoff

from amends.compensators.redis_address import Credentials, RedisAddress, Tls

TIMEOUT_MS = 1_000
CONNECTIONS_MAX = 4


def connect(url: str, *, timeout_ms: int = TIMEOUT_MS) -> Redis:
    """Return a client for a registry; the caller closes it."""
    return Redis.from_url(  # type: ignore[no-untyped-call,no-any-return,unused-ignore]
        url,
        **_usual(timeout_ms),
        max_connections=CONNECTIONS_MAX,
    )


def connect_cluster(url: str, *, timeout_ms: int = TIMEOUT_MS) -> RedisCluster:
    """Return a client for a registry on a Redis Cluster, of which `url` names one node; the caller closes it."""
    return RedisCluster.from_url(url, **_usual(timeout_ms))  # type: ignore[no-untyped-call,no-any-return,unused-ignore]


def client_of(address: RedisAddress, *, timeout_ms: int = TIMEOUT_MS) -> Redis | RedisCluster:
    """Return a client for what the settings name; `close_client` closes it. Connects to nothing yet."""
    options = _usual(timeout_ms) | _credentials(address.own)
    if address.cluster:
        (host, port), *_ = address.nodes
        tls = {name: value for name, value in _tls(address.tls).items() if name != "ssl_password"}
        return RedisCluster(host=host, port=port, ssl=address.tls is not None, **tls, **options)
    options |= {"db": address.database, "max_connections": CONNECTIONS_MAX}
    if address.service:
        return _behind_sentinels(address, options, timeout_ms)
    if address.path:
        return _of_pool(UnixDomainSocketConnection, {**options, "path": address.path})
    (host, port), *_ = address.nodes
    kind: type[Any] = Connection if address.tls is None else SSLConnection
    return _of_pool(kind, {**options, **_tls(address.tls), "host": host, "port": port})


async def close_client(client: Redis | RedisCluster) -> None:
    """Close a client, and those of its sentinels."""
    sentinel = sentinel_of(client)
    await client.aclose()
    for each in sentinel.sentinels if sentinel is not None else ():
        await each.aclose()


def sentinel_of(client: Redis | RedisCluster) -> Sentinel | None:
    """Return what asks the sentinels where a client's Redis is, if any."""
    return getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)


def service_of(client: Redis | RedisCluster) -> str:
    """Return the name that the sentinels know a client's Redis by, if there are any."""
    return str(getattr(getattr(client, "connection_pool", None), "service_name", ""))


def _of_pool(kind: type[Any], options: dict[str, Any]) -> Redis:
    return Redis.from_pool(ConnectionPool(connection_class=kind, **options))


def _behind_sentinels(address: RedisAddress, options: dict[str, Any], timeout_ms: int) -> Redis:
    tls = address.tls is not None
    asking = {**_usual(timeout_ms), **_credentials(address.sentinels), "ssl": tls, **_tls(address.tls)}
    sentinel = Sentinel(list(address.nodes), sentinel_kwargs=asking)  # type: ignore[no-untyped-call,unused-ignore]
    kind = SentinelManagedSSLConnection if tls else SentinelManagedConnection
    client: Redis = sentinel.master_for(  # type: ignore[no-untyped-call,unused-ignore]
        address.service, connection_class=kind, **options, **_tls(address.tls)
    )
    return client


def _usual(timeout_ms: int) -> dict[str, Any]:
    seconds = timeout_ms / 1000
    return {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": Retry(NoBackoff(), 1),
        "decode_responses": False,
    }


def _credentials(credentials: Credentials) -> dict[str, Any]:
    return {"username": credentials.user, "password": credentials.password}


def _tls(tls: Tls | None) -> dict[str, Any]:
    """Certificates are required and host names compared: said here, lest a default change."""
    if tls is None:
        return {}
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_ca_certs": tls.ca,
        "ssl_certfile": tls.certificate,
        "ssl_keyfile": tls.key,
        "ssl_password": tls.key_password,
    }
