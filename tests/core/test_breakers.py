"""The breaker of a tool, alone: when it opens, what it makes of time, and who is told."""

from __future__ import annotations

from amends.processors.breakers import (
    CLOSED,
    Breaker,
    BreakerTerms,
    closed,
    decode_breaker,
    encode_breaker,
    failed,
    incident_of,
    mended,
    tells_at_ms,
    told,
)
from amends.schemas.commands import IncidentState

TERMS = BreakerTerms(failures=3, pause_ms=1_000, pause_cap_ms=4_000, incident_ms=5_000)


def opened(at_ms: int = 1_000) -> Breaker:
    breaker = CLOSED
    for name in ("a", "b", "c"):
        breaker = failed(breaker, name, at_ms, at_ms, "TimeoutError: no", TERMS)
    return breaker


def test_it_opens_when_undos_of_so_many_workflows_failed() -> None:
    assert not failed(failed(CLOSED, "a", 1, 1, "", TERMS), "b", 1, 1, "", TERMS).is_open
    assert opened().is_open
    assert opened().retry_at_ms == 2_000


def test_one_workflow_alone_never_opens_it() -> None:
    breaker = CLOSED
    for at_ms in range(100):
        breaker = failed(breaker, "a", at_ms, at_ms, "", TERMS)
    assert not breaker.is_open


def test_an_undo_that_takes_between_failures_begins_the_count_anew() -> None:
    breaker = CLOSED
    for name in "abcdef":
        breaker = closed(failed(breaker, name, 1, 1, "", TERMS), 2)
    assert breaker == CLOSED


def test_a_success_of_a_tool_that_works_is_no_news() -> None:
    assert closed(CLOSED, 5) is CLOSED


def test_what_began_before_it_opened_makes_it_pause_no_longer() -> None:
    breaker = opened()
    assert failed(breaker, "d", 900, 2_500, "", TERMS) is breaker


def test_each_probe_that_fails_doubles_the_pause_up_to_its_cap() -> None:
    breaker, pauses = opened(), []
    for _ in range(4):
        at_ms = breaker.retry_at_ms + 10
        breaker = failed(breaker, "d", at_ms, at_ms, "", TERMS)
        pauses.append(breaker.retry_at_ms - at_ms)
    assert pauses == [2_000, 4_000, 4_000, 4_000]


def test_an_undo_that_takes_closes_it_and_what_had_begun_before_counts_for_nothing() -> None:
    breaker = closed(opened(), 3_000)
    assert not breaker.is_open
    assert failed(breaker, "x", 2_999, 9_000, "", TERMS) is breaker


def test_a_person_who_says_mended_has_it_tried_at_once() -> None:
    assert mended(opened(), "ann", 1_200).retry_at_ms == 1_200
    assert mended(CLOSED, "ann", 1_200) is CLOSED


def test_no_failures_no_breaker() -> None:
    never = BreakerTerms(failures=0)
    assert failed(CLOSED, "a", 1, 1, "", never) is CLOSED


def test_people_are_told_when_it_is_open_for_long_again_at_each_pause_and_when_it_closed() -> None:
    breaker = opened()
    assert tells_at_ms(breaker, TERMS) == 6_000
    breaker = told(breaker)
    assert tells_at_ms(breaker, TERMS) is None
    again = failed(breaker, "d", 7_000, 7_000, "", TERMS)
    assert tells_at_ms(again, TERMS) == 6_000
    over = closed(told(again), 9_000)
    assert tells_at_ms(over, TERMS) == 0
    assert tells_at_ms(told(over), TERMS) is None


def test_nobody_is_told_of_one_that_closed_before_long() -> None:
    assert tells_at_ms(closed(opened(), 2_000), TERMS) is None


def test_all_partitions_speak_of_one_incident_of_a_tool() -> None:
    first = incident_of("pay.charge", "pay", opened(), 7, 0, 9_000)
    second = incident_of("pay.charge", "pay", opened(5_000), 9, 3, 9_000)
    assert first.incident_id == second.incident_id != incident_of("x", "pay", opened(), 7, 0, 9_000).incident_id
    assert (first.state, first.workflow_id) == (IncidentState.OPEN, "")
    assert "TimeoutError: no" in first.detail


def test_it_is_kept_as_it_is() -> None:
    for breaker in (CLOSED, opened(), told(opened()), mended(opened(), "ann", 5), closed(told(opened()), 9)):
        assert decode_breaker(encode_breaker(breaker)) == breaker
