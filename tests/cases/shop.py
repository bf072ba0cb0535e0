"""A shop for the cases: every tool says in `WORLD` what it did, and can be broken off before or after its effect.

Undos are done by `folded.FoldedLedger`, at once: what it undid is in `Folded.ledger.undone`, as step ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.core.folded import Folded, FoldedLedger

from amends.producers.effects import Acknowledged
from amends.schemas.facts import Party, StepEvent, WorkflowEvent, WorkflowStatus
from amends.tools import KEY, compensable

WORLD: list[str] = []
"""Effects, in the order they happened."""

AFTER: dict[str, Callable[[], None]] = {}
"""What befalls a call right behind its effect, by item."""

AFTER_ASYNC: dict[str, Callable[[], Awaitable[None]]] = {}


@compensable("shop.buy", repeatable=True)
def buy(item: str, *, idempotency_key: str = KEY) -> str:
    WORLD.append(item)
    if item in AFTER:
        AFTER[item]()
    return f"id-{item}"


@buy.undo(arguments={"item": "input.item"}, idempotency="key")
def give_back(item: str, *, idempotency_key: str = KEY) -> None: ...


@compensable("shop.fetch", repeatable=True)
async def order(item: str, *, idempotency_key: str = KEY) -> str:
    await asyncio.sleep(0)
    WORLD.append(item)
    if item in AFTER_ASYNC:
        await AFTER_ASYNC[item]()
    elif item in AFTER:
        AFTER[item]()
    return f"id-{item}"


@order.undo(arguments={"item": "input.item"}, idempotency="key")
async def cancel(item: str, *, idempotency_key: str = KEY) -> None: ...


class ObservedLedger(FoldedLedger):
    """Calls `before` and `after` around each fact that an agent writes, with its number from 0."""

    before: Callable[[int], None] = staticmethod(lambda number: None)
    after: Callable[[int], None] = staticmethod(lambda number: None)
    count: int = 0

    def _append(self, fact: StepEvent | WorkflowEvent) -> Acknowledged:
        number, self.count = self.count, self.count + 1
        self.before(number)
        written = super()._append(fact)
        self.after(number)
        return written


def cancel_by_a_person(workflow_id: str = "w") -> WorkflowEvent:
    status = WorkflowStatus.ROLLBACK_REQUESTED
    return WorkflowEvent(workflow_id, 0, status, writer=Party.PERSON, by="alice")


def standings(folded: Folded, workflow_id: str = "w") -> list[str]:
    """What the fold knows of each call: the states of its attempts, joined."""
    found = folded.ledger.partition.workflow(workflow_id)
    assert found is not None
    return ["+".join(a.state.value for a in step.attempts) for step in found.steps]


def undone_each_once(folded: Folded, *workflow_ids: str) -> bool:
    """Whether every call of these workflows that had an effect was undone, and none twice."""
    ledger, present = folded.ledger, set[str]()
    for workflow_id in workflow_ids or ("w",):
        found = ledger.partition.workflow(workflow_id)
        assert found is not None
        present |= {s.step_id for s in found.steps if any(a.state.value == "succeeded" for a in s.attempts)}
    return sorted(ledger.undone) == sorted(present)
