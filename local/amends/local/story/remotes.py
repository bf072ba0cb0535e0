"""Starts the outside world of the story: the payment service behind its gate, the warehouse, the carrier; each its own
process.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from amends.local.children import Child, free_port, make_folder, remove_folder
from amends.local.errors import ServerUnavailable
from amends.local.story.remote import Unavailable, call
from amends.local.story.world import Addresses, Thing, read_world
from amends.local.wire import answers, wait_for

START_DEADLINE_MS = 30_000
PAYMENTS, WAREHOUSE, SHIPPING = "STORY_PAYMENTS_URL", "STORY_WAREHOUSE_URL", "STORY_SHIPPING_URL"


@dataclass(frozen=True, slots=True)
class Remotes:
    """The services of one run of the story."""

    addresses: Addresses
    children: list[Child] = field(default_factory=list[Child])

    @property
    def environment(self) -> Mapping[str, str]:
        """Where the story's tools look for the services."""
        return {
            PAYMENTS: self.addresses.payments,
            WAREHOUSE: self.addresses.warehouse,
            SHIPPING: self.addresses.shipping,
        }

    def world(self) -> list[Thing]:
        return read_world(self.addresses)

    def set_fault(self, base: str, call_name: str, fault: str, times: int = 1) -> None:
        """Arm a fault switch: see `faults.py`. `base` is one of the addresses."""
        call("POST", f"{base}/faults", {"call": call_name, "fault": fault, "times": times})

    def clear_faults(self, base: str) -> None:
        call("DELETE", f"{base}/faults")

    def held(self, base: str) -> list[dict[str, Any]]:
        """Return the calls this service holds back now."""
        held: list[dict[str, Any]] = call("GET", f"{base}/held")
        return held

    def let_go(self, base: str) -> None:
        """Close the connections of the calls held back, without an answer."""
        call("DELETE", f"{base}/held")


@contextlib.contextmanager
def remotes() -> Iterator[Remotes]:
    """Have the services for the length of a block. Raises ServerUnavailable if one does not start."""
    folder = make_folder("story")
    stripe, gate, warehouse, shipping = (free_port() for _ in range(4))
    python = [sys.executable, "-m"]
    upstream = f"http://127.0.0.1:{stripe}"
    # localstripe offers no address to listen on: it listens on every interface of the machine, for the length of a run.
    commands = {
        stripe: [*python, "localstripe", "--port", str(stripe), "--from-scratch"],
        gate: [*python, "amends.local.story.gate", "--port", str(gate), "--upstream", upstream],
        warehouse: [*python, *_service("warehouse", warehouse, str(folder))],
        shipping: [*python, *_service("shipping", shipping, str(folder))],
    }
    started = Remotes(Addresses(*(f"http://127.0.0.1:{port}" for port in (gate, warehouse, shipping))))
    try:
        for command in commands.values():
            started.children.append(Child(command, folder=folder))
        for (port, command), child in zip(commands.items(), started.children, strict=True):
            ready = functools.partial(answers if port == stripe else _healthy, port)
            if not wait_for(ready, alive=functools.partial(_runs, child), deadline_ms=START_DEADLINE_MS):
                raise ServerUnavailable(f"a service of the story did not start: {' '.join(command)}")
        yield started
    finally:
        for child in started.children:
            child.stop(2_000)
        remove_folder(folder)


def _service(name: str, port: int, folder: str) -> list[str]:
    return [f"amends.local.story.{name}", "--port", str(port), "--database", f"{folder}/{name}.sqlite"]


def _runs(child: Child) -> bool:
    return child.alive


def _healthy(port: int) -> bool:
    try:
        return bool(call("GET", f"http://127.0.0.1:{port}/healthz", timeout_s=1)["ok"])
    except Unavailable:
        return False
