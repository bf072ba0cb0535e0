"""What chance decides about one run, and what must have become of its order. Pure: the same seed is the same plan.

A strike hits a part at a moment in a call of one order: before the effect, after it with the answer held back, or right
after the answer. How the machine interleaves several runs is not decided by a seed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from amends.local.story.calls import BACKWARD, FORWARD, SEQUENCE, RemoteCall
from amends.local.story.world import Kind, Wanted

# Longer than the lease of an agent (3 s), of a call or an undo (4 s), and the session of a part (6 s). The one who is
# struck is inside a call, its request under way. A neighbour in the same compensator that is between its look at the
# clock and its send just then sleeps longer than A1 allows; those are few milliseconds, and a refund would show it.
FROZEN_MS = 9_000
ANSWERED_WITHIN_MS = 30


class Moment(StrEnum):
    """Where in a call."""

    BEFORE = "before the effect of"
    AFTER = "after the effect, before the answer of"
    ANSWERED = "just after the answer of"


class Act(StrEnum):
    """What is done, to whom."""

    KILL_CALLER = "kill the caller"
    FREEZE_CALLER = "freeze the caller"
    KILL_PROCESSOR = "kill a processor"
    FREEZE_PROCESSOR = "freeze a processor"
    FLUSH_REGISTRY = "flush Redis"


@dataclass(frozen=True, slots=True)
class Strike:
    """One act, once, at the first call of this name of the plan's order."""

    act: Act
    moment: Moment
    call: RemoteCall
    delay_ms: int = 0

    def __str__(self) -> str:
        return f"{self.act} {self.moment} {self.call.name}"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `refused`: the last call is refused, so the agent fails."""

    seed: int
    strikes: tuple[Strike, ...]
    refused: bool = False

    def __str__(self) -> str:
        told = [*(["the last call is refused"] if self.refused else []), *map(str, self.strikes)]
        return "; ".join(told) or "nothing goes wrong"


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    chance = random.Random(seed)
    ending = chance.choices(("killed", "frozen", "refused", "clean"), (60, 12, 20, 8))[0]
    last = chance.choice(FORWARD) if ending in ("killed", "frozen") else FORWARD[-1]
    strikes = []
    if ending in ("killed", "frozen"):
        act = Act.KILL_CALLER if ending == "killed" else Act.FREEZE_CALLER
        strikes.append(_strike(chance, act, last))
    reached = FORWARD[: FORWARD.index(last) + 1]
    if ending != "clean":
        undone = [call for call in BACKWARD if SEQUENCE.index(call.kind) < len(reached) - (ending == "refused")]
        for call in chance.sample(undone, min(len(undone), chance.choice((0, 0, 1, 1, 2)))):
            act = chance.choices((Act.KILL_CALLER, Act.FREEZE_CALLER), (4, 1))[0]
            strikes.append(_strike(chance, act, call))
        reached = (*reached, *undone)
    if chance.random() < 0.25:
        act = chance.choice((Act.KILL_PROCESSOR, Act.FREEZE_PROCESSOR))
        strikes.append(_strike(chance, act, chance.choice(reached)))
    if chance.random() < 0.2:
        strikes.append(_strike(chance, Act.FLUSH_REGISTRY, chance.choice(reached)))
    return Plan(seed, tuple(strikes), refused=ending == "refused")


def _strike(chance: random.Random, act: Act, call: RemoteCall) -> Strike:
    moment = chance.choice(tuple(Moment))
    return Strike(act, moment, call, chance.randint(0, ANSWERED_WITHIN_MS) if moment is Moment.ANSWERED else 0)


class Said(StrEnum):
    """How the agent ended, as itself and its exit code say."""

    SUCCEEDED = "succeeded"
    UNCERTAIN = "ended well, without the fold's word"
    REFUSED = "refused at the last call"
    FAILED = "gave up"
    KILLED = "killed"


STANDING: Mapping[Kind, Wanted] = dict.fromkeys(SEQUENCE, "standing")
CLEARED: Mapping[Kind, Wanted] = dict.fromkeys(SEQUENCE, "undone or never done")


def allowed(plan: Plan, said: Said) -> list[Mapping[Kind, Wanted]]:
    """Return what may have become of the order: one of these, whole."""
    match said:
        case Said.SUCCEEDED:
            return [STANDING]
        case Said.UNCERTAIN:
            return [STANDING, CLEARED]
        case Said.FAILED:  # woken in a turned workflow, or the ledger did not answer it in time
            return [CLEARED]
        case Said.REFUSED:
            return [_undone(len(SEQUENCE) - 1)]
        case Said.KILLED:
            return _after_a_kill(plan)
    assert_never(said)


def _after_a_kill(plan: Plan) -> list[Mapping[Kind, Wanted]]:
    at = next(strike for strike in plan.strikes if strike.act is Act.KILL_CALLER and not strike.call.undoes)
    place = SEQUENCE.index(at.call.kind)
    # A call that was cut before its effect may be made, and undone, when it is sent again with its key.
    undone = _undone(place if at.moment is Moment.BEFORE else place + 1)
    # In the moment between an answer and death, even the rest of the calls may be made and success be claimed.
    claimed = at.moment is Moment.ANSWERED
    return [undone, STANDING] if claimed else [undone]


def _undone(made: int) -> Mapping[Kind, Wanted]:
    """The first `made` were made and are undone; what comes later may not have been made."""
    return {kind: "undone" if index < made else "undone or never done" for index, kind in enumerate(SEQUENCE)}
