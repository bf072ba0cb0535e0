"""The carrier: labels are made and voided, and customers get mail. A process of its own.

Making a label takes no Idempotency-Key (the same call twice makes two labels, both of which cost), but keeps a
`reference` by which a label can be found. Voiding takes a key; a void under a *new* key of a label already void is
paid out again, and the history shows it. A mail can't be called back.
"""

from __future__ import annotations

import uuid

from amends.local.story.http_service import Reply, Request, Routes, run

SCHEMA = """
CREATE TABLE IF NOT EXISTS labels (
  id TEXT PRIMARY KEY, order_id TEXT NOT NULL, address TEXT NOT NULL, reference TEXT NOT NULL, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS mails (id TEXT PRIMARY KEY, order_id TEXT NOT NULL, recipient TEXT NOT NULL);
"""


def make_label(request: Request) -> Reply:
    order, address = str(request.body["order"]), str(request.body["address"])
    reference = str(request.body.get("reference", ""))
    identity = f"lbl_{uuid.uuid4().hex[:12]}"
    request.database.execute("INSERT INTO labels VALUES (?, ?, ?, ?, 'bought')", (identity, order, address, reference))
    request.record("label bought", identity, order, reference=reference)
    return Reply(201, {"id": identity, "order": order, "tracking": f"TRK{uuid.uuid4().int % 10**10:010d}"})


def void_label(request: Request) -> Reply:
    found = request.database.execute("SELECT * FROM labels WHERE id = ?", request.parts).fetchone()
    if found is None:
        return Reply(404, {"error": f"no label {request.parts[0]}"})
    request.database.execute("UPDATE labels SET state = 'void' WHERE id = ?", request.parts)
    request.record("label voided", found["id"], found["order_id"])
    return Reply(200, {"id": found["id"], "state": "void"})


def show_label(request: Request) -> Reply:
    found = request.database.execute("SELECT * FROM labels WHERE id = ?", request.parts).fetchone()
    return Reply(404, {"error": "no such label"}) if found is None else Reply(200, dict(found))


def list_labels(request: Request) -> Reply:
    rows = [dict(row) for row in request.database.execute("SELECT * FROM labels")]
    wanted = request.query.get("reference")
    return Reply(200, [row for row in rows if wanted is None or row["reference"] == wanted])


def send_mail(request: Request) -> Reply:
    order, recipient = str(request.body["order"]), str(request.body["recipient"])
    identity = f"mail_{uuid.uuid4().hex[:12]}"
    request.database.execute("INSERT INTO mails VALUES (?, ?, ?)", (identity, order, recipient))
    request.record("mail sent", identity, order)
    return Reply(201, {"id": identity, "order": order})


ROUTES = Routes(
    SCHEMA,
    {
        "POST /labels": make_label,
        "GET /labels": list_labels,
        "GET /labels/{}": show_label,
        "POST /labels/{}/void": void_label,
        "POST /mails": send_mail,
    },
    keyed=frozenset({"POST /labels/{}/void", "POST /mails"}),
)

if __name__ == "__main__":
    run("shipping", ROUTES)
