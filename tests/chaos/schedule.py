"""What befalls the parts, and when: a function of the seed. Pure.

Faults are dealt from a shuffled deck, so that a short run meets many kinds and a long one meets all of them often.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

FROZEN_S = 8.0
"""Longer than leases (4 s) and sessions (6 s), shorter than half the lease of what rests on `verify` (20 s)."""

EVERY_S = 3.5


class Kind(StrEnum):
    """What is done, in words."""

    KILL_PROCESSOR = "kill -9 a processor"
    FREEZE_PROCESSOR = "freeze a processor"
    RETIRE_PROCESSOR = "retire a processor"
    KILL_COMPENSATOR = "kill -9 a compensator"
    FREEZE_COMPENSATOR = "freeze a compensator"
    RETIRE_COMPENSATOR = "retire a compensator"
    KILL_AGENTS = "kill -9 five agents"
    FREEZE_AGENTS = "freeze five agents"
    RETIRE_AGENTS = "retire five agents"
    KILL_BROKER = "kill -9 a broker"
    STOP_BROKER = "stop a broker"
    FREEZE_BROKER = "freeze a broker"
    ROLL_BROKERS = "restart the brokers one by one"
    KILL_ALL_BROKERS = "kill -9 all brokers at once"
    FILL_DISK = "let a broker's disk refuse"
    FLUSH_REDIS = "flush Redis"
    KILL_REDIS = "kill -9 Redis"
    FREEZE_REDIS = "freeze Redis"
    FILL_REDIS = "let Redis refuse writes: it is full"
    CUT_ALL = "reset all connections to the brokers"
    CUT_BROKER = "refuse connections to a broker"
    STALL_BROKER = "stall the connections to a broker"
    CUT_PART = "cut a part off from the brokers"
    STALL_PART = "stall a part's connections to the brokers"
    CUT_REDIS = "refuse connections to Redis"
    STALL_REDIS = "stall the connections to Redis"
    REMOTES_DOWN = "let the remotes answer nobody"
    REMOTES_SLOW = "let the remotes be slow"


DECK: dict[Kind, int] = {
    **dict.fromkeys(Kind, 1),
    Kind.KILL_PROCESSOR: 2,
    Kind.KILL_COMPENSATOR: 3,
    Kind.FREEZE_COMPENSATOR: 2,
    Kind.KILL_AGENTS: 3,
    Kind.FREEZE_AGENTS: 2,
    Kind.FLUSH_REDIS: 2,
    Kind.CUT_PART: 2,
}

LASTING_S: dict[Kind, tuple[float, float]] = {
    Kind.FREEZE_PROCESSOR: (FROZEN_S, FROZEN_S),
    Kind.FREEZE_COMPENSATOR: (FROZEN_S, FROZEN_S),
    Kind.FREEZE_AGENTS: (FROZEN_S, FROZEN_S),
    Kind.KILL_BROKER: (0, 6),
    Kind.STOP_BROKER: (0, 6),
    Kind.FREEZE_BROKER: (6, 12),
    Kind.KILL_ALL_BROKERS: (0, 2),
    Kind.FILL_DISK: (2, 6),
    Kind.KILL_REDIS: (0, 4),
    Kind.FREEZE_REDIS: (2, 8),
    Kind.FILL_REDIS: (3, 8),
    Kind.CUT_BROKER: (2, 8),
    Kind.STALL_BROKER: (2, 8),
    Kind.CUT_PART: (3, 10),
    Kind.STALL_PART: (3, 10),
    Kind.CUT_REDIS: (2, 8),
    Kind.STALL_REDIS: (2, 8),
    Kind.REMOTES_DOWN: (1, 4),
    Kind.REMOTES_SLOW: (3, 8),
}
"""How long it lasts, at least and at most; what is not here is over at once."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One. `pick`, from 0 to 1, chooses the victim among those who are there then."""

    number: int
    at_s: float
    kind: Kind
    pick: float
    lasting_s: float

    def __str__(self) -> str:
        lasting = f", for {self.lasting_s:.1f} s" if self.lasting_s else ""
        return f"fault {self.number}: {self.kind}{lasting}"


def schedule(seed: int, seconds: float, *, first_s: float = 3.0, every_s: float = EVERY_S) -> tuple[Fault, ...]:
    """Return the faults of a run: one about every `every_s` from `first_s` on, none in its last two seconds."""
    chance = random.Random(seed)
    kinds = _deal(chance)
    faults: list[Fault] = []
    at_s = first_s
    while at_s < seconds - 2:
        kind = next(kinds)
        least, most = LASTING_S.get(kind, (0.0, 0.0))
        faults.append(
            Fault(len(faults) + 1, round(at_s, 2), kind, chance.random(), round(chance.uniform(least, most), 1))
        )
        at_s += chance.uniform(0.3 * every_s, 1.7 * every_s)
    return tuple(faults)


def _deal(chance: random.Random) -> Iterator[Kind]:
    while True:
        deck = [kind for kind, count in DECK.items() for _ in range(count)]
        chance.shuffle(deck)
        yield from deck
