"""What was built on what: the rules of the order, and the counting against plain search, at any size."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tests.core.counting import Calls

from amends.processors.dependencies import WINDOW_OPEN, Dependencies
from amends.processors.state import Attempt, AttemptState, DataFlow, Step
from amends.schemas.data_flow import UNKNOWN_ID


def step(
    number: int,
    uses: tuple[str, ...] | None = None,
    makes: tuple[str, ...] | None = (),
    touches: tuple[str, ...] = (),
    *,
    state: AttemptState = AttemptState.SUCCEEDED,
) -> Step:
    flow = None if uses is None else DataFlow(uses, touches, makes)
    attempt = Attempt("a", state, 0, number, number)
    return Step(number, f"s{number}", "t", 0, number, attempts=(attempt,), flow=flow)


def built(*steps: Step, told: dict[int, tuple[int, ...]] | None = None) -> Dependencies:
    made = Dependencies()
    made.build((s, (told or {}).get(s.number, ()), True, WINDOW_OPEN) for s in steps)
    return made


def ready(made: Dependencies) -> set[int]:
    return {number for queue in made.ready.values() for _, _, number in queue}


def is_path(made: Dependencies, base: int, later: int) -> bool:
    waiting, seen = [base], {base}
    while waiting:
        for other in made.built_on(waiting.pop()):
            if other == later:
                return True
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return False


def test_a_step_that_uses_what_another_made_was_built_on_it() -> None:
    made = built(step(0, ("x",), ("id",)), step(1, ("y",)), step(2, ("id",)))
    assert is_path(made, 0, 2)
    assert not is_path(made, 0, 1)
    assert ready(made) == {1, 2}


def test_a_maker_that_started_later_is_no_base() -> None:
    made = built(step(0, ("id",), touches=("k",)), step(1, ("y",), ("other",), touches=("l",)))
    assert ready(made) == {0, 1}


def test_steps_that_touch_one_declared_key_are_in_order() -> None:
    made = built(step(0, touches=("k",), uses=()), step(1, touches=("l",), uses=()), step(2, touches=("k",), uses=()))
    assert is_path(made, 0, 2)
    assert ready(made) == {1, 2}


def test_a_shared_id_orders_unless_both_declare_what_they_touch() -> None:
    assert ready(built(step(0, ("c",)), step(1, ("c",)))) == {1}
    assert ready(built(step(0, ("c",), touches=("k",)), step(1, ("c",)))) == {1}
    assert ready(built(step(0, ("c",), touches=("k",)), step(1, ("c",), touches=("l",)))) == {0, 1}


def test_what_is_told_counts() -> None:
    made = built(step(0, ("a",)), step(1, ("b",)), told={1: (0,)})
    assert is_path(made, 0, 1)
    assert ready(made) == {1}


@pytest.mark.parametrize("flow", [None, (), (UNKNOWN_ID,), ("x", UNKNOWN_ID)])
def test_a_step_of_which_nobody_can_tell_is_in_order_with_all(flow: tuple[str, ...] | None) -> None:
    made = built(step(0, ("a",)), step(1, flow), step(2, ("b",)))
    assert is_path(made, 0, 1)
    assert is_path(made, 1, 2)
    assert is_path(made, 0, 2)


@pytest.mark.parametrize("makes", [None, (UNKNOWN_ID,)])
def test_a_step_whose_output_nobody_knows_comes_before_all_that_is_later(makes: tuple[str, ...] | None) -> None:
    made = built(step(0, ("a",)), step(1, ("b",), makes), step(2, ("c",)), step(3, ("d",)))
    assert is_path(made, 1, 2)
    assert is_path(made, 1, 3)
    assert not is_path(made, 0, 1)
    assert not is_path(made, 2, 3)


def test_a_step_that_did_not_happen_orders_nobody() -> None:
    made = built(step(0, ("a",)), step(1, None, state=AttemptState.FAILED), step(2, ("b",)))
    assert not is_path(made, 0, 2)


def test_a_path_through_a_closed_step_holds() -> None:
    made = built(step(0, ("x",), ("a",)), step(1, ("a",), ("b",)), step(2, ("b",)))
    made.put(step(1, ("a",), ("b",)), (), pending=False)
    assert ready(made) == {2}
    made.put(step(2, ("b",)), (), False)
    assert ready(made) == {0}


# --- against plain search ---------------------------------------------------------------------------------------------


def random_step(chance: random.Random, number: int) -> Step:
    names = [f"id{n}" for n in range(6)]
    uses = None if chance.random() < 0.08 else tuple(chance.sample(names, chance.randint(0, 2)))
    makes = None if chance.random() < 0.15 else tuple(chance.sample(names, chance.randint(0, 2)))
    touches = tuple(chance.sample(["k", "l", "m"], chance.choice((0, 0, 1))))
    state = AttemptState.FAILED if chance.random() < 0.1 else AttemptState.SUCCEEDED
    return step(number, uses, makes, touches, state=state)


def is_known(flow: DataFlow) -> bool:
    return bool(flow.uses or flow.touches) and UNKNOWN_ID not in (*flow.uses, *flow.touches)


def named_edges(steps: dict[int, Step], told: dict[int, tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """The rules of the module, pair by pair."""
    there = [s for n, s in sorted(steps.items()) if s.attempts[0].state is not AttemptState.FAILED]
    for at, base in enumerate(there):
        for later in there[at + 1 :]:
            if base.number in told.get(later.number, ()):
                yield base.number, later.number
                continue
            if is_ordered(base.flow, later.flow):
                yield base.number, later.number


def is_ordered(a: DataFlow | None, b: DataFlow | None) -> bool:
    if a is None or b is None or not is_known(a) or not is_known(b) or a.makes is None:
        return True
    if set(a.makes) & set(b.uses) or set(a.touches) & set(b.touches):
        return True
    both_declare = bool(a.touches and b.touches)
    return not both_declare and bool({*a.uses, *a.makes} & {*b.uses, *(b.makes or ())})


def reached(edges: set[tuple[int, int]], base: int) -> set[int]:
    found, waiting = set[int](), [base]
    while waiting:
        at = waiting.pop()
        for low, high in edges:
            if low == at and high not in found:
                found.add(high)
                waiting.append(high)
    return found


@pytest.mark.parametrize("seed", range(150))
def test_ready_is_what_plain_search_finds_whatever_changes(seed: int) -> None:
    chance = random.Random(seed)
    steps: dict[int, Step] = {}
    told: dict[int, tuple[int, ...]] = {}
    pending: dict[int, bool] = {}
    made = Dependencies()
    count = chance.randint(2, 9)
    for number in range(count):
        steps[number] = random_step(chance, number)
        told[number] = (chance.randrange(number),) if number and chance.random() < 0.15 else ()
        pending[number] = chance.random() < 0.8
    if chance.random() < 0.5:
        made.build((steps[n], told[n], pending[n], WINDOW_OPEN) for n in steps)
    else:
        for number in chance.sample(range(count), count):
            made.put(steps[number], (), pending[number])
        for number in range(count):
            made.put(steps[number], told[number], pending[number])
    for _ in range(12):
        edges = set(named_edges(steps, told))
        for base, later in edges:
            assert is_path(made, base, later), (seed, base, later)
        paths = {(a, b) for a in steps for b in made.built_on(a)}
        wanted = {n for n in steps if pending[n] and not any(pending[m] for m in reached(paths, n))}
        assert ready(made) == wanted, seed
        held_by_rule = {n for n in steps if pending[n] and not any(pending[m] for m in reached(edges, n))}
        assert ready(made) <= held_by_rule, seed
        number = chance.randrange(count)
        if chance.random() < 0.4:
            steps[number] = random_step(chance, number)
        else:
            pending[number] = not pending[number]
        made.put(steps[number], told[number], pending[number])


def one_maker_for_all(size: int) -> Iterator[Step]:
    yield step(0, ("x",), ("hub",))
    for number in range(1, size):
        yield step(number, ("hub",), (f"m{number}",), touches=(f"k{number}",))


def all_in_order(size: int) -> Iterator[Step]:
    for number in range(size):
        yield step(number)


def all_apart(size: int) -> Iterator[Step]:
    for number in range(size):
        yield step(number, (f"u{number}",), (f"m{number}",))


def test_the_window_that_closes_first_goes_first_and_then_the_later_step() -> None:
    made = Dependencies()
    windows = {0: 500, 1: WINDOW_OPEN, 2: 900, 3: WINDOW_OPEN}
    made.build((step(n, (f"u{n}",)), (), True, at_ms) for n, at_ms in windows.items())
    assert [number for _, _, number in made.ready["t"]] == [0, 2, 3, 1]


def test_lifo_orders_all_that_happened() -> None:
    made = Dependencies(lifo=True)
    made.build((step(n, (f"u{n}",)), (), True, WINDOW_OPEN) for n in range(4))
    assert ready(made) == {3}


@pytest.mark.parametrize("shape", [one_maker_for_all, all_in_order, all_apart])
def test_closing_a_step_costs_the_same_among_two_thousand(shape: object) -> None:
    assert callable(shape)

    def cost(size: int) -> float:
        steps = list(shape(size))
        made = built(*steps)
        chance = random.Random(size)
        calls = Calls()
        for _ in range(size):
            queue = made.ready["t"]
            number = queue[chance.randrange(len(queue))][2]
            with calls.counted():
                made.put(steps[number], (), False)
        assert not ready(made)
        return calls.made / size

    small, large = cost(200), cost(2_000)
    print(f"{small:g} calls, {large:g}")
    assert large < 1.5 * small + 20, (small, large)
