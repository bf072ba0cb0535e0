"""A step as the agent that makes it knows it: its attempts, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass, field

from amends.producers.effects import Admit, Pending, Recorded
from amends.producers.savepoints import IN_FLIGHT, Place, is_condemned
from amends.schemas.commands import EndedEpoch
from amends.schemas.contract import CallTerms, Idempotency
from amends.schemas.facts import StepStatus

WITHOUT_EFFECT = frozenset({StepStatus.FAILED, StepStatus.NOT_EXECUTED})


@dataclass(slots=True)
class KnownStep:
    step_id: str
    call_id: str
    epoch: int
    first_wall_ms: int
    here: bool  # made by this instance
    kept: bool  # may be met again
    tool_name: str = ""
    call_digest: str = ""
    uses: tuple[str, ...] = ()  # digests of ids, for who takes back what
    makes: tuple[str, ...] = ()
    requested: bool = False  # a person was asked
    attempts: dict[str, StepStatus] = field(default_factory=dict[str, StepStatus])
    places: dict[str, Place] = field(default_factory=dict[str, Place])  # of the STARTED of each attempt
    absent: set[str] = field(default_factory=set[str])
    present: bool = False
    payload: bytes | None = None
    captured: bytes | None = None  # the before-image, until the call is known to have happened

    def open(self) -> bool:
        return StepStatus.STARTED in self.attempts.values()

    def may_stand(self) -> bool:
        """Whether it has, or may have, an effect."""
        return self.present or self.open() or self.unknown()

    def unsent(self) -> bool:
        """Whether a person was asked and no attempt was sent: the next is the first."""
        return self.requested and all(status is StepStatus.NOT_EXECUTED for status in self.attempts.values())

    def sent_at(self) -> int:
        """Return where the first STARTED stands."""
        return min((place.offset for place in self.places.values()), default=IN_FLIGHT)

    def statuses_before(self, offset: int, but: str) -> set[StepStatus]:
        """Return how it stands with the attempts whose STARTED is before `offset`, `but` one, and not proven absent."""
        there = (a for a, place in self.places.items() if a != but and place.offset < offset and a not in self.absent)
        return {self.attempts[a] for a in there if a in self.attempts}

    def ended_before(self, offset: int) -> None:
        """All that has ended of it stands before `offset`."""
        for attempt, place in self.places.items():
            if place.offset == IN_FLIGHT and self.attempts.get(attempt, StepStatus.STARTED) is not StepStatus.STARTED:
                self.places[attempt] = place._replace(offset=offset)

    def condemned(self, turns: tuple[EndedEpoch, ...]) -> bool:
        return bool(turns) and is_condemned((p for a, p in self.places.items() if a in self.attempts), turns)

    def unknown(self) -> bool:
        return any(s is StepStatus.UNKNOWN and a not in self.absent for a, s in self.attempts.items())


def answer_to(call: Admit, step: KnownStep, wall_ms: int) -> Recorded | Pending | None:
    """Return what is answered to a call that is met again; None if it is made."""
    terms = call.contract.call
    keyed = terms.idempotency is not Idempotency.NEITHER
    if step.present:
        return Recorded(step.step_id, step.payload)
    if step.open() and (step.here or not keyed):
        return Pending(step.step_id, open=True)
    if (step.open() or step.unknown()) and (not keyed or is_forgotten(terms, step, wall_ms)):
        return Pending(step.step_id, open=False)
    if (step.open() or step.unknown()) and call.contract.captures and step.captured is None:
        return Pending(step.step_id, open=False)  # what is read now may be its own effect
    return None


def is_forgotten(terms: CallTerms, step: KnownStep, wall_ms: int) -> bool:
    """Whether the remote may no longer remember the key of `step` when a call made now arrives: it then counts as one
    that takes none."""
    reusable_ms = terms.key_reusable_ms
    if terms.idempotency is not Idempotency.KEY or reusable_ms is None:
        return False
    return wall_ms - step.first_wall_ms >= reusable_ms
