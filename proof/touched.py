"""Which records a write may change, told from its arguments alone: what a capture has to read.

One rule for all tools, by what an argument is called; nothing is known of what a tool does with it.

| argument | records |
|---|---|
| `order_id` | the order, and the user who made it (gift cards are refunded and charged) |
| `reservation_id` | the reservation, and its user |
| `user_id` | the user |
| `flights` | each flight on its date: seats and prices |
| `user_id` with `flights` | also the reservations that a new booking is given the ids of |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
"""The ids that the airline gives to new reservations, in this order, by its own `_get_new_reservation_id`."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One record; a flight is one for each of its dates."""

    table: str
    key: str
    date: str = ""

    def __str__(self) -> str:
        return "/".join((self.table, self.key, self.date) if self.date else (self.table, self.key))

    @classmethod
    def parse(cls, text: str) -> Place:
        return cls(*text.split("/"))


def touched(tables: Mapping[str, Mapping[str, Any]], arguments: Mapping[str, Any]) -> list[Place]:
    """Return the places, sorted."""
    return sorted(set(_touched(tables, arguments)))


def _touched(tables: Mapping[str, Mapping[str, Any]], arguments: Mapping[str, Any]) -> Iterator[Place]:
    for argument, table in (("order_id", "orders"), ("reservation_id", "reservations")):
        if argument in arguments:
            key = arguments[argument]
            yield Place(table, key)
            record = tables[table].get(key)
            if record is not None:
                yield Place("users", record.user_id)
    if "user_id" in arguments:
        yield Place("users", arguments["user_id"])
        if "flights" in arguments:
            yield from (Place("reservations", key) for key in NEW_RESERVATIONS)
    for flight in arguments.get("flights", ()):
        yield Place("flights", flight["flight_number"], flight["date"])
