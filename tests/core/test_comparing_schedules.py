"""C29, in every schedule of a small space: an undo that compares, cut off between any two effects, its answer lost,
and somebody else who writes at any moment. Nobody's newer value is lost, a person is asked, nothing is undone twice.

The real fold, the real decision, the real comparison; the world is one value. The only moment in which somebody else's
value can be lost is between the look and the undo's own request, which only the remote could close.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.core.ledger import Ledger, contract_of

from amends.compensators.comparing import compared
from amends.compensators.decide import decide
from amends.compensators.effects import (
    AwaitSent,
    CallUndo,
    Claim,
    Compare,
    Effect,
    LedgerFact,
    ReadBack,
    ReadClock,
    ReadWallClock,
    Renew,
    Send,
    Settle,
    ShowsOurs,
    Succeeded,
    Uncertain,
    Wait,
    Write,
    Written,
)
from amends.compensators.registry import MemoryRegistry
from amends.schemas.codec import decode, encode
from amends.schemas.commands import UndoCommand
from amends.schemas.contract import COMPARE, Contract, Idempotency
from amends.schemas.facts import Failure, StepStatus, WorkflowStatus
from amends.schemas.payload import encode_payload
from amends.tools.step import Step

BEFORE, OURS, THEIRS = "before", "ours", "somebody else's"
NEVER = 99


@dataclass(frozen=True)
class Schedule:
    """What happens. Moments count the effects of all deliveries."""

    idempotency: Idempotency  # of the undo's remote
    known: str  # how much is known of the call: its after-image, what it writes, or nothing
    happened: bool
    cut_at: int  # the first delivery is cut off behind this effect
    answer_lost: bool  # the first request of an undo takes, and nobody hears of it
    other_at: int  # when somebody else writes


@dataclass
class Play:
    """One workflow of one step, undone by deliveries one after another."""

    schedule: Schedule
    ledger: Ledger = field(default_factory=Ledger)
    registry: MemoryRegistry = field(init=False)
    world: str = BEFORE
    put_back: int = 0
    effects: int = 0
    taken: int = 0  # commands
    looked_at: int = NEVER  # the moment of the last look that let an undo go on
    lost: list[str] = field(default_factory=list)
    sent: list[Written] = field(default_factory=list)  # answers nobody has waited for

    def __post_init__(self) -> None:
        self.registry = MemoryRegistry(lambda: self.ledger.now_ms)
        made = contract_of("crm.set", undo=self.schedule.idempotency)
        declares = "input.value" if self.schedule.known == "writes" else ""
        self.contract: Contract = replace(made, captures=True, restores=COMPARE, writes=declares)
        self.step = Step("w", "set", "crm.set", "", "k", {"value": OURS}, captured=BEFORE)
        if self.schedule.known == "after-image" and self.schedule.happened:
            self.step = replace(self.step, written=OURS, written_known=True)

    def agent(self) -> None:
        """The call, and the failure behind it."""
        self.ledger.start()
        self.ledger.started("set", self.contract, captured=encode_payload(BEFORE))
        if self.schedule.happened:
            self.world = OURS
        if self.step.written_known:
            self.ledger.ended("set", StepStatus.SUCCEEDED, written=encode_payload(OURS))
        else:
            self.ledger.ended("set", StepStatus.UNKNOWN)
        self.ledger.said(WorkflowStatus.FAILED)

    def compensators(self) -> None:
        """Deliver each command when it comes, until the workflow is closed or a person is asked."""
        for delivery in range(12):
            self.ledger.wait(120_000, step_ms=1_000, until=lambda: self._commanded() or self.over())
            if self.over() or not self._commanded():
                break
            commands = self.ledger.of(UndoCommand)
            self.taken = len(commands)
            self._deliver(commands[-1], f"owner-{delivery}")
        while self.effects <= self.schedule.other_at < NEVER:
            self._moment()

    def _commanded(self) -> bool:
        return len(self.ledger.of(UndoCommand)) > self.taken

    def over(self) -> bool:
        return self.ledger.phase == "COMPENSATED" or "OPEN" in self.ledger.incidents().values()

    def _deliver(self, command: UndoCommand, owner: str) -> None:
        steps, answer, self.sent = decide(command, owner, "me"), None, []
        try:
            while True:
                answer = self._do(steps.send(answer))
                if self.effects == self.schedule.cut_at:
                    steps.close()
                    return
        except StopIteration:
            return

    def _moment(self) -> None:
        self.effects += 1
        if self.effects == self.schedule.other_at:
            self.world = THEIRS

    def _do(self, effect: Effect) -> Any:
        self._moment()
        now_ms = self.ledger.now_ms
        match effect:
            case Claim(requests=requests):
                return self.registry.claim_now(requests)
            case Renew() | Settle():
                return True
            case Write(facts=facts):
                return tuple(Written(self.ledger.append(fact)) for fact in facts)
            case Send(facts=facts):
                self.sent += [Written(self.ledger.append(fact)) for fact in facts]
                return None
            case AwaitSent():
                answers, self.sent = tuple(self.sent), []
                return answers
            case ReadBack():
                entries = self.ledger.entries[effect.from_offset : effect.to_offset + 1]
                return tuple(LedgerFact(e.offset, decode(e.value or b"")) for e in entries)  # type: ignore[arg-type]
            case ReadClock() | ReadWallClock():
                return now_ms
            case Wait():
                self.ledger.now_ms += effect.duration_ms
                return None
            case Compare():
                shows = compared(self.step, encode(self.contract), self.world)
                self.looked_at = self.effects if isinstance(shows, ShowsOurs) else NEVER
                return shows
            case CallUndo():
                return self._put_back()
            case _:
                raise AssertionError(effect)

    def _put_back(self) -> Succeeded | Uncertain:
        if self.world == THEIRS and not self.looked_at < self.schedule.other_at <= self.effects:
            self.lost.append("a newer value was overwritten")
        if self.world == BEFORE:
            self.lost.append("it was put back twice")
        self.world = BEFORE
        self.put_back += 1
        if self.schedule.answer_lost and self.put_back == 1:
            return Uncertain(Failure("X", "no answer"))
        return Succeeded()


def schedules() -> Iterator[Schedule]:
    cuts, others = (*range(1, 13), NEVER), (*range(13), NEVER)
    remotes = (Idempotency.NATURAL, Idempotency.NEITHER)
    for idempotency, known in itertools.product(remotes, ("after-image", "writes", "nothing")):
        for happened, cut_at, answer_lost, other_at in itertools.product((True, False), cuts, (False, True), others):
            if happened or not answer_lost:
                yield Schedule(idempotency, known, happened, cut_at, answer_lost, other_at)


def _played(schedule: Schedule) -> Play:
    play = Play(schedule)
    play.agent()
    if schedule.other_at == 0:
        play.world = THEIRS
    play.compensators()
    return play


@pytest.mark.parametrize("known", ["after-image", "writes", "nothing"])
def test_in_every_schedule_nobody_s_newer_value_is_lost_and_nothing_hangs(known: str) -> None:
    played = 0
    for schedule in schedules():
        if schedule.known != known:
            continue
        play = _played(schedule)
        assert not play.lost, (schedule, play.lost)
        assert play.over(), (schedule, play.ledger.phase)
        if schedule.other_at == NEVER:
            told = not schedule.happened or known != "nothing"
            assert (play.world == BEFORE) == told, schedule
            assert (play.ledger.phase == "COMPENSATED") == told, (schedule, play.ledger.incidents())
            assert play.put_back == (1 if schedule.happened and told else 0), schedule
        played += 1
    assert played > 1_000
