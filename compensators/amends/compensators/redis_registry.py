"""The registry on Redis or Valkey: one Lua script per verb, run by its digest.

Times are the server's, so that compensators need no common clock. A fence is the server's
time in microseconds, raised where it must be: it goes on rising after a flush, so that nobody settles with a fence
that a stranger holds. Calls that arrive while one round trip is under way leave together in the next one: a client
call by call exhausts redis-py's pool at a hundred in flight (facts/hot-path.md, 3).

On a Redis Cluster what is claimed together has to be in one slot: the keys of a workflow share a hash tag.

Redis out of reach is no error: claims answer `Go(NO_FENCE)` and the read back decides. It is said once in the log, and
counted, and Redis is left alone for a second, so that its time-outs don't become ours.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from amends.compensators.redis_check import RegistryUnusable, check_redis, text_of
from amends.compensators.redis_client import connect, connect_cluster
from amends.compensators.redis_wire import RedisWire
from amends.compensators.registry import (
    NO_FENCE,
    Busy,
    ClaimAnswer,
    ClaimRequest,
    Closing,
    Done,
    Ended,
    Go,
    State,
)
from amends.schemas.facts import UndoStatus

__all__ = ["RedisRegistry", "RegistryUnusable", "connect", "connect_cluster"]

log = logging.getLogger(__name__)

T = TypeVar("T")

TTL_MS = 8 * 86_400_000
"""Longer than a lane keeps a command (seven days): no command can meet a registry that forgot its undo by time."""

LEFT_ALONE_MS = 1_000
TRIED_TTL_MS = 1_000
_BATCH_MAX = 256
_TAG_DIGITS = 16


_CLAIM = """
-- KEYS: entries. ARGV: ttl_ms, then attempt, owner, lease_ms for each key. Stops after the first that doesn't go.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local answers = {}
for i, key in ipairs(KEYS) do
  local attempt, owner, lease_ms = tonumber(ARGV[3 * i - 1]), ARGV[3 * i], tonumber(ARGV[3 * i + 1])
  local entry = redis.call('HMGET', key, 'state', 'attempt', 'owner', 'fence', 'lease_ends_at_us', 'closing')
  local state, held, fence = entry[1], tonumber(entry[2] or '-1'), tonumber(entry[4] or '0')
  local answer
  if state == 'DONE' then
    answer = {'done', entry[6]}
  elseif state and (held > attempt or (held == attempt and state ~= 'CLAIMED')) then
    answer = {'ended'}
  elseif state and held == attempt and entry[3] == owner then
    answer = {'go', entry[4]}
  elseif state and held == attempt and now_us < tonumber(entry[5]) then
    answer = {'busy'}
  else
    local taken = string.format('%.0f', math.max(fence + 1, now_us))
    redis.call('DEL', key)
    redis.call('HSET', key, 'state', 'CLAIMED', 'attempt', attempt, 'owner', owner, 'fence', taken,
      'lease_ends_at_us', string.format('%.0f', now_us + lease_ms * 1000))
    redis.call('PEXPIRE', key, ARGV[1])
    answer = {'go', taken}
  end
  answers[i] = answer
  if answer[1] == 'busy' or answer[1] == 'ended' then break end
end
return answers
"""

_RENEW = """
-- KEYS: entry. ARGV: ttl_ms, attempt, fence, lease_ms.
local entry = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'fence')
if entry[1] ~= 'CLAIMED' or entry[2] ~= ARGV[2] or entry[3] ~= ARGV[3] then return 0 end
local time = redis.call('TIME')
local ends_at_us = time[1] * 1000000 + time[2] + ARGV[4] * 1000
redis.call('HSET', KEYS[1], 'lease_ends_at_us', string.format('%.0f', ends_at_us))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

_SETTLE = """
-- KEYS: entry. ARGV: ttl_ms, attempt, fence, state, closing.
local entry = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'fence')
if entry[1] ~= 'CLAIMED' or entry[2] ~= ARGV[2] or entry[3] ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[4], 'closing', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""


@dataclass(slots=True)
class _Call:
    script: str
    keys: Sequence[str]
    arguments: Sequence[str | int]
    read: Callable[[Any], Any]
    answer: asyncio.Future[Any]


class RedisRegistry:
    """A registry that many compensators share. To be used from one event loop."""

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        prefix: str = "amends",
        ttl_ms: int = TTL_MS,
        on_away: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._wire = None if isinstance(client, RedisCluster) else RedisWire(client)
        self._prefix = prefix
        self._ttl_ms = ttl_ms
        self._on_away = on_away
        self._now_s = now_s
        self._waiting: list[_Call] = []
        self._sender: asyncio.Task[None] | None = None
        self._away = False
        self._left_alone_until_s = 0.0

    async def claim(self, requests: tuple[ClaimRequest, ...]) -> tuple[ClaimAnswer, ...]:
        arguments: list[str | int] = [self._ttl_ms]
        for request in requests:
            arguments += (request.attempt, request.owner, request.lease_ms)
        keys = [self._key(request.key, request.group) for request in requests]
        answers = await self._run(_CLAIM, keys, arguments)
        if answers is None:
            return tuple(Go(NO_FENCE) for _ in requests)
        return tuple(self._claim_answer(answer) for answer in answers)

    async def renew(self, key: str, attempt: int, fence: int, lease_ms: int, group: str = "") -> bool:
        if fence == NO_FENCE:
            return False
        return bool(await self._run(_RENEW, [self._key(key, group)], [self._ttl_ms, attempt, fence, lease_ms]))

    def settle(
        self, key: str, attempt: int, fence: int, state: State, closing: Closing | None, group: str = ""
    ) -> asyncio.Future[bool]:
        assert (state is State.DONE) == (closing is not None)
        assert state is not State.CLAIMED
        if fence == NO_FENCE:
            return self._answered(False)
        arguments: list[str | int] = [self._ttl_ms, attempt, fence, state.value, _closing_text(closing)]
        return self._begin(_SETTLE, [self._key(key, group)], arguments, bool)

    def _key(self, key: str, group: str) -> str:
        if not group:
            return f"{self._prefix}:undo:{{{key}}}"
        # A digest, for a workflow's id may be long, and may hold a brace, which would end the tag.
        tag = sha1(group.encode(), usedforsecurity=False).hexdigest()[:_TAG_DIGITS]
        return f"{self._prefix}:undo:{{{tag}}}:{key}"

    # --- sending ----------------------------------------------------------------------------------------------------

    async def _run(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Return what the script says, or None where Redis is out of reach."""
        return await self._begin(script, keys, arguments, lambda said: said)

    def _begin(
        self, script: str, keys: Sequence[str], arguments: Sequence[str | int], read: Callable[[Any], T]
    ) -> asyncio.Future[T]:
        """Have the script run, and its answer read, None where Redis is out of reach."""
        if self._now_s() < self._left_alone_until_s:
            self._on_away()
            return self._answered(read(None))
        call = _Call(script, keys, arguments, read, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all(), name="amends-registry")
        return call.answer

    def _answered(self, answer: T) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.set_result(answer)
        return future

    async def _send_all(self) -> None:
        while self._waiting:
            calls, self._waiting = self._waiting[:_BATCH_MAX], self._waiting[_BATCH_MAX:]
            try:
                answers = await self._send(calls)
            except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
                self._went_away(error)
                answers = [None for _ in calls]
            except BaseException:
                for call in (*calls, *self._waiting):
                    call.answer.cancel()
                self._waiting.clear()
                raise
            for call, answer in zip(calls, answers, strict=True):
                if not call.answer.done():
                    call.answer.set_result(call.read(answer))

    async def _send(self, calls: Sequence[_Call]) -> list[Any]:
        answers = await self._pipeline(calls)
        if any(isinstance(answer, NoScriptError) for answer in answers):
            # A restarted or flushed server has no scripts. Only those it didn't run are sent again.
            for script in _SCRIPTS:
                await cast("Awaitable[Any]", self._client.script_load(script))
            again = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
            for i, answer in zip(again, await self._pipeline([calls[i] for i in again]), strict=True):
                answers[i] = answer
        failed = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if failed is not None:
            self._went_away(failed)
        elif self._away:
            self._away = False
            log.warning("the registry's Redis is back")
        return [None if isinstance(answer, Exception) else answer for answer in answers]

    async def _pipeline(self, calls: Sequence[_Call]) -> list[Any]:
        commands = [("EVALSHA", _DIGESTS[c.script], len(c.keys), *c.keys, *c.arguments) for c in calls]
        if self._wire is not None:
            return await self._wire.exchange(commands)
        async with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return await pipeline.execute(raise_on_error=False)

    def _went_away(self, error: Exception) -> None:
        self._on_away()
        self._left_alone_until_s = self._now_s() + LEFT_ALONE_MS / 1000
        if not self._away:
            self._away = True
            log.warning("the registry's Redis does not answer; going on without, the read back decides: %s", error)

    def _claim_answer(self, answer: Sequence[Any]) -> ClaimAnswer:
        try:
            return _claim_answer(answer)
        except (ValueError, TypeError, KeyError) as error:
            # A gate that can't be read must not shut an undo out for ever.
            self._on_away()
            log.warning("an entry of the registry can't be read; going on without, the read back decides: %r", error)
            return Go(NO_FENCE)

    async def close(self) -> None:
        """Wait for what is under way. The client stays open; its owner closes it."""
        if self._sender is not None:
            await asyncio.gather(self._sender, return_exceptions=True)
        if self._wire is not None:
            await self._wire.close()

    async def check(self, *, reads_settings: bool = True) -> list[str]:
        """Try every verb once, and look how Redis is set up unless told not to; return warnings.

        Raises RegistryUnusable where it must not be used so, or lets us in no further.
        """
        return await check_redis(self._client, self._try_verbs, reads_settings=reads_settings)

    async def _try_verbs(self) -> None:
        """Run each script on an entry that is gone a second later. Raises what Redis answers."""
        key, owner = self._key(f"start-{uuid.uuid4().hex}", "start"), "start"
        for script in _SCRIPTS:
            await cast("Awaitable[Any]", self._client.script_load(script))
        ((_, fence),) = await self._evaluated(_CLAIM, key, TRIED_TTL_MS, 0, owner, 0)
        await self._evaluated(_RENEW, key, TRIED_TTL_MS, 0, fence, 0)
        await self._evaluated(_SETTLE, key, TRIED_TTL_MS, 0, fence, State.FAILED.value, "")

    async def _evaluated(self, script: str, key: str, *arguments: Any) -> Any:
        return await self._client.evalsha(_DIGESTS[script], 1, key, *arguments)


_SCRIPTS = (_CLAIM, _RENEW, _SETTLE)
# A script's name in Redis is its SHA-1; nothing is protected by it.
_DIGESTS = {script: sha1(script.encode(), usedforsecurity=False).hexdigest() for script in _SCRIPTS}


def _claim_answer(answer: Sequence[Any]) -> ClaimAnswer:
    """Raises ValueError, TypeError, KeyError for an entry that this version didn't write."""
    match text_of(answer[0]):
        case "go":
            return Go(int(answer[1]))
        case "busy":
            return Busy()
        case "ended":
            return Ended()
        case _:
            return Done(_closing(text_of(answer[1])))


def _closing_text(closing: Closing | None) -> str:
    if closing is None:
        return ""
    return json.dumps(
        {
            "attempt": closing.attempt,
            "status": closing.status.value,
            "owner": closing.owner,
            "verified": closing.verified,
            "evidence": closing.evidence,
        }
    )


def _closing(text: str) -> Closing:
    found = json.loads(text)
    return Closing(
        int(found["attempt"]), UndoStatus(found["status"]), found["owner"], found["verified"], found["evidence"]
    )
