"""What waiting commands ask for that the loaded modules don't have is told with the reason, each step once."""

from __future__ import annotations

import pytest

from amends.compensators.inventory import HandlerName, listed, missing_handlers, plain_handlers
from amends.schemas.commands import Command, ProbeCommand, ResendCommand, UndoCommand, UndoEntry
from amends.schemas.contract import Idempotency
from amends.tools import KEY, HandlerRegistry, Role, Step, Unknown, compensable


@compensable("pay.charge")
def charge(amount: int, *, key: str = KEY) -> dict[str, str]:
    return {"id": key}


@charge.undo(arguments={"charge": "output.id"})
async def refund(charge: str) -> None: ...


@charge.probe
def look(step: Step) -> Unknown:
    return Unknown()


@pytest.fixture
def tools() -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.add(charge)
    return registry


def undo(
    workflow_id: str, *handlers: str, verify: str | None = None, attempt: int = 0, compares: bool = False
) -> UndoCommand:
    entries = tuple(
        UndoEntry(
            f"s-{handler}",
            handler,
            handler,
            0,
            attempt,
            "key",
            b"{}",
            1_000,
            100,
            Idempotency.KEY,
            verify=verify,
            compares=compares,
        )
        for handler in handlers
    )
    return UndoCommand(workflow_id, 0, 1, "pay", 5, entries)


def probe(handler: str) -> ProbeCommand:
    return ProbeCommand("w", 0, 1, "pay", 5, "s", handler, handler, 0, ("a1",), 1_000, "key", 3)


def resend(tool_name: str) -> ResendCommand:
    return ResendCommand("w", 0, 1, "pay", 5, "s", tool_name, 0, ("a1",), "key", 1_000, 100, Idempotency.KEY, 3)


def test_what_the_modules_have_is_not_missing(tools: HandlerRegistry) -> None:
    assert missing_handlers([undo("w", "pay.charge"), probe("pay.charge"), resend("pay.charge")], tools) == []


@pytest.mark.parametrize(
    ("command", "name", "why"),
    [
        (undo("w", "pay.charge", "pay.old"), "the undo of pay.old", "No loaded module declares the tool"),
        (undo("w", "pay.charge", verify="pay.charge"), "the verify of pay.charge", "is loaded .*, without verify"),
        (undo("w", "pay.charge", compares=True), "the capture of pay.charge", "is loaded .*, without capture"),
        (probe("pay.old"), "the probe of pay.old", "No loaded module declares the tool"),
        (resend("pay.old"), "the call of pay.old", "No loaded module declares the tool"),
    ],
)
def test_each_kind_of_handler_is_missed_by_name_and_with_the_reason(
    tools: HandlerRegistry, command: Command, name: str, why: str
) -> None:
    (missing,) = missing_handlers([command], tools)
    assert str(missing.name) == name
    assert missing.lane == "pay"
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(missing.why)


def test_a_step_counts_once_however_often_its_command_was_repeated(tools: HandlerRegistry) -> None:
    commands = [undo(f"order-{n}", "pay.old", attempt=attempt) for attempt in range(3) for n in range(5)]
    (missing,) = missing_handlers(commands, tools)
    assert "5 steps of order-0, order-1, order-2 and 2 more" in str(missing)


def test_a_list_that_is_too_long_to_read_is_cut_and_says_so(tools: HandlerRegistry) -> None:
    words = listed(missing_handlers([undo("w", f"pay.old{n}") for n in range(25)], tools))
    assert len(words.splitlines()) == 21
    assert words.endswith("- and 5 handlers more")


def test_a_pool_is_needed_for_what_is_no_coroutine(tools: HandlerRegistry) -> None:
    found = plain_handlers(tools)
    assert set(found) == {HandlerName("pay.charge", Role.PROBE), HandlerName("pay.charge", Role.FORWARD)}
    assert all("test_inventory.py:" in place for place in found.values())
