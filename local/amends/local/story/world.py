"""The judge of the story: what stands in the outside world, read from the services themselves and never from amends.

Counted are effects, from each service's history: how often something was done, how often each of it was undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from amends.local.story.remote import call

Kind = Literal["charge", "reservation", "label", "order", "mail"]
Wanted = Literal["standing", "undone", "undone or never done"]

MADE: Mapping[str, Kind] = {
    "stock reserved": "reservation",
    "label bought": "label",
    "order booked": "order",
    "mail sent": "mail",
}
UNMADE: Mapping[str, Kind] = {"stock released": "reservation", "label voided": "label", "order cancelled": "order"}
STRIPE_TOKEN = "sk_test_amends"  # noqa: S105 - any token of this form opens the local Stripe


@dataclass(frozen=True, slots=True)
class Thing:
    """One effect in the outside world. `undone` counts how often it was undone: more than once is a wrong of ours."""

    kind: Kind
    id: str
    order: str
    undone: int
    detail: str = ""

    @property
    def standing(self) -> bool:
        return self.undone == 0

    def __str__(self) -> str:
        state = {0: "stands", 1: "undone"}.get(self.undone, f"UNDONE {self.undone} TIMES")
        return f"{self.kind} {self.id} of {self.order}{self.detail and f' ({self.detail})'}: {state}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the services are: base URLs."""

    payments: str
    warehouse: str
    shipping: str


def read_world(addresses: Addresses) -> list[Thing]:
    """Return everything that was ever done, in the order of kinds and of doing. Raises remote.Unavailable."""
    histories = [call("GET", f"{base}/history") for base in (addresses.warehouse, addresses.shipping)]
    return [*_charges(addresses.payments), *_things([entry for history in histories for entry in history])]


def judge(things: Iterable[Thing], expected: Mapping[str, Mapping[Kind, Wanted]]) -> list[str]:
    """Return what is wrong, in words; empty if the world is as expected.

    `expected`: for each order what must have become of each kind. Kinds not named must not be there. Wrong are: a
    thing left that should be undone, one undone twice or against the wish, one done twice, one missing, and a thing of
    an order nobody expects.
    """
    problems: list[str] = []
    found: dict[tuple[str, Kind], list[Thing]] = {}
    for thing in things:
        found.setdefault((thing.order, thing.kind), []).append(thing)
    for (order, kind), several in found.items():
        wanted = expected.get(order, {}).get(kind)
        if len(several) > 1:
            problems.append(f"done twice: {len(several)} × {kind} for {order}")
        problems += [problem for thing in several if (problem := _wrong(thing, wanted)) is not None]
    for order, kinds in expected.items():
        missing = [
            kind for kind, wanted in kinds.items() if wanted != "undone or never done" and (order, kind) not in found
        ]
        problems += [f"missing: {kind} for {order} was never done" for kind in missing]
    return problems


def _wrong(thing: Thing, wanted: Wanted | None) -> str | None:
    if wanted is None:
        return f"unexpected: {thing}"
    if thing.undone > 1:
        return f"undone twice: {thing}"
    if wanted == "standing" and not thing.standing:
        return f"undone, and should stand: {thing}"
    if wanted != "standing" and thing.standing:
        return f"left: {thing}"
    return None


def _charges(base: str) -> list[Thing]:
    """Charges and their refunds, as the payment service lists them."""
    refunded: dict[str, int] = {}
    for refund in _stripe_list(f"{base}/v1/refunds"):
        intent = str(refund["payment_intent"])
        refunded[intent] = refunded.get(intent, 0) + int(refund["amount"])
    charges = []
    for intent in reversed(_stripe_list(f"{base}/v1/payment_intents")):
        if intent["status"] != "succeeded":
            continue
        identity, amount, back = str(intent["id"]), int(intent["amount"]), refunded.get(str(intent["id"]), 0)
        times = -(-back // amount)
        detail = f"{amount / 100:.2f} charged, {back / 100:.2f} given back"
        charges.append(Thing("charge", identity, str(intent["metadata"].get("order", "?")), times, detail))
    return charges


def _stripe_list(url: str) -> list[dict[str, Any]]:
    """Follow a list of the payment service to its end."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = call("GET", f"{url}?limit=100{after}", token=STRIPE_TOKEN)
        found += page["data"]
        if not page["has_more"] or not page["data"]:
            return found
        after = f"&starting_after={quote(str(page['data'][-1]['id']))}"


def _things(history: list[dict[str, Any]]) -> list[Thing]:
    undone: dict[str, int] = {}
    for entry in history:
        if entry["effect"] in UNMADE:
            undone[entry["id"]] = undone.get(entry["id"], 0) + 1
    made = [entry for entry in history if entry["effect"] in MADE]
    return [Thing(MADE[one["effect"]], one["id"], one["order_id"], undone.get(one["id"], 0)) for one in made]
