"""The tools of the order-fulfilment agent, and how each is undone. The compensators import this same module.

Four remotes of four kinds, so that each way of undoing is seen:

- payments (localstripe, through the official library) ignores idempotency keys: a second charge or refund is a second
  effect. So the key goes into the metadata, where the probe finds it, and `verify` looks at the refunds before anybody
  refunds again.
- the warehouse takes keys, forward and backward.
- the carrier takes no key for a label and one for its void; a label is found by its reference.
- the order ledger takes a key, and cancelling an order is naturally idempotent.

A mail can't be called back. Leases and waits are short, because a demo is watched; yours will be longer.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

import stripe

from amends.local.story.remote import NotFound, Refused, call
from amends.local.story.world import STRIPE_TOKEN
from amends.tools import KEY, Absent, Present, Step, StillThere, Undone, Unknown, compensable, irreversible

LANES = ("payments", "warehouse", "shipping", "ledger")


def _url(variable: str) -> str:
    address = os.environ.get(variable)
    if not address:
        raise RuntimeError(
            f"{variable} is not set: the story's tools run inside `amends demo`, which says where its services are"
        )
    return address


def _stripe() -> stripe.StripeClient:
    return stripe.StripeClient(STRIPE_TOKEN, base_addresses={"api": _url("STORY_PAYMENTS_URL")}, max_network_retries=0)


# --- payments ---------------------------------------------------------------------------------------------------------


@compensable("payments.charge", refused_by=(stripe.CardError,), idempotency="neither", lease="4s")
def charge(order: str, payment_method: str, amount_cents: int, *, idempotency_key: str = KEY) -> dict[str, Any]:
    intent = _stripe().v1.payment_intents.create(
        {
            "amount": amount_cents,
            "currency": "eur",
            "payment_method": payment_method,
            "confirm": True,
            "metadata": {"order": order, "amends_key": idempotency_key},
        }
    )
    return {"id": intent.id, "amount": intent.amount}


@charge.undo(
    arguments={"payment_intent": "output.id"},
    idempotency="neither",
    lease="4s",
    settles_in="500ms",
    residue="two lines on the statement",
)
def refund(payment_intent: str) -> None:
    _stripe().v1.refunds.create({"payment_intent": payment_intent})


@charge.probe(settles_in="500ms")
def find_charge(step: Step) -> Present | Absent | Unknown:
    for intent in _stripe().v1.payment_intents.list({"limit": 100}).auto_paging_iter():
        if _key_of(intent) == step.key:
            return Present(output={"id": intent.id, "amount": intent.amount}, evidence=f"payment intent {intent.id}")
    return Absent(evidence="no payment intent carries this step's key")


def _key_of(intent: stripe.PaymentIntent) -> str:
    """The key that `charge` put into the metadata of a payment intent; empty if there is none."""
    metadata = intent.metadata
    return "" if not metadata or "amends_key" not in metadata else str(metadata["amends_key"])


@charge.verify
def look_for_refund(payment_intent: str) -> Undone | StillThere | Unknown:
    refunds = _stripe().v1.refunds.list({"payment_intent": payment_intent}).data
    if any(found.status == "succeeded" for found in refunds):
        return Undone(evidence=f"refund {refunds[0].id}")
    return StillThere(evidence="no refund of this payment intent") if not refunds else Unknown()


# --- warehouse --------------------------------------------------------------------------------------------------------


@compensable("warehouse.reserve", refused_by=(Refused,), idempotency="key", lease="4s", settles_in="500ms")
def reserve(order: str, sku: str, quantity: int, *, idempotency_key: str = KEY) -> dict[str, Any]:
    body = {"order": order, "sku": sku, "quantity": quantity}
    made: dict[str, Any] = call("POST", f"{_url('STORY_WAREHOUSE_URL')}/reservations", body, key=idempotency_key)
    return made


@reserve.undo(arguments={"reservation": "output.id"}, idempotency="key", lease="4s", settles_in="500ms")
def release(reservation: str, *, idempotency_key: str = KEY) -> None:
    call("POST", f"{_url('STORY_WAREHOUSE_URL')}/reservations/{reservation}/release", {}, key=idempotency_key)


# --- shipping ---------------------------------------------------------------------------------------------------------


@compensable("shipping.buy_label", refused_by=(Refused,), idempotency="neither", lease="4s")
def buy_label(order: str, address: str, *, idempotency_key: str = KEY) -> dict[str, Any]:
    body = {"order": order, "address": address, "reference": idempotency_key}
    made: dict[str, Any] = call("POST", f"{_url('STORY_SHIPPING_URL')}/labels", body)
    return made


@buy_label.undo(
    arguments={"label": "output.id"},
    idempotency="key",
    lease="4s",
    settles_in="500ms",
    window="30d",
    attempts=3,
    backoff="500ms",
)
def void_label(label: str, *, idempotency_key: str = KEY) -> None:
    call("POST", f"{_url('STORY_SHIPPING_URL')}/labels/{label}/void", {}, key=idempotency_key)


@buy_label.probe(settles_in="500ms")
def find_label(step: Step) -> Present | Absent:
    found = call("GET", f"{_url('STORY_SHIPPING_URL')}/labels?reference={quote(step.key)}")
    if not found:
        return Absent(evidence="the carrier has no label with this reference")
    return Present(output={"id": found[0]["id"]}, evidence=f"label {found[0]['id']}")


# --- the order ledger -------------------------------------------------------------------------------------------------


@compensable("ledger.write_order", refused_by=(Refused,), idempotency="key", lease="4s", settles_in="500ms")
def write_order(order: str, *, idempotency_key: str = KEY) -> dict[str, Any]:
    made: dict[str, Any] = call("POST", f"{_url('STORY_WAREHOUSE_URL')}/orders", {"order": order}, key=idempotency_key)
    return made


@write_order.undo(arguments={"entry": "output.id"}, idempotency="natural", lease="4s", settles_in="500ms")
def cancel_order(entry: str) -> None:
    call("DELETE", f"{_url('STORY_WAREHOUSE_URL')}/orders/{entry}")


@write_order.verify
def look_at_order(entry: str) -> Undone | StillThere:
    try:
        state = call("GET", f"{_url('STORY_WAREHOUSE_URL')}/orders/{entry}")["state"]
    except NotFound:
        return Undone(evidence="no such order")
    return Undone(evidence="the order is cancelled") if state == "cancelled" else StillThere(evidence=f"it is {state}")


# --- mail -------------------------------------------------------------------------------------------------------------


@irreversible("mail.send_confirmation", lease="4s")
def send_confirmation(order: str, recipient: str, *, idempotency_key: str = KEY) -> dict[str, Any]:
    body = {"order": order, "recipient": recipient}
    sent: dict[str, Any] = call("POST", f"{_url('STORY_SHIPPING_URL')}/mails", body, key=idempotency_key)
    return sent
