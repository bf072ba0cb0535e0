"""Alarms ring at the time that was last set, whatever was set before, and hold no more than is awaited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amends.processors.alarms import Alarms
from amends.processors.slots import Slot

TIMES = st.one_of(st.none(), st.integers(0, 30))


def slots(count: int) -> list[Slot]:
    return [Slot(b"w%d" % number, number, b"w%d" % number) for number in range(count)]


@given(st.lists(st.one_of(st.tuples(st.integers(0, 3), TIMES), st.integers(0, 30)), max_size=60))
def test_alarms_ring_as_a_list_that_is_searched_each_time_would(asked: list[tuple[int, int | None] | int]) -> None:
    alarms, held = Alarms(), slots(4)
    awaited: dict[int, tuple[int, int]] = {}  # by number of the slot: when, and when that was set
    for moment, each in enumerate(asked):
        if isinstance(each, tuple):
            number, at_ms = each
            alarms.set(held[number], at_ms)
            if at_ms is None:
                awaited.pop(number, None)
            elif number not in awaited or awaited[number][0] != at_ms:
                awaited[number] = (at_ms, moment)
        else:
            soonest = min(awaited, key=lambda n: awaited[n], default=None)
            rings = soonest is not None and awaited[soonest][0] <= each
            assert alarms.take(each) is (held[soonest] if rings and soonest is not None else None)
            if rings and soonest is not None:
                del awaited[soonest]
        assert alarms.next_ms() == min((at_ms for at_ms, _ in awaited.values()), default=None)
        assert {s.started for s in alarms.later_than(7)} == {n for n, (at_ms, _) in awaited.items() if at_ms > 7}


def test_an_alarm_that_is_put_off_again_and_again_takes_no_more_room() -> None:
    alarms, held = Alarms(), slots(3)
    for now_ms in range(1_000):
        for slot in held:
            alarms.set(slot, now_ms + 30_000)
    assert len(alarms._heap) == len(held)
    assert alarms.next_ms() == 30_999
