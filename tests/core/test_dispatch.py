"""Order inside a workflow, a bound over all, and a commit that never runs ahead of what is done."""

from __future__ import annotations

import asyncio
from itertools import permutations

from tests.core.stage import entry, probe, resend, run_of

from amends.compensators.dispatch import Dispatcher
from amends.compensators.lane import Delivery, Tenure, UnreadableCommand
from amends.compensators.progress import PartitionProgress
from amends.kafka.records import Record
from amends.schemas.commands import Command


def delivery(
    key: str, offset: int, command: Command | None = None, *, tenure: Tenure | None = None, lane: str = "default"
) -> Delivery:
    record = Record("amends.undo.default", 0, offset, 0, key.encode(), b"")
    readable = command or run_of(entry(f"s{offset}"))
    return Delivery(lane, record, tenure or Tenure(0), 0, readable)


class Stage:
    """Deliveries that go on until they are told to end."""

    def __init__(self, concurrency_max: int = 100, of_tool_max: int | None = None) -> None:
        self.begun: list[tuple[str, int]] = []
        self.dropped: list[int] = []
        self._gates: dict[int, asyncio.Event] = {}
        self.dispatcher = Dispatcher(
            self._run,
            lambda given: self.dropped.append(given.record.offset),
            concurrency_max=concurrency_max,
            of_tool_max=of_tool_max,
        )

    async def _run(self, given: Delivery) -> None:
        key = (given.record.key or b"").decode()
        self.begun.append((key, given.record.offset))
        gate = self._gates[given.record.offset] = asyncio.Event()
        await gate.wait()

    async def put(self, *deliveries: Delivery) -> None:
        self.dispatcher.put(deliveries)
        await self.settle()

    async def end(self, offset: int) -> None:
        self._gates[offset].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_commands_of_one_workflow_follow_one_another_and_others_run_beside_them() -> None:
    stage = Stage()
    await stage.put(delivery("a", 1), delivery("a", 2), delivery("b", 3))
    assert stage.begun == [("a", 1), ("b", 3)]
    await stage.end(1)
    assert stage.begun == [("a", 1), ("b", 3), ("a", 2)]
    assert stage.dispatcher.open == 2
    await stage.end(2)
    await stage.end(3)
    assert stage.dispatcher.open == 0


async def test_no_more_run_at_once_than_the_bound_and_a_busy_workflow_does_not_keep_others_out() -> None:
    stage = Stage(concurrency_max=1)
    await stage.put(delivery("a", 1), delivery("a", 2), delivery("a", 3), delivery("b", 4))
    assert stage.begun == [("a", 1)]
    assert stage.dispatcher.waiting == 3
    await stage.end(1)
    assert stage.begun == [("a", 1), ("b", 4)]
    for offset in (4, 2, 3):
        await stage.end(offset)


async def test_a_slow_tool_holds_up_nobody_but_those_that_wait_for_it() -> None:
    stage = Stage(concurrency_max=4, of_tool_max=2)
    slow, quick = run_of(entry("s", tool_name="slow")), run_of(entry("q", tool_name="quick"))
    await stage.put(*(delivery(key, offset, slow) for offset, key in enumerate("abcd")))
    await stage.put(delivery("e", 4, quick), delivery("c", 5, quick))
    assert stage.begun == [("a", 0), ("b", 1), ("e", 4)]
    await stage.end(0)
    assert stage.begun[3:] == [("c", 2)]
    await stage.end(2)
    assert stage.begun[4:] == [("d", 3), ("c", 5)]  # what follows in a workflow keeps its order
    for offset in (1, 3, 4, 5):
        await stage.end(offset)
    assert stage.dispatcher.open == 0


async def test_lines_that_wait_for_a_tool_go_on_past_those_whose_partition_went() -> None:
    stage = Stage(of_tool_max=1)
    slow, gone = run_of(entry("s", tool_name="slow")), Tenure(0)
    await stage.put(delivery("a", 1, slow), delivery("b", 2, slow, tenure=gone), delivery("c", 3, slow))
    gone.held = False
    await stage.end(1)
    assert stage.begun == [("a", 1), ("c", 3)]
    await stage.end(3)
    assert stage.dispatcher.open == 0


async def test_a_command_that_was_repeated_while_it_waited_runs_once() -> None:
    stage = Stage()
    for command in (run_of(entry("s1"), entry("s2")), probe(), resend()):
        first = len(stage.dropped)
        key = type(command).__name__
        offsets = [10 * len(stage.begun) + i for i in range(1, 6)]
        await stage.put(delivery(key, offsets[0], command))
        await stage.put(*(delivery(key, offset, command) for offset in offsets[1:]))
        assert stage.dropped[first:] == offsets[1:4], "the first runs, of the rest only the last waits"
        await stage.end(offsets[0])
        await stage.end(offsets[4])
        assert [offset for name, offset in stage.begun if name == key] == [offsets[0], offsets[4]]


async def test_another_attempt_and_what_nobody_can_read_are_never_taken_for_a_repetition() -> None:
    stage = Stage()
    first, second = run_of(entry("s1", attempt=1)), run_of(entry("s1", attempt=2))
    unreadable = [
        Delivery("default", Record("t", 0, 5 + i, 0, b"a", b""), Tenure(0), 0, UnreadableCommand("")) for i in (0, 1)
    ]
    await stage.put(delivery("a", 1, first), delivery("a", 3, second), *unreadable)
    assert stage.dropped == []
    for _ in range(4):
        await stage.end(stage.begun[-1][1])
    assert len(stage.begun) == 4


async def test_what_was_not_begun_when_its_partition_went_is_left_to_the_next_owner() -> None:
    stage = Stage()
    tenure = Tenure(0)
    await stage.put(delivery("a", 1, tenure=tenure), delivery("a", 2, tenure=tenure))
    tenure.held = False
    await stage.end(1)
    assert stage.begun == [("a", 1)]
    assert stage.dispatcher.open == 0


async def test_a_drain_begins_nothing_waits_for_what_runs_and_cancels_the_rest() -> None:
    stage = Stage()
    await stage.put(delivery("a", 1), delivery("a", 2), delivery("b", 3))
    draining = asyncio.create_task(stage.dispatcher.drain(200))
    await stage.settle()
    await stage.end(1)
    assert await draining == 1
    assert stage.begun == [("a", 1), ("b", 3)]


def test_only_the_contiguous_prefix_may_be_committed_in_whatever_order_commands_end() -> None:
    offsets = (3, 4, 7, 8)
    for order in permutations(offsets):
        progress = PartitionProgress()
        for offset in offsets:
            progress.take(offset)
        for count, offset in enumerate(order, start=1):
            progress.done(offset)
            done = set(order[:count])
            prefix = [o for i, o in enumerate(offsets) if done.issuperset(offsets[: i + 1])]
            assert progress.position == (prefix[-1] + 1 if prefix else None)
        assert progress.open == 0
