"""What chance may do to a run, and the settings that say how often. Everything comes from one `random.Random`."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.schedule import Fault, Freeze, Kill, Process
from tests.simulation.world import CALL_LEASE_MS, UNDO_LEASE_MS

from amends.compensators.effects import CallForward, CallUndo
from amends.producers.effects import Invoke

SENDS = (Invoke, CallUndo, CallForward)
"""What A1 speaks of: between the last look at the clock and one of these a process sleeps less than half a lease."""

A1_MARGIN_MS = 200


class Chance(Random):
    """The same numbers as `Random`, for less: a run asks for a thousand of them."""

    def randint(self, a: int, b: int) -> int:
        count = b - a + 1
        bits = count.bit_length()
        found = self.getrandbits(bits)
        while found >= count:
            found = self.getrandbits(bits)
        return a + found


FORGETS_MS = 3_600_000
"""A grace that is longer than a run."""


@dataclass(slots=True)
class Mix:
    """How a run is disturbed. Rates are per occasion, 0 to 1."""

    faults_max: int = 4
    fault_rate: float = 0.02
    freezes: float = 0.4  # of all faults; the others kill
    keeps_a1: bool = True
    roles: tuple[str, ...] = ("agent", "processor", "compensator")
    slow: float = 0.05  # a delay is a long one
    ack_lost: float = 0.02
    write_refused: float = 0.02
    duplicate: float = 0.05  # an emission of the processor is sent twice
    call_refused: float = 0.1
    call_uncertain: float = 0.1
    undo_refused: float = 0.1
    undo_uncertain: float = 0.15
    question_fails: float = 0.15  # probe, verify
    registry_lost: float = 0.05  # a verb's reply, or its write
    flushes: int = 1
    rebalances: int = 1
    people: float = 0.3
    jitter_ms: int = 10
    repeated: float = 0.02  # a fact stands on the ledger twice
    outages: int = 0  # of the ledger
    grace_ms: int = FORGETS_MS  # after which a closed workflow is forgotten
    lives: int = 0  # how often an agent is started again under the same id, late
    late_ms: tuple[int, ...] = (1, 20, 300, 2_000, 8_000)  # how much later a repeat of a fact may come
    rollbacks: int = 0  # of the registry, to an older state
    skew_ms: int = 0  # by how much the clock of a processor may be wrong, either way, and jump
    later_dropped: float = 0.0  # what a remote took is never done
    callback_lost: float = 0.0  # what a remote says of it never comes
    approvals: float = 0.0  # a request is seen by a person, and how often he approves it
    partitions: int = 1  # of the ledger, of lanes, of all that is co-partitioned
    budgets: dict[str, Any] = field(default_factory=dict[str, Any])  # terms of the fold: breakers, rates, bounds
    anew: int = 0  # how often the state of a partition is left behind, and built from the ledger
    containments: int = 0  # how often somebody has undone what agents did
    edits: float = 0.0  # an undo that was given up on gets other arguments from the person who rules on it
    others: float = 0.0  # what an agent sets is set by somebody else, too
    unread: float = 0.0  # an agent can't read what stands on the ledger, though it can write
    retention_ms: int = 0  # what is older is gone from the ledger; 0: nothing is

    @property
    def may_live_again(self) -> bool:
        """Whether an id may come to a second instance: its agent begins behind the grace of the first, be it late by
        design or because it was killed and began again."""
        return self.lives > 0 or self.grace_ms < FORGETS_MS

    @classmethod
    def none(cls) -> Mix:
        """Return a mix in which nothing happens."""
        zero = 0.0
        return cls(
            0, zero, zero, True, (), zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, 0, 0, zero, 0, zero
        )

    @classmethod
    def drawn(cls, chance: Random, *, keeps_a1: bool = True) -> Mix:
        """Return one of the many ways a run may be disturbed."""

        def rate(high: float) -> float:
            return chance.choice((0.0, high / 3, high))

        roles = chance.choice(
            (("agent", "processor", "compensator"),) * 3 + (("compensator",), ("agent",), ("processor", "compensator"))
        )
        return cls(
            faults_max=chance.randint(0, 6),
            fault_rate=chance.choice((0.005, 0.02, 0.06)),
            freezes=chance.choice((0.0, 0.4, 0.8)),
            keeps_a1=keeps_a1,
            roles=roles,
            slow=rate(0.15),
            ack_lost=rate(0.08),
            write_refused=rate(0.06),
            duplicate=rate(0.2),
            call_refused=rate(0.2),
            call_uncertain=rate(0.25),
            undo_refused=rate(0.2),
            undo_uncertain=rate(0.3),
            question_fails=rate(0.3),
            registry_lost=rate(0.2),
            flushes=chance.choice((0, 0, 1, 3)),
            rebalances=chance.choice((0, 0, 1, 3)),
            people=chance.choice((0.0, 0.0, 0.5)),
            jitter_ms=chance.choice((0, 10)),
            repeated=chance.choice((0.0, 0.03)),
            outages=chance.choice((0, 0, 1, 3)),
        )

    @classmethod
    def hammered(cls, chance: Random, *, keeps_a1: bool = True) -> Mix:
        """Return a mix that falls upon the undo lane: who undoes is killed, frozen, doubled and doubted."""
        roles = chance.choice((("compensator",), ("compensator",), ("compensator", "processor")))
        return cls(
            faults_max=chance.randint(2, 8),
            fault_rate=chance.choice((0.05, 0.12, 0.25)),
            freezes=chance.choice((0.4, 0.8, 1.0)),
            keeps_a1=keeps_a1,
            roles=roles,
            slow=chance.choice((0.05, 0.15, 0.3)),
            ack_lost=0.05,
            write_refused=0.02,
            duplicate=chance.choice((0.1, 0.4)),
            call_uncertain=0.1,
            call_refused=0.0,
            undo_refused=chance.choice((0.0, 0.2)),
            undo_uncertain=chance.choice((0.1, 0.3)),
            question_fails=chance.choice((0.0, 0.2)),
            registry_lost=chance.choice((0.0, 0.2)),
            flushes=chance.randint(0, 4),
            rebalances=chance.randint(0, 4),
            people=chance.choice((0.0, 1.0)),
            jitter_ms=10,
            repeated=chance.choice((0.0, 0.1)),
        )

    @classmethod
    def haunted(cls, chance: Random, *, keeps_a1: bool = True) -> Mix:
        """Return a mix that falls upon agents: they die and sleep in their calls, and wake beside their successors."""
        return cls(
            faults_max=chance.randint(1, 6),
            fault_rate=chance.choice((0.03, 0.08, 0.2)),
            freezes=chance.choice((0.2, 0.7, 1.0)),
            keeps_a1=keeps_a1,
            roles=chance.choice((("agent",), ("agent",), ("agent", "processor"))),
            slow=chance.choice((0.02, 0.1, 0.3)),
            ack_lost=chance.choice((0.0, 0.1)),
            write_refused=chance.choice((0.0, 0.1)),
            duplicate=0.05,
            call_refused=chance.choice((0.0, 0.2)),
            call_uncertain=chance.choice((0.1, 0.4)),
            undo_refused=0.0,
            undo_uncertain=0.05,
            question_fails=chance.choice((0.0, 0.2)),
            registry_lost=0.0,
            flushes=0,
            rebalances=chance.choice((0, 1)),
            people=chance.choice((0.0, 0.8)),
            jitter_ms=10,
            repeated=chance.choice((0.0, 0.1)),
        )

    @classmethod
    def usurped(cls, chance: Random, *, keeps_a1: bool = True) -> Mix:
        """Return a mix in which the ledger changes hands all the time, and the zombies go on."""
        mix = cls.drawn(chance, keeps_a1=keeps_a1)
        mix.roles = chance.choice((("processor",), ("processor", "compensator")))
        mix.faults_max = chance.randint(3, 10)
        mix.fault_rate = chance.choice((0.03, 0.1, 0.2))
        mix.freezes = chance.choice((0.5, 0.9))
        mix.rebalances = chance.choice((0, 3))
        mix.outages = 0
        return mix


@dataclass(slots=True)
class Mishaps:
    """Counts what goes wrong in a run, so that a run can be played again with some of it left out."""

    left_out: frozenset[int] = frozenset()
    count: int = 0

    def happen(self) -> bool:
        self.count += 1
        return self.count - 1 not in self.left_out


@dataclass(slots=True)
class RandomFaults:
    """Kills and freezes at random points, up to `faults_max` of them and until `stopped`."""

    mix: Mix
    chance: Random
    mishaps: Mishaps = field(default_factory=Mishaps)
    happened: int = 0
    stopped: bool = False

    def at(self, process: Process, effect: object) -> Fault:
        mix, chance = self.mix, self.chance
        if self.stopped or self.happened >= mix.faults_max or process.role not in mix.roles:
            return None
        if chance.random() >= mix.fault_rate:
            return None
        self.happened += 1
        left_out = not self.mishaps.happen()
        if chance.random() >= mix.freezes:
            return None if left_out else Kill()
        freeze_ms = chance.choice(
            (chance.randint(50, 1_000), chance.randint(500, 5_000), chance.randint(3_000, 25_000))
        )
        if mix.keeps_a1 and isinstance(effect, SENDS):
            freeze_ms = min(
                freeze_ms, (UNDO_LEASE_MS if isinstance(effect, CallUndo) else CALL_LEASE_MS) // 2 - A1_MARGIN_MS
            )
        return None if left_out else Freeze(freeze_ms)


@dataclass(slots=True)
class FaultsAt:
    """One fault per (role, point), counted over all processes of the role: for exhaustive runs."""

    faults: dict[tuple[str, int], Fault]
    counts: dict[str, int] = field(default_factory=dict)
    mishaps: Mishaps = field(default_factory=Mishaps)
    stopped: bool = False

    def at(self, process: Process, effect: object) -> Fault:
        count = self.counts.get(process.role, 0)
        self.counts[process.role] = count + 1
        return self.faults.get((process.role, count))
