"""The second column: what the domains' own tools can undo, called by somebody who knows all that was there before.

For each write the tool that comes nearest to its inverse is called with the old values, newest write first; where the
domain has none, nothing is. It is a generous reading: these values are a before-image too, read in time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proof.domains import Case
from proof.stores import Store

Undo = tuple[str, dict[str, Any]]
"""A tool of the domain, and the arguments to call it with."""


def equal_with_inverses_alone(case: Case) -> bool:
    """Make the case's writes on a database and undo them by the domain's own tools; tell whether it is as it was."""
    store, undos = Store(case.domain), list[Undo]()
    for call in case.calls:
        if not call.writes:
            continue
        known = INVERSES.get(call.tool, _none)(store, call.arguments)
        try:
            output = store.call(call.tool, call.arguments)
        except ValueError:
            continue
        if call.tool == "book_reservation":
            known = ("cancel_reservation", {"reservation_id": output.reservation_id})
        if known is not None:
            undos.append(known)
    for tool, arguments in reversed(undos):
        try:
            store.call(tool, arguments)
        except ValueError:
            continue  # the domain refuses: an order whose items were modified is never modified again
    return not store.differs()


def _record(store: Store, table: str, key: str) -> Any:
    return store.tables[table].get(key)


def _none(store: Store, given: Mapping[str, Any]) -> Undo | None:
    return None


def _order_address(store: Store, given: Mapping[str, Any]) -> Undo | None:
    order = _record(store, "orders", given["order_id"])
    return order and ("modify_pending_order_address", {"order_id": order.order_id, **order.address.model_dump()})


def _user_address(store: Store, given: Mapping[str, Any]) -> Undo | None:
    user = _record(store, "users", given["user_id"])
    return user and ("modify_user_address", {"user_id": user.user_id, **user.address.model_dump()})


def _items(store: Store, given: Mapping[str, Any]) -> Undo | None:
    back = {**given, "item_ids": given["new_item_ids"], "new_item_ids": given["item_ids"]}
    return ("modify_pending_order_items", back)


def _payment(store: Store, given: Mapping[str, Any]) -> Undo | None:
    order = _record(store, "orders", given["order_id"])
    before = order and order.payment_history[0].payment_method_id
    return order and ("modify_pending_order_payment", {**given, "payment_method_id": before})


def _baggages(store: Store, given: Mapping[str, Any]) -> Undo | None:
    booked = _record(store, "reservations", given["reservation_id"])
    old = {"total_baggages": booked.total_baggages, "nonfree_baggages": booked.nonfree_baggages} if booked else {}
    return booked and ("update_reservation_baggages", {**given, **old})


def _flights(store: Store, given: Mapping[str, Any]) -> Undo | None:
    booked = _record(store, "reservations", given["reservation_id"])
    if booked is None:
        return None
    flights = [{"flight_number": flight.flight_number, "date": flight.date} for flight in booked.flights]
    return ("update_reservation_flights", {**given, "cabin": booked.cabin, "flights": flights})


def _passengers(store: Store, given: Mapping[str, Any]) -> Undo | None:
    booked = _record(store, "reservations", given["reservation_id"])
    old = [passenger.model_dump() for passenger in booked.passengers] if booked else []
    return booked and ("update_reservation_passengers", {**given, "passengers": old})


INVERSES: Mapping[str, Callable[[Store, Mapping[str, Any]], Undo | None]] = {
    "modify_pending_order_address": _order_address,
    "modify_user_address": _user_address,
    "modify_pending_order_items": _items,
    "modify_pending_order_payment": _payment,
    "update_reservation_baggages": _baggages,
    "update_reservation_flights": _flights,
    "update_reservation_passengers": _passengers,
}
"""The tool that comes nearest to an inverse. A booking's is to cancel it; a cancellation, a return, an exchange and a
certificate have none."""
