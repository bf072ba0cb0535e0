"""Who runs next: commands of one workflow and lane one after another, others at once, within a bound.

The fold repeats a command until it has STARTED, so in a lane that is behind the same one waits many times over. Of
commands about the same attempts only the last is run: it was computed from the longest ledger.

Of one tool so many run at once that others always find room: a slow one holds up nobody but those that wait for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable

from amends.compensators.clock import lease_clock_ms
from amends.compensators.lane import Delivery
from amends.schemas.commands import ProbeCommand, ResendCommand, UndoCommand

Line = tuple[str, bytes | None]


def subject_of(delivery: Delivery) -> object:
    """Return what a command is about; equal ones are the same command, repeated. Unreadable ones equal none."""
    match delivery.command:
        case UndoCommand(entries=entries):
            return tuple((entry.step_id, entry.generation, entry.attempt) for entry in entries)
        case ProbeCommand(step_id=step_id, number=number):
            return ("probe", step_id, number)
        case ResendCommand(step_id=step_id, number=number):
            return ("resend", step_id, number)
        case _:
            return delivery


def tool_of(delivery: Delivery) -> str:
    """Return the tool whose handler a command begins with; "" of one that nobody can read."""
    match delivery.command:
        case UndoCommand(entries=entries):
            return entries[0].tool_name if entries else ""
        case ProbeCommand(tool_name=name) | ResendCommand(tool_name=name):
            return name
        case _:
            return ""


class Dispatcher:
    """Runs `carry_out` for each delivery. To be used from one loop; `waiting` and the ages may be read from any thread.

    A delivery whose partition has gone before it began is dropped: its next owner gets it. `superseded` is told of one
    that a later delivery repeats.
    """

    def __init__(
        self,
        carry_out: Callable[[Delivery], Awaitable[None]],
        superseded: Callable[[Delivery], None],
        *,
        concurrency_max: int,
        of_tool_max: int | None = None,
    ) -> None:
        self._carry_out = carry_out
        self._superseded = superseded
        self._concurrency_max = concurrency_max
        self._of_tool_max = of_tool_max or concurrency_max
        self._lines: dict[Line, deque[Delivery]] = {}
        self._ready: deque[Line] = deque()
        self._held: dict[str, deque[Line]] = {}
        """Of each tool that has all it may have, the lines that wait for it."""
        self._of_tool: Counter[str] = Counter()
        self._running: dict[asyncio.Task[None], Delivery] = {}
        self._draining = False
        self.waiting = 0
        self.last_end_ms = lease_clock_ms()

    def put(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            line = (delivery.lane, delivery.record.key)
            queue = self._lines.get(line)
            if queue is None:
                queue = self._lines[line] = deque()
                self._ready.append(line)
            else:
                self._drop_repeated(queue, subject_of(delivery))
            queue.append(delivery)
            self.waiting += 1
        self._begin()

    def _drop_repeated(self, queue: deque[Delivery], subject: object) -> None:
        for earlier in [waiting for waiting in queue if subject_of(waiting) == subject]:
            queue.remove(earlier)
            self.waiting -= 1
            self._superseded(earlier)

    def _begin(self) -> None:
        while self._ready and len(self._running) < self._concurrency_max and not self._draining:
            line = self._ready.popleft()
            tool = tool_of(self._lines[line][0])
            if self._of_tool[tool] >= self._of_tool_max:
                self._held.setdefault(tool, deque()).append(line)
                continue
            delivery = self._lines[line].popleft()
            self.waiting -= 1
            if not delivery.tenure.held:
                self._next(line)
                self._release(tool)
                continue
            self._of_tool[tool] += 1
            task = asyncio.create_task(self._run(delivery))
            self._running[task] = delivery
            task.add_done_callback(lambda ended, line=line: self._ended(ended, line))  # type: ignore[misc]

    async def _run(self, delivery: Delivery) -> None:
        await self._carry_out(delivery)

    def _ended(self, task: asyncio.Task[None], line: Line) -> None:
        tool = tool_of(self._running.pop(task))
        self._of_tool[tool] -= 1
        if not self._of_tool[tool]:
            del self._of_tool[tool]
        self._release(tool)
        self.last_end_ms = lease_clock_ms()
        self._next(line)
        self._begin()
        if not task.cancelled():
            task.result()

    def _release(self, tool: str) -> None:
        """Let the line go on that has waited longest for a tool."""
        held = self._held.get(tool)
        if held:
            self._ready.appendleft(held.popleft())
        if not held:
            self._held.pop(tool, None)

    def _next(self, line: Line) -> None:
        if self._lines[line]:
            self._ready.append(line)
        else:
            del self._lines[line]

    @property
    def open(self) -> int:
        """Commands taken and not ended."""
        return self.waiting + len(self._running)

    def runs_on(self, partition: int) -> bool:
        """Whether a command of this partition is being carried out."""
        return any(delivery.record.partition == partition for delivery in self._running.values())

    def oldest_age_ms(self) -> int:
        """How long ago the oldest command being carried out was taken; 0 if there is none."""
        taken = [delivery.taken_at_ms for delivery in list(self._running.values())]
        return lease_clock_ms() - min(taken) if taken else 0

    async def drain(self, deadline_ms: int) -> int:
        """Begin nothing more and wait for what runs; cancel what is left after `deadline_ms` and return how many."""
        self._draining = True
        if self._running:
            await asyncio.wait(set(self._running), timeout=deadline_ms / 1000)
        left = list(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1)
        return len(left)
