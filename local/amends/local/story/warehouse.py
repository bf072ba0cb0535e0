"""The warehouse: stock is reserved and released, and orders are booked and cancelled. A process of its own.

Reserving, releasing and booking take an Idempotency-Key. A release under a *new* key of something already released
puts the goods on the shelf a second time: this warehouse believes its callers, and its history shows it. Cancelling an
order is naturally idempotent.
"""

from __future__ import annotations

import uuid

from amends.local.story.http_service import Reply, Request, Routes, run

STOCK_AT_START = 1_000

SCHEMA = """
CREATE TABLE IF NOT EXISTS reservations (
  id TEXT PRIMARY KEY, order_id TEXT NOT NULL, sku TEXT NOT NULL, quantity INTEGER NOT NULL, key TEXT NOT NULL,
  state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, order_id TEXT NOT NULL, key TEXT NOT NULL, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL);
"""


def reserve(request: Request) -> Reply:
    order, sku = str(request.body["order"]), str(request.body["sku"])
    quantity = int(request.body["quantity"])
    if quantity <= 0:
        return Reply(422, {"error": "the quantity must be positive"})
    _move(request, sku, -quantity)
    identity = f"res_{uuid.uuid4().hex[:12]}"
    request.database.execute(
        "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, 'reserved')", (identity, order, sku, quantity, request.key)
    )
    request.record("stock reserved", identity, order, sku=sku, quantity=quantity)
    return Reply(201, {"id": identity, "order": order, "sku": sku, "quantity": quantity, "state": "reserved"})


def release(request: Request) -> Reply:
    found = request.database.execute("SELECT * FROM reservations WHERE id = ?", request.parts).fetchone()
    if found is None:
        return Reply(404, {"error": f"no reservation {request.parts[0]}"})
    _move(request, found["sku"], found["quantity"])
    request.database.execute("UPDATE reservations SET state = 'released' WHERE id = ?", request.parts)
    request.record("stock released", found["id"], found["order_id"], sku=found["sku"], quantity=found["quantity"])
    return Reply(200, {"id": found["id"], "state": "released"})


def list_reservations(request: Request) -> Reply:
    return _list(request, "SELECT * FROM reservations")


def book_order(request: Request) -> Reply:
    order = str(request.body["order"])
    identity = f"ord_{uuid.uuid4().hex[:12]}"
    request.database.execute("INSERT INTO orders VALUES (?, ?, ?, 'open')", (identity, order, request.key))
    request.record("order booked", identity, order)
    return Reply(201, {"id": identity, "order": order, "state": "open"})


def cancel_order(request: Request) -> Reply:
    found = request.database.execute("SELECT * FROM orders WHERE id = ?", request.parts).fetchone()
    if found is None:
        return Reply(404, {"error": f"no order {request.parts[0]}"})
    if found["state"] == "open":
        request.database.execute("UPDATE orders SET state = 'cancelled' WHERE id = ?", request.parts)
        request.record("order cancelled", found["id"], found["order_id"])
    return Reply(200, {"id": found["id"], "state": "cancelled"})


def show_order(request: Request) -> Reply:
    found = request.database.execute("SELECT * FROM orders WHERE id = ?", request.parts).fetchone()
    return Reply(404, {"error": "no such order"}) if found is None else Reply(200, dict(found))


def list_orders(request: Request) -> Reply:
    return _list(request, "SELECT * FROM orders")


def show_stock(request: Request) -> Reply:
    return Reply(200, {row["sku"]: row["quantity"] for row in request.database.execute("SELECT * FROM stock")})


def _move(request: Request, sku: str, by: int) -> None:
    request.database.execute("INSERT OR IGNORE INTO stock VALUES (?, ?)", (sku, STOCK_AT_START))
    request.database.execute("UPDATE stock SET quantity = quantity + ? WHERE sku = ?", (by, sku))


def _list(request: Request, select: str) -> Reply:
    """List rows, those of one Idempotency-Key if `key` is in the query."""
    rows = [dict(row) for row in request.database.execute(select)]
    wanted = request.query.get("key")
    return Reply(200, [row for row in rows if wanted is None or row["key"] == wanted])


ROUTES = Routes(
    SCHEMA,
    {
        "POST /reservations": reserve,
        "GET /reservations": list_reservations,
        "POST /reservations/{}/release": release,
        "POST /orders": book_order,
        "GET /orders": list_orders,
        "GET /orders/{}": show_order,
        "DELETE /orders/{}": cancel_order,
        "GET /stock": show_stock,
    },
    keyed=frozenset({"POST /reservations", "POST /reservations/{}/release", "POST /orders"}),
)

if __name__ == "__main__":
    run("warehouse", ROUTES)
