"""A pool of processes for handlers that are plain functions: one that overruns its lease is killed and replaced.

A thread can't be stopped, so a handler that hangs in one would hold its place, and could still send, for ever. Each
process runs one handler at a time and is kept on a leash (`child.py`). A handler that finds no free process in half
its lease is not begun, which spends no attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from amends.compensators.child import LENGTH
from amends.compensators.clock import lease_clock_ms
from amends.compensators.inventory import HandlerName
from amends.compensators.invocation import Invocation
from amends.compensators.verdicts import Answer, not_begun, uncertain
from amends.schemas.facts import Failure

log = logging.getLogger(__name__)

START_MS = 60_000
START_AGAIN_MS = 1_000
FRAME_BYTES_MAX = 64 * 1024 * 1024


class ModulesBroken(RuntimeError):  # noqa: N818 - what they are
    """A process of the pool can't load the modules it was told, or has not all the handlers; the message says why."""


class _Child:
    """One process of the pool."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        leash: int,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._leash: int | None = leash

    @classmethod
    async def start(cls, modules: Sequence[str], needed: Mapping[HandlerName, str]) -> _Child:
        ours, theirs = socket.socketpair()
        leash_read, leash_write = os.pipe()
        try:
            command = (sys.executable, "-m", "amends.compensators.child", str(theirs.fileno()), str(leash_read))
            process = await asyncio.create_subprocess_exec(
                *command,
                *modules,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), leash_read),
                start_new_session=True,
                # What was importable here must be so there, however it came to be.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
        except BaseException:
            ours.close()
            os.close(leash_write)
            raise
        finally:
            theirs.close()
            os.close(leash_read)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=FRAME_BYTES_MAX)
        child = cls(process, reader, writer, leash_write)
        try:
            async with asyncio.timeout(START_MS / 1000):
                said = await child._receive()
        except (TimeoutError, EOFError, OSError) as error:
            await child.kill()
            raise ModulesBroken(f"a process for handlers did not come up with {', '.join(modules)}: {error}") from error
        problem = _problem(said, modules, needed)
        if problem is not None:
            await child.kill()
            raise ModulesBroken(problem)
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, asked: Invocation) -> Answer:
        frame = pickle.dumps(asked)
        self._writer.write(LENGTH.pack(len(frame)) + frame)
        await self._writer.drain()
        answer: Answer = await self._receive()  # type: ignore[assignment]
        return answer

    async def _receive(self) -> object:
        head = await self._reader.readexactly(LENGTH.size)
        frame = await self._reader.readexactly(LENGTH.unpack(head)[0])
        return pickle.loads(frame)  # noqa: S301 - from a child of ours, over a socket of its own

    async def kill(self) -> int:
        """End the process and what it started; return its exit code."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = await self._process.wait()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        if self._leash is not None:
            os.close(self._leash)
            self._leash = None
        return code


def _problem(said: object, modules: Sequence[str], needed: Mapping[HandlerName, str]) -> str | None:
    """Return what is wrong with what a process said when it came up, or None."""
    told = ", ".join(modules)
    if not isinstance(said, frozenset):
        return f"a process for handlers can't load {told}: {said}"
    missing = sorted(needed.keys() - said)
    if not missing:
        return None
    lines = "\n".join(f"- {name}, at {needed[name]}" for name in missing)
    return (
        f"handlers are there that a process for handlers does not find when it imports {told}:\n{lines}\n"
        "It imports the modules anew, so declare tool and handlers at the top level of a module that can be imported "
        "by its name: not in `__main__`, and not under an `if` that one process passes and another does not."
    )


class ProcessPool:
    """`size` processes that have loaded `modules`. To be used from one event loop; close it when done.

    Args:
        needed: the handlers that each of them must have, and where they stand.
    """

    def __init__(self, modules: Sequence[str], size: int, needed: Mapping[HandlerName, str] | None = None) -> None:
        assert size > 0
        self._modules = tuple(modules)
        self._needed = dict(needed or {})
        self._size = size
        self._free: asyncio.Queue[_Child] = asyncio.Queue()
        self._children: set[_Child] = set()
        self._replacing: set[asyncio.Task[None]] = set()
        self.killed = 0

    async def start(self) -> None:
        """Start all processes. Raises ModulesBroken."""
        started = await asyncio.gather(*(self._add() for _ in range(self._size)), return_exceptions=True)
        failed = next((result for result in started if isinstance(result, BaseException)), None)
        if failed is not None:
            await self.close()
            raise failed

    async def run(self, asked: Invocation) -> Answer:
        """Run a handler in a free process. Whatever it does, there is an answer soon after `end_by_ms`."""
        child = await self._free_child(asked.begin_by_ms)
        if child is None:
            return not_begun(asked.role, f"all {self._size} processes of the pool were busy for half the lease")
        try:
            async with asyncio.timeout(max(0, asked.end_by_ms - lease_clock_ms()) / 1000):
                answer = await child.ask(asked)
        except TimeoutError:
            await self._replace(child)
            return uncertain(asked.role, Failure("amends.LeaseOver", "it was killed when its lease ended"))
        except (EOFError, OSError):
            code = await self._replace(child)
            return uncertain(asked.role, Failure("amends.ProcessEnded", f"its process ended with code {code}"))
        except BaseException:
            await self._replace(child)
            raise
        self._free.put_nowait(child)
        return answer

    async def _free_child(self, begin_by_ms: int) -> _Child | None:
        try:
            async with asyncio.timeout(max(0, begin_by_ms - lease_clock_ms()) / 1000):
                return await self._free.get()
        except TimeoutError:
            return None

    async def _add(self) -> None:
        child = await _Child.start(self._modules, self._needed)
        self._children.add(child)
        self._free.put_nowait(child)

    async def _replace(self, child: _Child) -> int:
        self.killed += 1
        self._children.discard(child)
        code = await child.kill()
        task = asyncio.create_task(self._add_again(), name="amends-pool-replace")
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)
        return code

    async def _add_again(self) -> None:
        while True:
            try:
                return await self._add()
            except (ModulesBroken, OSError) as error:
                log.error("a process of the pool could not be replaced, trying again: %s", error)  # noqa: TRY400
                await asyncio.sleep(START_AGAIN_MS / 1000)

    async def close(self) -> None:
        """End all processes, whatever they do."""
        for task in tuple(self._replacing):
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        await asyncio.gather(*(child.kill() for child in self._children))
        self._children.clear()
