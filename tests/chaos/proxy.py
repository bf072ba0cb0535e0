"""The network between the parts and their servers: TCP proxies that pass on, refuse or stall, for all or for some.

Stalled: connections stay open and nothing passes; when the stall ends, what was under way arrives late. Refused: what
is open is reset, and so is whoever calls. All of it happens on one event loop in a thread of its own (`Loop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from enum import StrEnum
from typing import Any, TypeVar, cast

Answer = TypeVar("Answer")
START_DEADLINE_S = 10.0


class Mode(StrEnum):
    """What a link does with a connection."""

    OPEN = "open"
    REFUSED = "refused"
    STALLED = "stalled"


class Loop:
    """An event loop in a thread. `run` waits for a coroutine there, from any other thread."""

    def __init__(self) -> None:
        self.loop = _fastest()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._serve, name="network", daemon=True)
        self._thread.start()

    def serve(self, opened: Coroutine[Any, Any, asyncio.Server]) -> asyncio.Server:
        """Open a server there; it is closed with the loop."""
        server = self.run(opened)
        self._servers.append(server)
        return server

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(START_DEADLINE_S)

    def close(self) -> None:
        """End what still runs there, and the thread."""
        self.run(_end_all(self._servers))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(START_DEADLINE_S)

    def _serve(self) -> None:
        self.loop.run_forever()
        self.loop.close()


class Link:
    """A proxy on `port` of 127.0.0.1 before `upstream_port`. Its methods may be called from any thread.

    `mode` holds for all connections. Those of callers whose ports `isolated` returns have `isolated_mode`.
    """

    def __init__(self, name: str, port: int, upstream_port: int, loop: Loop) -> None:
        self.name = name
        self.port = port
        self.upstream_port = upstream_port
        self.mode = Mode.OPEN
        self.upstream_gone = False  # nobody listens: as with a server that is down, calls are refused, not reset
        self.isolated: Callable[[], set[int]] | None = None
        self.isolated_mode = Mode.OPEN
        self.pipes: set[Pipe] = set()
        self._loop = loop
        self._server: asyncio.Server | None = None
        loop.run(self._apply())

    def treat_all(self, mode: Mode) -> None:
        """Do this with all connections, from now on."""
        self.mode = mode
        self._loop.run(self._apply())

    def upstream_is(self, *, gone: bool) -> None:
        """Say whether a server is there to pass on to."""
        self.upstream_gone = gone
        self._loop.run(self._apply())

    def isolate(self, isolated: Callable[[], set[int]] | None, mode: Mode = Mode.OPEN) -> None:
        """Do this with the connections of some: `isolated` returns their ports as of now. None: with nobody."""
        self.isolated, self.isolated_mode = isolated, mode
        self._loop.run(self._apply())

    def close(self) -> None:
        """Reset what is open, and serve nobody any more."""
        self.treat_all(Mode.REFUSED)

    def cut(self) -> None:
        """Reset what is open; whoever calls again is served."""
        self._loop.run(self._cut())

    def mode_for(self, port: int) -> Mode:
        """Return what is done with a connection that begins now."""
        return self.isolated_mode if port in self._isolated_ports() else self.mode

    def _isolated_ports(self) -> set[int]:
        return set() if self.isolated is None or self.mode is not Mode.OPEN else self.isolated()

    async def _apply(self) -> None:
        served = self.mode is not Mode.REFUSED and not self.upstream_gone
        if served and self._server is None:
            running = asyncio.get_running_loop()
            self._server = await running.create_server(lambda: Pipe(self), "127.0.0.1", self.port)
        elif not served and self._server is not None:
            self._server.close()
            self._server = None
        ports = self._isolated_ports()
        for pipe in list(self.pipes):
            pipe.follow(self.isolated_mode if pipe.port in ports else self.mode)

    async def _cut(self) -> None:
        for pipe in list(self.pipes):
            pipe.abort()


class Pipe(asyncio.Protocol):
    """The caller's end of one connection; holds the server's end."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.port = 0
        self.near: asyncio.Transport | None = None
        self.far: asyncio.Transport | None = None
        self.early = bytearray()  # what came before the server's end was there
        self.stalled = False
        self.full: set[asyncio.Transport] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.near = cast("asyncio.Transport", transport)  # uvloop's are of no such class
        self.port = transport.get_extra_info("peername")[1]
        self.link.pipes.add(self)
        mode = self.link.mode_for(self.port)
        if mode is Mode.REFUSED:
            self.abort()
            return
        self.stalled = mode is Mode.STALLED
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        running = asyncio.get_running_loop()
        try:
            transport, _ = await running.create_connection(lambda: _Far(self), "127.0.0.1", self.link.upstream_port)
        except OSError:
            self.abort()
            return
        self.far = transport
        if self.near is None or self.near.is_closing():
            transport.abort()
            return
        if self.early:
            transport.write(bytes(self.early))
            self.early.clear()
        self._flow()

    def follow(self, mode: Mode) -> None:
        if mode is Mode.REFUSED:
            self.abort()
            return
        self.stalled = mode is Mode.STALLED
        self._flow()

    def abort(self) -> None:
        for transport in (self.near, self.far):
            if transport is not None:
                transport.abort()
        self.link.pipes.discard(self)

    def data_received(self, data: bytes) -> None:
        if self.far is None:
            self.early += data
        else:
            self.far.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort()

    def pause_writing(self) -> None:
        assert self.near is not None
        self.backs_up(self.near)

    def resume_writing(self) -> None:
        assert self.near is not None
        self.drains(self.near)

    def backs_up(self, transport: asyncio.Transport) -> None:
        self.full.add(transport)
        self._flow()

    def drains(self, transport: asyncio.Transport) -> None:
        self.full.discard(transport)
        self._flow()

    def _flow(self) -> None:
        """Read from each end what the other can take."""
        if self.near is None or self.far is None:
            return
        for source, sink in ((self.near, self.far), (self.far, self.near)):
            if source.is_closing():
                continue
            wanted = not self.stalled and sink not in self.full
            if wanted and not source.is_reading():
                source.resume_reading()
            elif not wanted and source.is_reading():
                source.pause_reading()


class _Far(asyncio.Protocol):
    """The server's end."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.pipe.stalled:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self.pipe.near is not None:
            self.pipe.near.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.pipe.abort()

    def pause_writing(self) -> None:
        self.pipe.backs_up(self.transport)

    def resume_writing(self) -> None:
        self.pipe.drains(self.transport)


@contextlib.contextmanager
def network() -> Iterator[Loop]:
    """Have a loop for links and servers for the length of a block."""
    loop = Loop()
    try:
        yield loop
    finally:
        loop.close()


def _fastest() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made


async def _end_all(servers: list[asyncio.Server]) -> None:
    for server in servers:
        server.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
