"""Tools whose equal calls are told apart, each in its way, and tools that a person approves. The world is the judge."""

from __future__ import annotations

from amends.tools import KEY, compensable, irreversible, reversible

WORLD: list[str] = []
"""Effects, in the order they happened."""
KEYS: set[str] = set()
LOST: set[str] = set()
"""Customers whose answers are lost on the way back, once each."""


@compensable("shop.charge")
def charge(customer: str, amount: object, currency: str = "eur", *, idempotency_key: str = KEY) -> dict[str, str]:
    """Takes a key: a repeat is answered with what was."""
    if idempotency_key not in KEYS:
        KEYS.add(idempotency_key)
        WORLD.append(f"charge {customer}")
    _lose(customer)
    return {"id": f"ch_{customer}"}


@charge.undo(arguments={"id": "output.id"}, idempotency="key")
def refund(id: str, *, idempotency_key: str = KEY) -> None: ...


@compensable("shop.order")
def order(item: str, customer: str = "cus_1") -> dict[str, str]:
    """Takes no key."""
    WORLD.append(f"order {item}")
    _lose(customer)
    return {"id": f"order-{item}-{len(WORLD)}"}


@order.undo(arguments={"id": "output.id"}, idempotency="key")
def cancel(id: str, *, idempotency_key: str = KEY) -> None: ...


@compensable("shop.ship", duplicates="refuse")
def ship(order_id: str) -> str:
    WORLD.append(f"ship {order_id}")
    _lose(order_id)
    return f"parcel-{order_id}"


@ship.undo(arguments={"parcel": "output"}, idempotency="key")
def recall(parcel: str, *, idempotency_key: str = KEY) -> None: ...


@compensable("shop.coffee", repeatable=True)
def coffee(size: str) -> str:
    WORLD.append(f"coffee {size}")
    return size


@coffee.undo(arguments={"size": "output"}, idempotency="key")
def pour_away(size: str, *, idempotency_key: str = KEY) -> None: ...


@reversible("shop.address", idempotency="natural")
def address(customer: str, street: str) -> str:
    WORLD.append(f"address {street}")
    return street


@address.undo(arguments={"customer": "input.customer"}, idempotency="natural", commutes=True)
def no_address(customer: str) -> None: ...


@irreversible("bank.wire", approval="1h")
def wire(to: str, cents: int) -> str:
    WORLD.append(f"wire {to} {cents}")
    return f"wired {to}"


@irreversible("bank.post", approval=True)
async def post(to: str) -> str:
    WORLD.append(f"post {to}")
    return f"posted {to}"


@irreversible("mail.send")
def send(to: str) -> str:
    WORLD.append(f"send {to}")
    return to


def _lose(customer: str) -> None:
    if customer in LOST:
        LOST.discard(customer)
        raise ConnectionResetError(customer)
