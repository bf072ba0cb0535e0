"""The calls of the story's tools as the services see them: what each makes or takes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from amends.local.story.world import Kind


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """A call as a fault switch names it."""

    service: str
    name: str
    kind: Kind
    undoes: bool = False

    def told(self, fault: str) -> str:
        """Say what it means that this call is held."""
        act = f"the {self.kind} is {'taken back' if self.undoes else 'made'}"
        if fault == "hang_after_effect":
            return f"{act}, and the answer is held back"
        return f"a call hangs before {act}"


FORWARD = (
    RemoteCall("payments", "POST /v1/payment_intents", "charge"),
    RemoteCall("warehouse", "POST /reservations", "reservation"),
    RemoteCall("shipping", "POST /labels", "label"),
    RemoteCall("warehouse", "POST /orders", "order"),
)
"""In the order in which the agent makes them."""

BACKWARD = (
    RemoteCall("payments", "POST /v1/refunds", "charge", undoes=True),
    RemoteCall("warehouse", "POST /reservations/{}/release", "reservation", undoes=True),
    RemoteCall("shipping", "POST /labels/{}/void", "label", undoes=True),
    RemoteCall("warehouse", "DELETE /orders/{}", "order", undoes=True),
)

BY_NAME: Mapping[str, RemoteCall] = {call.name: call for call in (*FORWARD, *BACKWARD)}
SERVICES = ("payments", "warehouse", "shipping")
SEQUENCE: tuple[Kind, ...] = tuple(call.kind for call in FORWARD)
