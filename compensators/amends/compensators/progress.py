"""What of a partition may be committed: the contiguous prefix of what was taken and is done. Pure."""

from __future__ import annotations

from collections import deque


class PartitionProgress:
    """One tenure of one partition, from its assignment to its revocation. Offsets are taken in order."""

    __slots__ = ("_done", "_taken", "position")

    def __init__(self) -> None:
        self._taken: deque[int] = deque()
        self._done: set[int] = set()
        self.position: int | None = None
        """The next offset to read, once everything before it is done; None while nothing is."""

    def take(self, offset: int) -> None:
        """A record was handed out."""
        assert not self._taken or offset > self._taken[-1], f"{offset} comes after {self._taken[-1]}"
        self._taken.append(offset)

    def done(self, offset: int) -> None:
        """All that must be written because of the record is written."""
        self._done.add(offset)
        while self._taken and self._taken[0] in self._done:
            first = self._taken.popleft()
            self._done.discard(first)
            self.position = first + 1

    @property
    def open(self) -> int:
        return len(self._taken)
