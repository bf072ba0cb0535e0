"""The scenes of the demo: which faults are set, what must have become of each order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from amends.local.story.world import Kind, Wanted


class Fate(StrEnum):
    """How an agent ended."""

    DONE = "done"
    FAILED = "failed"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class FaultSet:
    """A switch set before the scene begins: see `faults.py`. `service` is payments, warehouse or shipping."""

    service: str
    call: str
    fault: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Scene:
    """One story. Things named in `left` stand in the end although their order failed: a person was asked about each."""

    name: str
    title: str
    orders: int = 1
    faults: tuple[FaultSet, ...] = ()
    mail: bool = False
    left: tuple[Kind, ...] = ()
    dead_letters_min: int = 0
    incidents_min: int = 0
    deadline_ms: int = 90_000

    def expected(self, fate: Fate) -> Mapping[Kind, Wanted]:
        """Return what must have become of each kind of thing of one order."""
        before: tuple[Kind, ...] = ("charge", "reservation", "label")
        if fate is Fate.DONE:
            done: tuple[Kind, ...] = (*before, *(("mail",) if self.mail else ()), "order")
            return dict.fromkeys(done, "standing")
        made: dict[Kind, Wanted] = dict.fromkeys(before, "undone")
        return {**made, **dict.fromkeys(self.left, "standing")}


LABEL_HELD = "POST /labels"
REFUND_HELD = "POST /v1/refunds"
AGENT_DIES = FaultSet("shipping", LABEL_HELD, "hang_after_effect")
COMPENSATOR_DIES = FaultSet("payments", REFUND_HELD, "hang_after_effect")
LEDGER_REFUSES = FaultSet("warehouse", "POST /orders", "refuse")

SCENES: Mapping[str, Scene] = {
    scene.name: scene
    for scene in (
        Scene(
            "killed",
            "The agent is killed inside the label call, after the carrier made the label;\n"
            "one of two compensators is killed in the middle of the refund.",
            faults=(AGENT_DIES, COMPENSATOR_DIES),
        ),
        Scene("clean", "Nothing goes wrong, and nothing is undone."),
        Scene(
            "failed-call",
            "The fourth call is refused; the agent fails, and the first three are undone.",
            faults=(LEDGER_REFUSES,),
        ),
        Scene(
            "remote-down",
            "The fourth call is refused, and the carrier is down when its label is to be voided: the budget is spent,\n"
            "a dead letter is written, a person is asked. What does not depend on it is undone.",
            faults=(LEDGER_REFUSES, FaultSet("shipping", "POST /labels/{}/void", "down", 1_000)),
            left=("label",),
            dead_letters_min=1,
            incidents_min=1,
        ),
        Scene(
            "irreversible",
            "A mail is sent before the last call is refused: nobody can call it back, so a person is asked.",
            faults=(LEDGER_REFUSES,),
            mail=True,
            left=("mail",),
            incidents_min=1,
        ),
        Scene(
            "twenty",
            "Twenty orders at once: some succeed, some fail, some agents are killed; so is one compensator.",
            orders=20,
            faults=(
                FaultSet("shipping", LABEL_HELD, "hang_after_effect", 5),
                FaultSet("warehouse", "POST /orders", "refuse", 5),
                COMPENSATOR_DIES,
            ),
            deadline_ms=150_000,
        ),
    )
}
