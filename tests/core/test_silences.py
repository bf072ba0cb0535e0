"""Silences of a partition: what they add to a heartbeat, and to what is folded from a Carry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amends.processors.timers import SILENCE_MIN_MS, Silences

LEASE_MS = 6_000


def heard(gaps: list[int], from_ms: int = 1) -> Silences:
    made, now_ms = Silences(), from_ms
    for gap_ms in [0, *gaps]:
        now_ms += gap_ms
        made.record(now_ms)
    return made


@given(st.lists(st.integers(LEASE_MS // 2 + 1, LEASE_MS - 1), max_size=50))
def test_who_writes_more_seldom_than_half_a_lease_puts_off_nobodys_end_for_ever(gaps: list[int]) -> None:
    """Found by the simulation: Carries, or another's heartbeats, in such a rhythm kept a dead agent RUNNING."""
    assert heard(gaps).heartbeat_due_ms(1, LEASE_MS) <= 1 + 2 * LEASE_MS


@given(st.lists(st.integers(LEASE_MS, 9 * LEASE_MS), max_size=20))
def test_an_outage_is_added_whole(gaps: list[int]) -> None:
    assert heard(gaps).heartbeat_due_ms(1, LEASE_MS) == 1 + LEASE_MS + sum(gaps)


@given(st.lists(st.integers(-LEASE_MS, 3 * LEASE_MS), min_size=1, max_size=30), st.data())
def test_who_begins_to_read_anywhere_measures_the_same_from_there_on(steps: list[int], data: st.DataObject) -> None:
    """Clocks that go back, too. Seen by the simulation (seed 8065454): what was folded again from a later place held an
    agent's silence for 4 ms shorter than the first fold, and accepted another Timeout."""
    times = [10**9]
    for step_ms in steps:
        times.append(times[-1] + step_ms)
    armed = data.draw(st.integers(0, len(times) - 1), label="armed by record")
    first = data.draw(st.integers(0, armed), label="who begins late reads from")
    whole, late = Silences(), Silences()
    for number, at_ms in enumerate(times):
        whole.record(at_ms)
        if number >= first:
            late.record(at_ms)
    assert late.heartbeat_due_ms(times[armed], LEASE_MS) == whole.heartbeat_due_ms(times[armed], LEASE_MS)


@given(st.lists(st.integers(1, 3 * LEASE_MS), min_size=1, max_size=30), st.data())
def test_a_fold_that_begins_late_learns_of_a_carry_what_was_before(gaps: list[int], data: st.DataObject) -> None:
    whole = heard(gaps)
    first = data.draw(st.integers(0, len(gaps)), label="the ledger begins at")
    late = heard(gaps[first:], from_ms=1 + sum(gaps[:first]))
    late.learn(whole)
    assert late.gaps == whole.gaps == sorted(gap for gap in whole.gaps if gap[1] >= SILENCE_MIN_MS)


@given(st.lists(st.integers(1, 3 * LEASE_MS), min_size=1, max_size=30), st.data())
def test_what_waited_is_judged_by_what_stands_before_it(gaps: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(gaps)), label="records before it")
    before = heard(gaps[:count])
    found = heard(gaps).heartbeat_due_ms(1, LEASE_MS, before.last_at_ms)
    assert found == before.heartbeat_due_ms(1, LEASE_MS)
