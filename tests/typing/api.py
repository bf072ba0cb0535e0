"""Types pass a decorator through. Checked by mypy and pyright, both strict; never run.

An `# type: ignore` here is a claim too: if the line were allowed, the unused ignore would be an error.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from amends.tools import (
    KEY,
    Absent,
    DeclaredTool,
    Present,
    Step,
    StillThere,
    Undone,
    Unknown,
    compensable,
    irreversible,
    options,
    read_only,
    reversible,
    secret,
    unclassified,
)


@compensable("payments.charge", refused_by=(ValueError, "stripe.CardError"), lease="30s")
def charge(customer: str, amount_cents: int, *, idempotency_key: str = KEY) -> dict[str, int]:
    return {customer: amount_cents}


@charge.undo(arguments={"payment_intent": "output.id"}, idempotency="key", window="90d", residue="two lines")
def refund(payment_intent: str, *, idempotency_key: str = KEY) -> None: ...


@charge.probe(settles_in="30s")
def find_charge(step: Step) -> Present | Absent | Unknown:
    return Present(output=step.input)


@charge.verify
def refund_state(payment_intent: str) -> Undone | StillThere | Unknown:
    return Undone(evidence=payment_intent)


assert_type(charge("cus_1", 500), dict[str, int])
assert_type(charge(customer="cus_1", amount_cents=500), dict[str, int])
assert_type(charge.options(timeout="10s", call_id="line-1")("cus_1", 500), dict[str, int])
assert_type(options(charge, repeatable=True)("cus_1", 500), dict[str, int])
assert_type(charge.options(tool_call_id="call_1", approval_within="1h")("cus_1", 500), dict[str, int])
assert_type(options(charge, tool_call_id="call_1")("cus_1", 500), dict[str, int])
irreversible("bank.wire", approval="24h", duplicates="refuse", fence="strict")
irreversible("bank.wire", approval=True)
irreversible("bank.wire", duplicates="sometimes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert_type(charge.__name__, str)
assert_type(refund("pi_1"), None)
assert_type(find_charge(Step("w", "s", "t", "", "k", {})), Present | Absent | Unknown)
as_a_function: Callable[[str, int], dict[str, int]] = charge


@reversible("crm.move")
def move(customer: str, city: str) -> bool:
    return bool(customer)


@move.capture(writes="input.city")
def city_of(customer: str) -> str | None:
    return customer or None


@move.restore(arguments={"customer": "input.customer", "city": "captured"}, lane="crm")
def put_back(customer: str, city: str | None = None) -> None: ...


assert_type(move("c1", "Bonn"), bool)
assert_type(city_of("c1"), str | None)
assert_type(put_back("c1"), None)
move.capture(writess="input.city")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]

charge("cus_1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
charge("cus_1", "500")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
charge.options(timout="10s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
charge.undo(windw="90d")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
charge.undo(idempotency="always")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
compensable("a", leese="1s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@irreversible("mail.send")
async def send(to: str) -> bool:
    return bool(to)


@send.probe
async def was_sent(step: Step) -> Unknown:
    return Unknown(evidence=step.key)


async def asynchronous() -> None:
    assert_type(await send("x"), bool)
    assert_type(await send.options(call_id="1")("x"), bool)
    not_awaited: Coroutine[Any, Any, bool] = send("x")
    await not_awaited


@send.probe  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
def wrong_answer(step: Step) -> bool:
    return True


class Payments:
    @reversible("payments.hold")
    @secret("pin")
    def hold(self, amount: int, pin: str) -> str:
        return pin * amount

    @read_only("payments.look")
    async def look(self, number: str) -> int:
        return len(number)


assert_type(Payments().hold(1, "2"), str)
assert_type(Payments.hold(Payments(), 1, pin="2"), str)
assert_type(options(Payments().hold, call_id="a")(1, "2"), str)
Payments().hold("1")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]


@Payments.hold.undo(arguments={"hold": "output"})
def release(hold: str) -> None: ...


def identity(x: int) -> int:
    return x


declared = unclassified("a")(identity)
as_a_tool: DeclaredTool[..., int] = declared
assert_type(declared(x=1), int)
