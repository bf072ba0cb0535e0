"""The outside world of the runs: the services of the story, each behind a gate."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.killing.gate import Orders, make_gate

from amends.local.story.remotes import PAYMENTS, SHIPPING, WAREHOUSE, Remotes


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates, and where tools find them."""

    orders: Orders
    environment: Mapping[str, str]


@contextlib.contextmanager
def gates(outside: Remotes) -> Iterator[Gates]:
    """Have a gate before each service for the length of a block."""
    orders = Orders(lambda order, strike, port: False)
    addresses, servers = {}, []
    upstream = {
        PAYMENTS: outside.addresses.payments,
        WAREHOUSE: outside.addresses.warehouse,
        SHIPPING: outside.addresses.shipping,
    }
    for name, address in upstream.items():
        server = make_gate(address, orders, stripe=name == PAYMENTS)
        servers.append(server)
        addresses[name] = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield Gates(orders, addresses)
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
