"""What a producer needs of a ledger. Kept by `kafka_ledger.KafkaLedger` and, in tests, by `testing.MemoryLedger`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from amends.producers.effects import Write
from amends.schemas.commands import WorkflowEcho
from amends.schemas.facts import UNKNOWN_OFFSET, Fact, StepEvent, WorkflowEvent

OnWritten = Callable[[Write], None]
Listener = Callable[[WorkflowEcho], None]
History = tuple[tuple[int, Fact], ...]


def of_instance(history: History, workflow_offset: int) -> History:
    """Return what belongs to one instance of the id. A fact of an older one, written late or twice, may stand behind
    the start of a newer."""
    return tuple((o, fact) for o, fact in history if fact.workflow_offset in (UNKNOWN_OFFSET, workflow_offset))


class Ledger(Protocol):
    """Writes are in the order of the calls, for one workflow. All methods may be called from any thread."""

    def write(self, fact: StepEvent | WorkflowEvent) -> Write:
        """Append `fact` and wait for the acknowledgement, for a bounded time. Raises nothing of its own."""
        ...

    async def write_async(self, fact: StepEvent | WorkflowEvent) -> Write:
        """As `write`, for a task."""
        ...

    def send(self, fact: StepEvent | WorkflowEvent, on_written: OnWritten) -> None:
        """Append `fact`; `on_written` is called once, from any thread, and must not block. Never blocks or raises."""
        ...

    def follow(self, workflow_id: str, listener: Listener) -> Callable[[], None]:
        """Have `listener` called with each echo of the workflow that is written from now on, possibly with older
        ones too. May block for one round trip. Returns what ends it."""
        ...

    async def follow_async(self, workflow_id: str, listener: Listener) -> Callable[[], None]:
        """As `follow`, for a task."""
        ...

    def history(self, workflow_id: str, from_offset: int, to_offset: int) -> History:
        """Return the readable facts of the workflow on [from_offset, to_offset] with their offsets, in order. Blocks.

        Raises:
            LedgerUnavailable: it can't be read.
        """
        ...

    def close(self) -> None:
        """Let what was sent be written, for a bounded time, and free what is held."""
        ...
