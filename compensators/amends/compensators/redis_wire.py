"""One connection to a Redis, kept from one exchange to the next.

What redis-py does for each pipeline (a connection out of the pool and back, a task and a timer for what it writes, a
timer for each answer) costs more than Redis does. Here several commands go out in one piece, one timer runs for all of
them, and the connection stays with whoever asks most. How to connect is left to redis-py: TLS, a socket, a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as TooLate

Command = tuple[str | int, ...]

_packed = cast("Callable[[Command], bytes]", hiredis.pack_command)  # whose own types say: a tuple of one

_TRIES = 2
"""A connection that was idle may have been closed by the server, which shows only when it is used."""


class RedisWire:
    """Used by one task at a time. Close it when done; the client stays open."""

    def __init__(self, client: Redis) -> None:
        self._pool: Any = client.connection_pool
        self._connection: Any = None
        self._within_s: float | None = None

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and return their answers in order, Redis's refusals among them as ResponseError.

        Made again once where the connection breaks or no answer comes in time: what is sent may then have run before.

        Raises:
            RedisError, OSError, TimeoutError: Redis is out of reach.
        """
        packed = b"".join([_packed(command) for command in commands])
        for left in reversed(range(_TRIES)):
            try:
                return await self._exchange(packed, len(commands))
            except (Disconnected, TooLate, OSError, TimeoutError):
                if not left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    async def _exchange(self, packed: bytes, count: int) -> list[Any]:
        connection = self._connection or await self._connected()
        try:
            async with asyncio.timeout(self._within_s):
                await connection.send_packed_command([packed], check_health=False)
                return [await _answer(connection) for _ in range(count)]
        except BaseException:  # answers that come later are nobody's
            await self.close()
            raise

    async def _connected(self) -> Any:
        connection: Any = await self._pool.get_connection()
        # One timer for a whole exchange takes the place of the client's for each piece.
        self._within_s, connection.socket_timeout = connection.socket_timeout, None
        self._connection = connection
        return connection

    async def close(self) -> None:
        """Give the connection back, disconnected. Twice is harmless."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.socket_timeout = self._within_s
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as refused:
        return refused
