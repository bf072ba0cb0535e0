"""Every promise holds with budgets so tight that most undos wait, and breakers that open at the first failure."""

from __future__ import annotations

from functools import partial

import pytest
from tests.simulation import pipeline
from tests.simulation.run import play

from amends.processors.admission import Admission
from amends.processors.breakers import BreakerTerms
from amends.processors.terms import Terms
from amends.schemas.commands import Command

RUNS = 60
BREAKER = BreakerTerms(failures=1, pause_ms=1_500, pause_cap_ms=6_000, incident_ms=3_000)


def test_tight_budgets_hold_undos_up_and_break_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    held_back, admit = 0, Admission.admit

    def counted(self: Admission, slot: object, workflow: object, commands: list[Command], *more: object) -> object:
        nonlocal held_back
        admitted = admit(self, slot, workflow, commands, *more)  # type: ignore[arg-type]
        held_back += len(commands) - len(admitted)
        return admitted

    monkeypatch.setattr(Admission, "admit", counted)
    monkeypatch.setattr(pipeline, "Terms", partial(Terms, breaker=BREAKER, tool_undos_max=1, lane_undos_max=1))
    for seed in range(710_000, 710_000 + RUNS):
        assert not play(seed).broken, f"seed {seed}"
    assert held_back > RUNS / 4
