"""Which ledger partitions are followed: those of the lanes this worker holds, and longer where a command still runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable


class Followed:
    """Counts who needs a partition. To be used from one loop.

    Args:
        follow: begins to follow a partition; twice is harmless.
        unfollow: ends that.
        runs_on: whether a command of the partition is being carried out; it still has to read back.
        later: calls a function in a while.
    """

    def __init__(
        self,
        follow: Callable[[int], None],
        unfollow: Callable[[int], None],
        runs_on: Callable[[int], bool],
        later: Callable[[Callable[[], None]], object],
    ) -> None:
        self._follow = follow
        self._unfollow = unfollow
        self._runs_on = runs_on
        self._later = later
        self._needed: Counter[int] = Counter()
        self._looks_again = False

    def came(self, partitions: Iterable[int]) -> None:
        """A lane got these."""
        for partition in partitions:
            self._needed[partition] += 1
            self._follow(partition)

    def went(self, partitions: Iterable[int]) -> None:
        """A lane lost these."""
        for partition in partitions:
            self._needed[partition] -= 1
        self._let_go()

    def _let_go(self) -> None:
        """Follow no longer what went and is quiet, and look again at the rest: once for all of it, however often
        partitions move meanwhile, or the looks would multiply."""
        left = [partition for partition, count in self._needed.items() if count <= 0]
        busy = [partition for partition in left if self._runs_on(partition)]
        for partition in left:
            if partition not in busy:
                del self._needed[partition]
                self._unfollow(partition)
        if busy and not self._looks_again:
            self._looks_again = True
            self._later(self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self._let_go()
