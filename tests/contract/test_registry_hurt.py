"""A Redis that is hurt at any point of an undo costs work and never an effect (C26, C27). And a Redis Cluster."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from tests.core.stage import LEASE_MS, Stage, entry, run_of
from tests.processes import free_port_with_a_bus

from amends.compensators.decide import decide
from amends.compensators.effects import Claim, Renew, Report, Settle
from amends.compensators.redis_check import RegistryUnusable
from amends.compensators.redis_registry import RedisRegistry, connect, connect_cluster
from amends.compensators.registry import ClaimRequest, Closing, Go, State
from amends.compensators.settings import CompensatorSettings
from amends.compensators.starting import opened_registry
from amends.local.children import free_port
from amends.local.servers import RedisServer
from amends.schemas.facts import UndoStatus

pytestmark = [pytest.mark.redis]

POINTS = 13
"""Claim, clock, STARTED, read back, for each of two undos clock, handler, outcome; acknowledged, settled, settled."""

Hurt = Callable[[RedisServer, Redis], Awaitable[None]]


async def _flushed(server: RedisServer, client: Redis) -> None:
    await client.flushall()
    await cast("Awaitable[object]", client.script_flush())


async def _out_of_memory(server: RedisServer, client: Redis) -> None:
    await client.config_set("maxmemory", "1")


async def _read_only(server: RedisServer, client: Redis) -> None:
    """What a client meets that still talks to the old primary after a failover."""
    await cast("Awaitable[object]", client.replicaof("127.0.0.1", str(free_port())))


async def _lost_last_second(server: RedisServer, client: Redis) -> None:
    """A failover to a replica that had not heard of the last writes."""
    keys = [key async for key in client.scan_iter("*")]
    if keys:
        await client.delete(*keys)


async def _restarted_empty(server: RedisServer, client: Redis) -> None:
    await _flushed(server, client)
    server.restart()


async def _killed(server: RedisServer, client: Redis) -> None:
    server.kill()


async def _evicted(server: RedisServer, client: Redis) -> None:
    async for key in client.scan_iter("*"):
        await client.delete(key)
        return


HURTS: list[Hurt] = [_flushed, _out_of_memory, _read_only, _lost_last_second, _restarted_empty, _killed, _evicted]


@dataclass
class Played:
    """Decisions on the stage's ledger and remote, with their registry on a real Redis."""

    stage: Stage
    registry: RedisRegistry
    hurt_at: int
    hurt: Callable[[], Awaitable[None]]
    done: list[str] = field(default_factory=list)

    async def play(self, owner: str) -> Report:
        steps = decide(run_of(entry("s1"), entry("s2"), at_once=True), owner, "c")
        answer: Any = None
        count = 0
        try:
            while True:
                effect = steps.send(answer)
                if owner == "first" and count == self.hurt_at:
                    await self.hurt()
                count += 1
                self.stage.effects.append(effect)
                match effect:
                    case Claim(requests=requests):
                        answer = await self.registry.claim(requests)
                    case Renew():
                        lease_ms = effect.lease_ms
                        answer = await self.registry.renew(
                            effect.key, effect.attempt, effect.fence, lease_ms, effect.group
                        )
                    case Settle():
                        answer = await self.registry.settle(
                            effect.key, effect.attempt, effect.fence, effect.state, effect.closing, effect.group
                        )
                    case _:
                        answer = self.stage.do(effect)
        except StopIteration as stop:
            return cast("Report", stop.value)


@pytest.mark.parametrize("hurt", HURTS, ids=lambda hurt: hurt.__name__.strip("_"))
async def test_a_redis_hurt_at_any_point_of_an_undo_costs_work_and_never_an_effect(
    own_redis: RedisServer, hurt: Hurt
) -> None:
    for point in range(POINTS):
        async with contextlib.aclosing(connect(own_redis.url, timeout_ms=500)) as client:
            called = await _undone_while_hurt(own_redis, client, hurt, point)
            assert called == ["s1", "s2"], f"hurt at {point}"
            await _mended(own_redis, client)
            assert [key async for key in client.scan_iter("*") if await client.pttl(key) < 0] == []


async def _undone_while_hurt(server: RedisServer, client: Redis, hurt: Hurt, point: int) -> list[str]:
    """Have a run carried out by three deliveries, of which the first sees the harm done; return what was called."""
    now_s = [0.0]
    registry = RedisRegistry(client, prefix=f"p{point}", now_s=lambda: now_s[0])
    played = Played(Stage(), registry, point, lambda: hurt(server, client))
    for owner in ("first", "second", "third"):  # the command comes again, after its lease
        await played.play(owner)
        now_s[0] += 5
        played.stage.now_ms += 2 * LEASE_MS
    await registry.close()
    return sorted(played.stage.called())


async def _mended(server: RedisServer, client: Redis) -> None:
    with contextlib.suppress(Exception):
        await client.ping()
        await client.config_set("maxmemory", "0")
        await cast("Awaitable[object]", client.replicaof("NO", "ONE"))
        return
    server.restart()


async def test_of_a_connection_that_the_server_closed_while_nobody_used_it_nobody_hears(own_redis: RedisServer) -> None:
    away: list[int] = []
    async with (
        contextlib.aclosing(connect(own_redis.url)) as client,
        contextlib.aclosing(connect(own_redis.url)) as other,
    ):
        registry = RedisRegistry(client, on_away=lambda: away.append(1))
        (first,) = await registry.claim((ClaimRequest("k", 0, "a", LEASE_MS, "w"),))
        await cast("Any", other).client_kill_filter(_type="normal", skipme=True)
        (again,) = await registry.claim((ClaimRequest("k", 0, "a", LEASE_MS, "w"),))
        assert again == first
        assert away == []
        await registry.close()


async def test_no_key_without_a_ttl_is_ever_left_by_any_verb(own_redis: RedisServer) -> None:
    client = connect(own_redis.url)
    registry = RedisRegistry(client, ttl_ms=60_000)
    for number, state in enumerate((None, State.DONE, State.FAILED, State.IN_DOUBT)):
        key = f"k{number}"
        (first,) = await registry.claim((ClaimRequest(key, 0, "a", 0, "w"),))
        (go,) = await registry.claim((ClaimRequest(key, 0, "b", LEASE_MS, "w"),))
        assert isinstance(first, Go)
        assert isinstance(go, Go)
        assert go.fence > first.fence
        await registry.renew(key, 0, go.fence, LEASE_MS, "w")
        if state is not None:
            closing = Closing(0, UndoStatus.UNDONE, "b") if state is State.DONE else None
            assert await registry.settle(key, 0, go.fence, state, closing, "w")
        await registry.claim((ClaimRequest(key, 1, "c", LEASE_MS, "w"),))
    left = [await client.pttl(key) async for key in client.scan_iter("*")]
    assert len(left) == 4
    assert all(0 < ttl_ms <= 60_000 for ttl_ms in left)
    await client.aclose()


# --- how it is set up -----------------------------------------------------------------------------------------------


async def test_who_says_that_his_redis_is_fit_is_not_asked_again(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(own_redis.url)
    await cast("Any", client).execute_command("ACL", "SETUSER", "narrow", "on", ">word", "~*", "+@all", "-config")
    await client.aclose()
    url = own_redis.url.replace("redis://", "redis://narrow:word@")
    given: dict[str, Any] = {"redis_url": url}
    async with opened_registry(CompensatorSettings(**given), lambda: None):
        assert "AMENDS_COMPENSATOR__REDIS_CHECK=trust" in caplog.text
    caplog.clear()
    async with opened_registry(CompensatorSettings(**given, redis_check="trust"), lambda: None) as registry:
        assert caplog.text == ""
        (answer,) = await registry.claim((ClaimRequest("k", 0, "a", LEASE_MS, "w"),))
        assert isinstance(answer, Go)
        assert answer.fence > 0


async def test_a_redis_that_answers_only_its_own_machine_is_refused_with_what_to_change() -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # What redis-server says, word by word, to who comes from elsewhere; this machine never does.
        writer.write(
            b"-DENIED Redis is running in protected mode because protected mode is enabled and no password is "
            b"set for the default user.\r\n"
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuses, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        settings = CompensatorSettings.model_validate({"redis_url": f"redis://127.0.0.1:{port}/0"})
        with pytest.raises(RegistryUnusable, match="protected-mode no"):
            async with opened_registry(settings, lambda: None):
                pass


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-Open\r\n", b"R\0\0\0\x08abcd"])
async def test_what_answers_and_is_no_redis_is_refused_with_what_to_change(greeting: bytes) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        settings = CompensatorSettings.model_validate({"redis_url": f"redis://127.0.0.1:{port}/0"})
        with pytest.raises(RegistryUnusable, match=f":{port} is no Redis .*AMENDS_COMPENSATOR__REDIS_URL"):
            async with opened_registry(settings, lambda: None):
                pass


# --- a cluster ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Three primaries of a Redis Cluster on this machine."""
    binary, console = shutil.which("redis-server"), shutil.which("redis-cli")
    if binary is None or console is None:
        pytest.skip("there is no `redis-server` and `redis-cli` on the PATH")
    ports = [free_port_with_a_bus() for _ in range(3)]
    children = [_node(binary, port, tmp_path_factory.mktemp(f"node{port}")) for port in ports]
    nodes = [f"127.0.0.1:{port}" for port in ports]
    try:
        for node in nodes:
            _until(lambda node=node: _says(console, node, "PING") == "PONG")  # type: ignore[misc]
        subprocess.run(
            [console, "--cluster", "create", *nodes, "--cluster-yes"], check=True, capture_output=True, timeout=60
        )
        for node in nodes:
            _until(lambda node=node: "cluster_state:ok" in _says(console, node, "CLUSTER", "INFO"))  # type: ignore[misc]
        yield f"redis://{nodes[0]}"
    finally:
        for child in children:
            child.kill()
            child.wait()


def _node(binary: str, port: int, folder: Path) -> subprocess.Popen[bytes]:
    options = ("--port", str(port), "--cluster-enabled", "yes", "--save", "", "--appendonly", "yes")
    return subprocess.Popen(
        [binary, *options, "--bind", "127.0.0.1", "--dir", str(folder)], stdout=subprocess.DEVNULL, cwd=folder
    )


def _says(console: str, node: str, *command: str) -> str:
    host, _, port = node.partition(":")
    answer = subprocess.run([console, "-h", host, "-p", port, *command], check=False, capture_output=True, timeout=10)
    return answer.stdout.decode().strip()


def _until(holds: Callable[[], bool], tries: int = 600) -> None:
    for _ in range(tries):
        if holds():
            return
        subprocess.run(["sleep", "0.05"], check=True)
    raise AssertionError("the cluster did not come up")


@pytest.fixture
async def cluster(cluster_url: str) -> AsyncIterator[RedisRegistry]:
    client = connect_cluster(cluster_url)
    registry = RedisRegistry(client, prefix=f"t{uuid.uuid4().hex[:8]}")
    yield registry
    await registry.close()
    await client.aclose()


async def test_runs_of_many_workflows_are_claimed_and_settled_on_a_cluster(cluster: RedisRegistry) -> None:
    async def run(workflow: str) -> None:
        requests = tuple(ClaimRequest(f"{workflow}-{n}", 0, "me", LEASE_MS, workflow) for n in range(5))
        answers = await cluster.claim(requests)
        assert len(answers) == 5
        for request, answer in zip(requests, answers, strict=True):
            assert isinstance(answer, Go)
            assert answer.fence > 0
            assert await cluster.renew(request.key, 0, answer.fence, LEASE_MS, workflow)
            assert await cluster.settle(request.key, 0, answer.fence, State.FAILED, None, workflow)

    await asyncio.gather(*(run(workflow) for workflow in ("a", "b}", "}", "{x}", *map(str, range(40)))))


async def test_a_cluster_that_lost_its_scripts_runs_them_again(cluster: RedisRegistry) -> None:
    await cast("Any", cluster)._client.script_flush()
    (answer,) = await cluster.claim((ClaimRequest("k", 0, "me", LEASE_MS, "w"),))
    assert isinstance(answer, Go)
    assert answer.fence > 0


async def test_each_node_of_a_cluster_is_checked(cluster: RedisRegistry, cluster_url: str) -> None:
    assert await cluster.check() == []
    client = connect(cluster_url)
    with pytest.raises(RegistryUnusable, match="REDIS_CLUSTER=true"):
        await RedisRegistry(client).check()
    await client.aclose()
    last = cast("Any", cluster)._client.get_primaries()[-1]
    await cast("Any", cluster)._client.config_set("maxmemory-policy", "allkeys-lru", target_nodes=last)
    try:
        with pytest.raises(RegistryUnusable, match="noeviction"):
            await cluster.check()
    finally:
        await cast("Any", cluster)._client.config_set("maxmemory-policy", "noeviction", target_nodes=last)


async def test_a_cluster_out_of_reach_lets_every_claim_go() -> None:
    client = connect_cluster(f"redis://127.0.0.1:{free_port()}", timeout_ms=200)
    registry = RedisRegistry(client)
    assert await registry.claim((ClaimRequest("k", 0, "me", LEASE_MS, "w"),)) == (Go(-1),)
    assert len(await registry.check()) == 1
    await registry.close()
    await client.aclose()
