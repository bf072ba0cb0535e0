"""The watchdog and the health of a processor: what counts as progress."""

from __future__ import annotations

import threading

from amends.processors.health import ProcessorHealth
from amends.processors.watchdog import Progress, Watchdog, WatchdogThread

STALL_MS = 10_000


def verdicts(*looks: tuple[int, Progress]) -> list[str | None]:
    watchdog = Watchdog(STALL_MS)
    return [watchdog.verdict(now_ms, seen) for now_ms, seen in looks]


def test_facts_that_wait_while_none_is_folded_end_the_process() -> None:
    first, last = verdicts((0, Progress(1, folded=5, lag=3)), (10_000, Progress(2, folded=5, lag=3)))
    assert first is None
    assert last is not None
    assert "3 facts wait" in last


def test_an_idle_processor_goes_on() -> None:
    assert verdicts((0, Progress(1, lag=0)), (60_000, Progress(2, lag=0)))[-1] is None


def test_a_broker_that_cannot_be_asked_is_no_reason_to_end() -> None:
    assert verdicts((0, Progress(1, lag=None)), (60_000, Progress(2, lag=None)))[-1] is None


def test_folding_under_lag_is_progress() -> None:
    looks = [(n * 5_000, Progress(n, folded=n, lag=100)) for n in range(10)]
    assert verdicts(*looks) == [None] * 10


def test_restoring_is_progress() -> None:
    looks = [(n * 5_000, Progress(n, restored=n * 1_000, lag=100, taking=(0,))) for n in range(10)]
    assert verdicts(*looks) == [None] * 10


def test_a_loop_that_never_comes_round_ends_the_process_whatever_the_lag() -> None:
    last = verdicts((0, Progress(7, lag=0)), (10_000, Progress(7, lag=0)))[-1]
    assert last is not None
    assert "never returned" in last


def test_a_checkpoint_that_never_ends_ends_the_process_though_facts_are_folded() -> None:
    looks = [(n * 1_000, Progress(n, folded=n, kept=n, committing=((0, n), (3, 7)))) for n in range(11)]
    *before, last = verdicts(*looks)
    assert before == [None] * 10
    assert last is not None
    assert "checkpoints of partitions [3] have not ended for 10000 ms" in last


def test_checkpoints_that_end_one_after_the_other_are_progress_however_often_one_is_under_way() -> None:
    assert verdicts(*((n * 5_000, Progress(n, committing=((0, n),))) for n in range(10))) == [None] * 10


def test_the_watchdogs_thread_ends_the_process_that_stalls() -> None:
    ended: list[str] = []
    done = threading.Event()

    def end(reason: str) -> None:
        ended.append(reason)
        done.set()

    times = iter(range(0, 1_000_000, 40))
    watchdog = WatchdogThread(100, lambda: Progress(1, lag=1), lambda: next(times), end=end)
    watchdog.start()
    assert done.wait(5)
    watchdog.stop()
    assert len(ended) == 1


def test_health_turns_bad_without_progress_and_good_again_with_it() -> None:
    seen = Progress(1, folded=1, lag=4)
    now_ms = 0
    health = ProcessorHealth(lambda: seen, STALL_MS, lambda: now_ms)
    assert health().healthy
    now_ms = STALL_MS
    assert not health().healthy
    seen = Progress(2, folded=5, lag=0)
    assert health().healthy


def test_a_processor_that_has_not_begun_is_not_healthy() -> None:
    assert not ProcessorHealth(Progress, STALL_MS, lambda: 0)().healthy


def test_a_partition_that_stands_still_among_others_that_move_ends_the_process() -> None:
    looks = [
        (n * 1_000, Progress(n, folded=n, lag=9, partitions=(0, 1), waiting=((0, n, 6), (1, 7, 3)))) for n in range(11)
    ]
    *before, last = verdicts(*looks)
    assert before == [None] * 10
    assert last is not None
    assert "no fact was folded in partitions [1] for 10000 ms" in last


def test_a_partition_where_nothing_waits_or_of_which_nobody_knows_may_stand() -> None:
    idle = [(n * 1_000, Progress(n, folded=n, lag=6, waiting=((0, n, 6), (1, 7, 0)))) for n in range(20)]
    assert verdicts(*idle) == [None] * 20
    away = [(n * 1_000, Progress(n, folded=n, lag=6, waiting=((1, 7, 3),) if n % 9 else ())) for n in range(20)]
    assert verdicts(*away) == [None] * 20
