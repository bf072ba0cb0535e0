"""Whether a Redis may be the registry: it must not evict, and had better keep what it has over a restart."""

from __future__ import annotations

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


class RegistryUnusable(RuntimeError):  # noqa: N818 - what Redis is
    """Redis answers, but must not be used as it is set up. The message says what to change."""


async def check_redis(client: Redis | RedisCluster) -> list[str]:
    """Return warnings about how Redis is set up, each primary of a cluster; out of reach is one of them.

    Raises:
        RegistryUnusable: it evicts keys, refuses our credentials, or is a node of a cluster and not taken for one.
    """
    try:
        if isinstance(client, RedisCluster):
            await client.initialize()
            found = [await _warnings(client, node) for node in client.get_primaries()]
            return list(dict.fromkeys(warning for warnings in found for warning in warnings))
        if await _is_of_a_cluster(client):
            raise RegistryUnusable(
                "this Redis is a node of a cluster. Set AMENDS_COMPENSATOR__REDIS_CLUSTER=true, or give the registry "
                "a Redis of its own (AMENDS_COMPENSATOR__REDIS_URL)."
            )
        return await _warnings(client)
    except AuthenticationError as error:
        raise RegistryUnusable(
            f"Redis refuses the registry's credentials: {error}. Change AMENDS_COMPENSATOR__REDIS_URL."
        ) from error
    except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
        return [f"the registry's Redis does not answer; going on without, the read back decides: {error}"]


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
