"""Tools of a shop and its world, for tests of agents. The world is the judge of what happened."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

from amends.tools import KEY, Secret, compensable, current_step, reversible

T = TypeVar("T")

WORLD: list[str] = []
"""Effects, in the order they happened."""


class Declined(Exception):  # noqa: N818
    """The card is declined: no charge was made."""


@compensable("shop.charge", refused_by=(Declined,))
def charge(customer: str, cents: int, *, idempotency_key: str = KEY) -> dict[str, str]:
    if cents < 0:
        raise Declined(customer)
    if customer == "lost":
        WORLD.append(f"charge {customer} {cents}")
        raise ConnectionResetError
    WORLD.append(f"charge {customer} {cents}")
    return {"id": f"ch_{len(WORLD)}", "key": idempotency_key}


@charge.undo(arguments={"id": "output.id"}, idempotency="key")
def refund(id: str, *, idempotency_key: str = KEY) -> None:
    WORLD.append(f"refund {id}")


@reversible("shop.reserve")
async def reserve(item: str, seconds: float = 0) -> str:
    WORLD.append(f"reserve {item}")
    await asyncio.sleep(seconds)
    return f"r-{item}"


@reserve.undo(arguments={"item": "input.item"}, idempotency="natural", commutes=True)
def release(item: str) -> None:
    WORLD.append(f"release {item}")


@compensable("shop.order")
def order(customer: str) -> str:
    WORLD.append(f"order {customer} for {current_step().tool_name}")
    charge(customer, 1)
    return "done"


@order.undo(arguments={"customer": "input.customer"}, idempotency="key")
def cancel_order(customer: str, *, idempotency_key: str = KEY) -> None: ...


@compensable("shop.login")
def login(token: Annotated[str, Secret]) -> str:
    raise ValueError(f"{token} is not a token")


@compensable("shop.login-twice")
def login_twice(token: Annotated[str, Secret]) -> str:
    return login(token)


GATE = threading.Event()


@compensable("shop.slow")
def slow(seconds: float = 30) -> str:
    GATE.wait(seconds)
    WORLD.append("slow")
    return "late"


@slow.undo(arguments={}, idempotency="key")
def unslow(*, idempotency_key: str = KEY) -> None: ...


def wait_for(look: Callable[[], T], within_s: float = 10) -> T:
    """Return what `look` returns once it is true, at the latest after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)
    return found
