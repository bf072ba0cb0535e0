"""The scenes of the demo: which faults are set, what must have become of each order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from amends.local.story.calls import BACKWARD, FORWARD, SEQUENCE, RemoteCall
from amends.local.story.world import Kind, Wanted


class Ended(StrEnum):
    """How an agent ended."""

    DONE = "done"
    FAILED = "failed"
    KILLED = "killed"
    GAVE_UP = "gave up"
    """The ledger was too slow for it, as on a busy machine: nobody knows beforehand at which call, if it began."""


@dataclass(frozen=True, slots=True)
class Fate:
    """How an agent ended; if it was killed inside a call: in which, and whether that had had its effect."""

    ended: Ended
    call: RemoteCall | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class FaultSet:
    """A switch set before the scene begins: see `faults.py`. `service` is payments, warehouse or shipping."""

    service: str
    call: str
    fault: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Scene:
    """One story. Whoever is inside a call that hangs is killed.

    Attributes:
        left: what stands in the end although its order failed: a person was asked about each.
        processor_kills_ms: when, after the agents' start, the processor is killed; another is started in its place.
        restarts: a killed compensator is started again.
    """

    name: str
    title: str
    orders: int = 1
    faults: tuple[FaultSet, ...] = ()
    mail: bool = False
    left: tuple[Kind, ...] = ()
    dead_letters_min: int = 0
    incidents_min: int = 0
    processor_kills_ms: tuple[int, ...] = ()
    restarts: bool = False
    deadline_ms: int = 90_000

    def expected(self, fate: Fate) -> Mapping[Kind, Wanted]:
        """Return what must have become of each kind of thing of one order."""
        if fate.ended is Ended.DONE:
            done: tuple[Kind, ...] = (*SEQUENCE, *(("mail",) if self.mail else ()))
            return dict.fromkeys(done, "standing")
        if fate.ended is Ended.GAVE_UP:
            return {**dict.fromkeys(SEQUENCE, "undone or never done"), **dict.fromkeys(self.left, "standing")}
        last: Kind = "order" if fate.call is None else fate.call.kind
        made: dict[Kind, Wanted] = dict.fromkeys(SEQUENCE[: SEQUENCE.index(last)], "undone")
        if fate.call is not None:
            # A call that hung before its effect may be made, and undone, when it is sent again with its key.
            made[last] = "undone" if fate.fault == "hang_after_effect" else "undone or never done"
        return {**made, **dict.fromkeys(self.left, "standing")}


AGENT_DIES = FaultSet("shipping", "POST /labels", "hang_after_effect")
COMPENSATOR_DIES = FaultSet("payments", "POST /v1/refunds", "hang_after_effect")
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
                FaultSet("shipping", "POST /labels", "hang_after_effect", 5),
                FaultSet("warehouse", "POST /orders", "refuse", 5),
                COMPENSATOR_DIES,
            ),
            deadline_ms=150_000,
        ),
    )
}


def killing_scene(seed: int) -> Scene:
    """Return a scene in which chance says who is killed where: agents in any call, compensators in any undo, a
    processor.

    The same seed is the same scene; what the machine does with it (who comes first) is not decided by it.
    """
    chance = random.Random(seed)  # noqa: S311 - not a secret
    orders = chance.randint(1, 4)
    forward = chance.sample(FORWARD, chance.randint(1, 2))
    backward = chance.sample(BACKWARD, chance.randint(0, 2))
    faults = [FaultSet(call.service, call.name, _hang(chance), 1) for call in (*forward, *backward)]
    if chance.random() < 0.5 and all(call.kind != "order" for call in forward):
        faults.append(FaultSet(LEDGER_REFUSES.service, LEDGER_REFUSES.call, LEDGER_REFUSES.fault, orders))
    kills = (chance.randint(0, 15_000),) if chance.random() < 0.4 else ()
    told = ", ".join(f"{fault.fault} {fault.call}" for fault in faults)
    return Scene(
        f"seed {seed}",
        f"{orders} order(s); {told}; processor killed {len(kills)} time(s)",
        orders=orders,
        faults=tuple(faults),
        processor_kills_ms=kills,
        restarts=True,
        deadline_ms=150_000,
    )


def _hang(chance: random.Random) -> str:
    return chance.choice(("hang_before_effect", "hang_after_effect"))
