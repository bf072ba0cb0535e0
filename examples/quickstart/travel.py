"""Two tools over a small database file, how each is undone, and an agent that uses them.

`python travel.py` books a hotel and a flight; `python travel.py fail` fails after both; `python travel.py kill` ends
itself by SIGKILL after both; `python travel.py list` prints the database. The compensator imports this same module.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import uuid
from contextlib import closing

from amends.producers import workflow
from amends.tools import KEY, Absent, Present, Step, StillThere, Undone, Unknown, compensable

DATABASE = os.environ.get("BOOKINGS", "bookings.sqlite")


def bookings() -> sqlite3.Connection:
    connection = sqlite3.connect(DATABASE, isolation_level=None)
    connection.execute("CREATE TABLE IF NOT EXISTS bookings (key TEXT PRIMARY KEY, what TEXT, guest TEXT, state TEXT)")
    return connection


def book(what: str, guest: str, key: str) -> dict[str, str]:
    with closing(bookings()) as database:
        database.execute("INSERT OR IGNORE INTO bookings VALUES (?, ?, ?, 'booked')", (key, what, guest))
    return {"id": key}


def cancel(booking: str) -> None:
    with closing(bookings()) as database:
        found = database.execute("UPDATE bookings SET state = 'cancelled' WHERE key = ?", (booking,)).rowcount
    if not found:  # another database file than the agent's? Who does not know a booking must not say it is cancelled.
        raise LookupError(f"no booking {booking} in {os.path.abspath(DATABASE)}")


def state(booking: str) -> str | None:
    with closing(bookings()) as database:
        row = database.execute("SELECT state FROM bookings WHERE key = ?", (booking,)).fetchone()
    return None if row is None else str(row[0])


def ask_whether_cancelled(booking: str) -> Undone | StillThere | Unknown:
    match state(booking):
        case "cancelled":
            return Undone()
        case None:
            return Unknown(f"no booking {booking} in {os.path.abspath(DATABASE)}")
        case _:
            return StillThere()


@compensable("bookings.book_hotel", idempotency="key", lease="5s")
def book_hotel(hotel: str, guest: str, *, idempotency_key: str = KEY) -> dict[str, str]:
    return book(hotel, guest, idempotency_key)


@book_hotel.undo(arguments={"booking": "output.id"}, idempotency="natural")
def cancel_hotel(booking: str) -> None:
    cancel(booking)


@book_hotel.verify
def is_hotel_cancelled(booking: str) -> Undone | StillThere | Unknown:
    return ask_whether_cancelled(booking)


@book_hotel.probe(settles_in="1s")
def was_hotel_booked(step: Step) -> Present | Absent:
    return Present(output={"id": step.key}) if state(step.key) else Absent()


@compensable("bookings.book_flight", idempotency="key", lease="5s")
def book_flight(flight: str, guest: str, *, idempotency_key: str = KEY) -> dict[str, str]:
    return book(flight, guest, idempotency_key)


@book_flight.undo(arguments={"booking": "output.id"}, idempotency="natural")
def cancel_flight(booking: str) -> None:
    cancel(booking)


@book_flight.verify
def is_flight_cancelled(booking: str) -> Undone | StillThere | Unknown:
    return ask_whether_cancelled(booking)


@book_flight.probe(settles_in="1s")
def was_flight_booked(step: Step) -> Present | Absent:
    return Present(output={"id": step.key}) if state(step.key) else Absent()


def plan_trip(ending: str) -> None:
    with workflow(f"trip-{uuid.uuid4().hex[:8]}", agent="travel", lease="5s") as trip:
        print(f"{trip.id} begins")
        book_hotel("Harbour Inn", "Ada")
        book_flight("AM 42", "Ada")
        if ending == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if ending == "fail":
            raise RuntimeError("the guest changed her mind")
    print(f"{trip.id}: {type(trip.outcome).__name__}")


def print_bookings() -> None:
    with closing(bookings()) as database:
        for row in database.execute("SELECT what, guest, state FROM bookings"):
            print(*row, sep="  ")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["list"]:
            print_bookings()
        case [] | ["fail"] | ["kill"]:
            plan_trip("".join(sys.argv[1:]))
        case _:
            sys.exit("python travel.py [fail|kill|list]")
