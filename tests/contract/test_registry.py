"""One suite for every registry. A fake that is not under it is not used."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from amends.compensators.redis_check import setting_of
from amends.compensators.redis_registry import RedisRegistry, RegistryUnusable, connect
from amends.compensators.registry import (
    NO_FENCE,
    Busy,
    ClaimAnswer,
    ClaimRequest,
    Closing,
    Done,
    Ended,
    Go,
    MemoryRegistry,
    Registry,
    State,
)
from amends.schemas.facts import UndoStatus

LEASE_MS = 60_000


@dataclass
class Bench:
    """A registry, and the ways in which the world can hurt it."""

    registry: Registry
    flush: Callable[[], Awaitable[None]]
    client: Redis | None = None
    prefix: str = ""
    passed_ms: list[int] = field(default_factory=lambda: [0])

    async def claim(self, key: str, attempt: int, owner: str, lease_ms: int = LEASE_MS) -> ClaimAnswer:
        (answer,) = await self.registry.claim((ClaimRequest(key, attempt, owner, lease_ms),))
        return answer

    async def go(self, key: str, attempt: int, owner: str, lease_ms: int = LEASE_MS) -> int:
        answer = await self.claim(key, attempt, owner, lease_ms)
        assert isinstance(answer, Go)
        return answer.fence

    async def settle(self, key: str, attempt: int, fence: int, state: State) -> bool:
        closing = closing_of(attempt) if state is State.DONE else None
        return await self.registry.settle(key, attempt, fence, state, closing)


def closing_of(attempt: int) -> Closing:
    return Closing(attempt, UndoStatus.UNDONE, f"owner-{attempt}", True, "refund re_1 ✓")


@pytest.fixture(
    params=[
        "memory",
        pytest.param("redis_url", marks=pytest.mark.redis),
        "embedded_redis_url",
    ]
)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "memory":
        passed_ms = [0]
        memory = MemoryRegistry(lambda: passed_ms[0])

        async def flush() -> None:
            memory.flush()

        yield Bench(memory, flush, passed_ms=passed_ms)
        return
    client = connect(request.getfixturevalue(request.param))
    prefix = f"test-{uuid.uuid4().hex[:8]}"

    async def flush_all() -> None:
        await client.flushall()
        await cast("Awaitable[object]", client.script_flush())

    yield Bench(RedisRegistry(client, prefix=prefix), flush_all, client, prefix)
    keys = [key async for key in client.scan_iter(f"{prefix}:*")]
    lasting = [key for key in keys if await client.pttl(key) < 0]
    if keys:
        await client.delete(*keys)
    await client.aclose()
    assert lasting == [], "no key without a TTL survives a test"


async def test_the_first_claim_goes_and_another_delivery_is_told_busy(bench: Bench) -> None:
    await bench.go("k", 1, "a")
    assert await bench.claim("k", 1, "b") == Busy()


async def test_a_lost_reply_may_be_asked_for_again(bench: Bench) -> None:
    fence = await bench.go("k", 1, "a")
    assert await bench.claim("k", 1, "a") == Go(fence)


async def test_a_claim_whose_lease_ran_out_is_taken_anew(bench: Bench) -> None:
    first = await bench.go("k", 1, "a", lease_ms=0)
    second = await bench.go("k", 1, "b")
    assert second > first
    assert not await bench.settle("k", 1, first, State.DONE), "the first owner is fenced off"
    assert await bench.settle("k", 1, second, State.DONE)


async def test_a_higher_attempt_goes_because_only_the_fold_grants_one(bench: Bench) -> None:
    first = await bench.go("k", 1, "a")
    second = await bench.go("k", 2, "b")
    assert second > first
    assert await bench.claim("k", 1, "a") == Ended()


@pytest.mark.parametrize("state", [State.FAILED, State.IN_DOUBT])
async def test_an_attempt_that_ended_is_over_and_the_next_goes(bench: Bench, state: State) -> None:
    fence = await bench.go("k", 1, "a")
    assert await bench.settle("k", 1, fence, state)
    assert await bench.claim("k", 1, "a") == Ended()
    assert await bench.claim("k", 0, "a") == Ended()
    await bench.go("k", 2, "b")


@pytest.mark.parametrize("attempt", [0, 1, 2])
async def test_what_is_done_answers_every_attempt_with_the_outcome(bench: Bench, attempt: int) -> None:
    fence = await bench.go("k", 1, "a")
    assert await bench.settle("k", 1, fence, State.DONE)
    assert await bench.claim("k", attempt, "z") == Done(closing_of(1))


async def test_nobody_settles_with_a_fence_or_an_attempt_not_his_own(bench: Bench) -> None:
    fence = await bench.go("k", 1, "a")
    assert not await bench.settle("k", 1, fence - 1, State.DONE)
    assert not await bench.settle("k", 2, fence, State.DONE)
    assert not await bench.settle("other", 1, fence, State.DONE)
    assert not await bench.settle("k", 1, NO_FENCE, State.DONE)
    assert await bench.claim("k", 1, "b") == Busy()


async def test_an_end_is_not_settled_twice(bench: Bench) -> None:
    fence = await bench.go("k", 1, "a")
    assert await bench.settle("k", 1, fence, State.IN_DOUBT)
    assert not await bench.settle("k", 1, fence, State.DONE)
    assert await bench.claim("k", 1, "b") == Ended()


async def test_renewing_moves_the_lease_of_ones_own_claim_only(bench: Bench) -> None:
    fence = await bench.go("k", 1, "a", lease_ms=0)
    assert not await bench.registry.renew("k", 1, fence - 1, LEASE_MS)
    assert await bench.registry.renew("k", 1, fence, LEASE_MS)
    assert await bench.claim("k", 1, "b") == Busy()
    assert not await bench.registry.renew("absent", 1, fence, LEASE_MS)


async def test_a_run_is_claimed_in_order_and_stops_at_the_first_that_does_not_go(bench: Bench) -> None:
    done = await bench.go("k0", 1, "a")
    await bench.settle("k0", 1, done, State.DONE)
    await bench.go("k2", 1, "a")
    keys = ("k0", "k1", "k2", "k3")
    answers = await bench.registry.claim(tuple(ClaimRequest(key, 1, "b", LEASE_MS) for key in keys))
    assert answers[0] == Done(closing_of(1))
    assert isinstance(answers[1], Go)
    assert answers[2:] == (Busy(),)
    await bench.go("k3", 1, "c")


async def test_a_flush_costs_a_claim_and_never_lets_an_old_fence_settle(bench: Bench) -> None:
    old = await bench.go("k", 1, "a")
    await bench.flush()
    assert not await bench.settle("k", 1, old, State.DONE)
    new = await bench.go("k", 1, "b")
    assert new > old
    assert not await bench.settle("k", 1, old, State.DONE)
    assert await bench.claim("k", 1, "c") == Busy()


async def test_of_many_deliveries_at_once_one_goes(bench: Bench) -> None:
    answers = await asyncio.gather(*(bench.claim("k", 1, f"owner-{i}") for i in range(300)))
    assert sum(isinstance(answer, Go) for answer in answers) == 1
    assert sum(isinstance(answer, Busy) for answer in answers) == 299


# --- Redis alone ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[pytest.param("redis_url", marks=pytest.mark.redis), "embedded_redis_url"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Redis]:
    client = connect(request.getfixturevalue(request.param))
    yield client
    await client.aclose()


async def test_a_redis_out_of_reach_lets_every_claim_go_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        away: list[None] = []
        client = connect(f"redis://127.0.0.1:{unheard.getsockname()[1]}")
        registry = RedisRegistry(client, on_away=lambda: away.append(None))
        bench = Bench(registry, lambda: asyncio.sleep(0))
        assert [await bench.claim("k", 1, "a") for _ in range(3)] == [Go(NO_FENCE)] * 3
        assert not await bench.settle("k", 1, NO_FENCE, State.DONE)
        assert not await registry.renew("k", 1, 7, LEASE_MS)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert len(away) == 4
        assert len(await registry.check()) == 1
        await client.aclose()


async def test_a_redis_that_comes_back_is_used_again(client: Redis) -> None:
    now_s = [0.0]
    registry = RedisRegistry(client, prefix=f"test-{uuid.uuid4().hex[:8]}", ttl_ms=10_000, now_s=lambda: now_s[0])
    bench = Bench(registry, lambda: asyncio.sleep(0))
    registry._went_away(OSError("gone"))
    assert await bench.go("k", 1, "a") == NO_FENCE
    now_s[0] = 1.5
    assert await bench.go("k", 1, "b") > 0


@pytest.mark.parametrize(
    "entry",
    [
        {"state": "DONE", "attempt": "1"},
        {"state": "DONE", "attempt": "1", "closing": "{}"},
        {"state": "DONE", "attempt": "1", "closing": '{"attempt": 1, "status": "OF_A_LATER_VERSION"}'},
        {"state": "CLAIMED", "attempt": "1", "owner": "me", "fence": "?"},
        {"state": "CLAIMED", "attempt": "1", "owner": "you", "fence": "1"},
        {"state": "CLAIMED", "attempt": "?"},
        "of another type",
    ],
)
async def test_an_entry_that_nobody_can_read_shuts_no_undo_out(client: Redis, entry: str | dict[str, str]) -> None:
    prefix = f"test-{uuid.uuid4().hex[:8]}"
    bench = Bench(RedisRegistry(client, prefix=prefix), lambda: asyncio.sleep(0))
    name = f"{prefix}:undo:{{k}}"
    if isinstance(entry, str):
        await client.set(name, entry)
    else:
        await client.hset(name, mapping=cast("Any", entry))
    assert await bench.claim("k", 1, "me") == Go(NO_FENCE)
    await client.delete(name)


async def test_a_redis_that_evicts_is_refused_with_what_to_change(client: Redis) -> None:
    registry = RedisRegistry(client)
    await registry.check()
    await client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(RegistryUnusable, match="maxmemory-policy noeviction"):
            await registry.check()
    finally:
        await client.config_set("maxmemory-policy", "noeviction")


async def test_a_redis_that_keeps_nothing_is_a_warning(client: Redis) -> None:
    names = ("save", "appendonly")
    before = {name: await setting_of(client, name) or "" for name in names}
    await client.config_set("save", "")
    await client.config_set("appendonly", "no")
    try:
        warnings = await RedisRegistry(client).check()
        assert any("keeps nothing over a restart" in warning for warning in warnings)
    finally:
        for name in names:
            await client.config_set(name, before[name])


async def test_settings_that_an_acl_hides_are_a_warning_not_an_error(client: Redis) -> None:
    await cast("Any", client).execute_command("ACL", "SETUSER", "narrow", "on", ">word", "~*", "+@all", "-config")
    arguments = client.connection_pool.connection_kwargs
    try:
        narrow = connect(f"redis://narrow:word@{arguments['host']}:{arguments['port']}")
        warnings = await RedisRegistry(narrow).check()
        await narrow.aclose()
        assert any("does not let us read" in warning for warning in warnings)
        stranger = connect(f"redis://narrow:wrong@{arguments['host']}:{arguments['port']}")
        with pytest.raises(RegistryUnusable, match="credentials"):
            await RedisRegistry(stranger).check()
        await stranger.aclose()
    finally:
        await cast("Any", client).execute_command("ACL", "DELUSER", "narrow")
