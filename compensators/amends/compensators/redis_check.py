"""Whether a Redis may be the registry: it must not evict, and had better keep what it has over a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from amends.compensators.redis_address import PREFIX, URL
from amends.compensators.redis_client import sentinel_of, service_of
from amends.compensators.redis_refusals import places_of, why_unusable

_CLOSED = "closed by server"
"""What brokers of Kafka do to who speaks another language; and proxies whose Redis is away."""


class RegistryUnusable(RuntimeError):  # noqa: N818 - what Redis is
    """Redis answers, but must not be used as it is set up. The message says what to change."""


async def check_redis(
    client: Redis | RedisCluster, try_verbs: Callable[[], Awaitable[None]], *, reads_settings: bool = True
) -> list[str]:
    """Return warnings about how Redis is set up, each primary of a cluster; out of reach is one of them.

    Args:
        try_verbs: runs each of the registry's scripts once.
        reads_settings: whether to look at Redis' own settings.

    Raises:
        RegistryUnusable: it evicts keys, does not let us in or do what we must, or is a node of a cluster and not taken
            for one.
    """
    try:
        await _ask_sentinels(client)
        if isinstance(client, RedisCluster):
            await client.initialize()
            await try_verbs()
            if not reads_settings:
                return []
            found = [await _warnings(client, node) for node in client.get_primaries()]
            return list(dict.fromkeys(warning for warnings in found for warning in warnings))
        if await _is_of_a_cluster(client):
            raise RegistryUnusable(
                "this Redis is a node of a cluster. Set AMENDS_COMPENSATOR__REDIS_CLUSTER=true, or give the registry "
                "a Redis of its own (AMENDS_COMPENSATOR__REDIS_URL)."
            )
        await try_verbs()
        return await _warnings(client) if reads_settings else []
    except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
        if why := await asyncio.to_thread(why_unusable, error, places_of(client)):
            raise RegistryUnusable(why) from error
        hint = f" (make sure that {URL} names a Redis)" if _CLOSED in str(error) else ""
        return [f"the registry's Redis does not answer; going on without, the read back decides: {error}{hint}"]


async def _ask_sentinels(client: Redis | RedisCluster) -> None:
    """Raise RegistryUnusable where sentinels answer that they don't know our service, and what a sentinel answers."""
    sentinel, service = sentinel_of(client), service_of(client)
    if sentinel is None:
        return
    known: set[str] = set()
    failed: Exception | None = None
    for each in sentinel.sentinels:
        try:
            known.update(text_of(name) for name in await each.sentinel_masters())
        except (AuthenticationError, NoPermissionError) as error:
            raise RegistryUnusable(
                f"a sentinel does not let us ask it: {error}. See to {PREFIX}SENTINEL_USER and "
                f"{PREFIX}SENTINEL_PASSWORD; it must allow +sentinel|masters +sentinel|get-master-addr-by-name"
            ) from error
        except (RedisError, OSError, TimeoutError) as error:
            failed = error
    if known and service not in known:
        raise RegistryUnusable(
            f"the sentinels know no service {service!r}, but {', '.join(sorted(known))}: change {PREFIX}URL"
        )
    if not known and failed is not None:
        raise failed


async def _warnings(client: Redis | RedisCluster, node: ClusterNode | None = None) -> list[str]:
    policy = await setting_of(client, "maxmemory-policy", node)
    append_only, save = await setting_of(client, "appendonly", node), await setting_of(client, "save", node)
    if policy is not None and policy != "noeviction":
        raise RegistryUnusable(
            f"this Redis evicts keys (maxmemory-policy {policy}), so claims would vanish under load. Set "
            "`maxmemory-policy noeviction`, or give the registry a Redis of its own (AMENDS_COMPENSATOR__REDIS_URL)."
        )
    if policy is None or append_only is None or save is None:
        return [
            "Redis does not let us read its settings (ACL: CONFIG GET): make sure that maxmemory-policy is "
            "noeviction and that it persists, or let us (ACL: +config|get). Once you are sure, say so and this is not "
            "asked again: AMENDS_COMPENSATOR__REDIS_CHECK=trust"
        ]
    if append_only != "yes" and not save:
        return [
            "this Redis keeps nothing over a restart (appendonly no, save empty): claims are forgotten then, which "
            "costs repeated work but no repeated undo"
        ]
    return []


async def _is_of_a_cluster(client: Redis) -> bool:
    try:
        return text_of(await cast("Any", client).execute_command("CLUSTER INFO")) != ""
    except (NoPermissionError, ResponseError):  # "cluster support disabled"
        return False


async def setting_of(client: Redis | RedisCluster, name: str, node: ClusterNode | None = None) -> str | None:
    """Return a server setting, or None where we may not read it. `node` is of a cluster."""
    target = {} if node is None else {"target_nodes": node}
    try:
        answer = await cast("Any", client).execute_command("CONFIG GET", name, **target)
    except (NoPermissionError, ResponseError):
        return None
    items = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=False)
    found = {text_of(key): text_of(value) for key, value in items}
    return found.get(name)


def text_of(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
