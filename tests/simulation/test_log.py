"""The log of long runs of seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation import log
from tests.simulation.log import Played

if TYPE_CHECKING:
    from pathlib import Path


def played(first: int, runs: int = log.SEEDS_A_LINE, *broken: int) -> Played:
    return Played(first, runs, list(broken), 2.0, 4.0, "abc")


def test_a_run_that_was_ended_goes_on_behind_what_it_had_played(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert list(log.left(10, 5_000, log.read(file))) == [(10, 2_000), (2_010, 2_000), (4_010, 1_000)]
    log.write(file, played(10))
    log.write(file, played(4_010, 1_000, 4_500))
    with file.open("a") as half:
        half.write('{"first": 2010, "runs"')
    assert list(log.left(10, 5_000, log.read(file))) == [(2_010, 2_000)]


def test_what_several_runs_have_played_is_summed_up_with_all_that_was_broken() -> None:
    both = [played(0), played(2_000, 1_000, 2_345), played(2_000, 2_000), played(1_000_000, 1_000, 1_000_007)]
    words = log.summed(0, 3_000, both)
    assert words.startswith("3000 runs from seed 0 (3000 at abc) in 0.1 min: 750 runs/s, 2.7 ms of CPU each (375 runs")
    assert words.endswith("; 1 broken\nbroken: 2345")
