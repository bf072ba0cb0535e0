"""Time in the fold: silences of a partition, and what is due.

Rules
- Time is the broker's append time. A Timeout is a proposal; the fold accepts it if its own append time is past due and
  the fact that armed it is still the last.
- A silence is a gap between consecutive records of a partition, Timeouts included. One longer than half a lease
  extends a heartbeat armed before it by its length: after an outage nobody is failed at once, and a lone dead agent is
  found after two leases, because a refused Timeout is itself a record and splits the silence that follows. Silences
  shorter than a lease extend it by one lease at most, together: where others write that seldom, each of their records
  would put off what was due, for ever.
- A timer due at T fires once every fact appended before T is folded: late, never early, never stopped by lag.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SILENCE_MIN_MS = 200
"""Shorter gaps are not kept: they matter only to leases under 400 ms."""
SILENCES_MAX = 4_096
_RELEVANT_FOR = 256
"""A gap is dropped once it is this many times its own length ago: a lease it could extend is at most twice the gap."""


@dataclass(slots=True)
class Silences:
    """Gaps of one partition, oldest first: (append time of the record that ended it, length in ms)."""

    last_at_ms: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def record(self, at_ms: int) -> None:
        """Take note of a record appended at `at_ms`.

        Where time went back (a clock had jumped, or another broker's is behind), the silences that ended later were no
        longer than till now. A silence is the distance to the record before, whatever stands before that one: who
        begins to read anywhere measures the same from there on.
        """
        while self.gaps and at_ms < self.gaps[-1][0]:
            self._shorten(at_ms)
        gap_ms = at_ms - self.last_at_ms
        if self.last_at_ms and gap_ms >= SILENCE_MIN_MS:
            self.gaps.append((at_ms, gap_ms))
            if len(self.gaps) > SILENCES_MAX:
                self._prune(at_ms)
        self.last_at_ms = at_ms

    def learn(self, other: Silences) -> None:
        """Take over the silences that are known elsewhere and not here: what a Carry holds of before the ledger's
        beginning."""
        unknown = [gap for gap in other.gaps if not any(_overlap(gap, known) for known in self.gaps)]
        self.gaps = sorted([*self.gaps, *unknown])

    def heartbeat_due_ms(self, armed_at_ms: int, lease_ms: int, as_of_ms: int | None = None) -> int:
        """Return when a heartbeat armed at `armed_at_ms` runs out, as far as the partition was read, or as it was at
        `as_of_ms`: what waited to be folded is judged by what stands before it."""
        due_ms = armed_at_ms + lease_ms
        short_ms = 0
        for ended_ms, gap_ms in reversed(self.gaps):
            if ended_ms <= armed_at_ms:
                break
            if as_of_ms is not None and ended_ms > as_of_ms:
                continue
            if gap_ms >= lease_ms:
                due_ms += gap_ms
            elif gap_ms * 2 > lease_ms:
                short_ms += gap_ms
        return due_ms + min(short_ms, lease_ms)

    def _shorten(self, at_ms: int) -> None:
        ended_ms, gap_ms = self.gaps.pop()
        gap_ms -= ended_ms - at_ms
        if gap_ms >= SILENCE_MIN_MS:
            self.gaps.append((at_ms, gap_ms))

    def _prune(self, now_ms: int) -> None:
        kept = [(at, gap) for at, gap in self.gaps if now_ms - at < gap * _RELEVANT_FOR]
        self.gaps = kept[-SILENCES_MAX // 2 :]


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] - one[1] < other[0] and other[0] - other[1] < one[0]
