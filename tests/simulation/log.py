"""The log of a run of very many seeds: a line for each stretch of them, so that a run that was ended goes on behind the
last one, and what several runs have played is summed up."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

SEEDS_A_LINE = 2_000


@dataclass(frozen=True, slots=True)
class Played:
    """Seeds that were played one after the other: `took_s` by the wall clock, `spent_s` of CPU."""

    first: int
    runs: int
    broken: list[int]
    took_s: float
    spent_s: float
    commit: str

    def in_words(self) -> str:
        return (
            f"{self.runs} runs from seed {self.first}: {self.runs / self.took_s:.0f} runs/s, "
            f"{self.runs / self.spent_s:.0f} runs/s/core; broken: {', '.join(map(str, self.broken)) or 'none'}"
        )


def read(file: Path) -> list[Played]:
    """Return what was played; nothing where there is no log yet. A line that was cut off does not count."""
    played: list[Played] = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            played.append(Played(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return played


def write(file: Path, played: Played) -> None:
    with file.open("a") as log:
        log.write(json.dumps(asdict(played)) + "\n")


def left(first: int, runs: int, played: Iterable[Played]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of seeds that are still to be played, each as its first seed and how many."""
    done = {(each.first, each.runs) for each in played}
    return (stretch for stretch in _stretches(first, runs) if stretch not in done)


def summed(first: int, runs: int, played: Iterable[Played]) -> str:
    """Return in words what was played of a range of seeds."""
    by_stretch = {(each.first, each.runs): each for each in played}
    mine = [by_stretch[stretch] for stretch in _stretches(first, runs) if stretch in by_stretch]
    count, spent_s = sum(each.runs for each in mine), sum(each.spent_s for each in mine)
    commits = Counter[str]()
    for each in mine:
        commits[each.commit] += each.runs
    at = ", ".join(f"{n} at {commit}" for commit, n in commits.items())
    broken = sorted(seed for each in mine for seed in each.broken)
    took_s = sum(each.took_s for each in mine)
    return (
        f"{count} runs from seed {first} ({at}) in {took_s / 60:.1f} min: {count / took_s:.0f} runs/s, "
        f"{spent_s / count * 1000:.1f} ms of CPU each ({count / spent_s:.0f} runs/s/core); {len(broken)} broken"
        + "".join(f"\nbroken: {seed}" for seed in broken)
    )


def _stretches(first: int, runs: int) -> Iterator[tuple[int, int]]:
    for begins in range(first, first + runs, SEEDS_A_LINE):
        yield begins, min(SEEDS_A_LINE, first + runs - begins)


def commit() -> str:
    """Return the commit that is played, with a + where the tree differs from it; "" outside a repository."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude", "*"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip()
