"""Where the Faust engine stands, for whoever watches it: the watchdog, health and metrics."""

from __future__ import annotations

from amends.processors.faust_asking import Asking
from amends.processors.faust_holding import Holding
from amends.processors.serving import Serving, waiting_of
from amends.processors.watchdog import Progress

LAG_EVERY_MS = 5_000


class Figures:
    """Counts in Faust's loop; `progress` may be asked for by any thread."""

    def __init__(self, asking: Asking, serving: Serving, holding: Holding) -> None:
        self._asking = asking
        self._serving = serving
        self._holding = holding
        self._lag_at_ms = 0
        self._lag: int | None = None
        self._ends: dict[int, int] = {}  # of the ledger, as last asked for
        self._turns = 0
        self.folded = 0
        """Facts folded since the start."""
        self.restored = 0
        """Changelog records read since the start; counted in the thread that reads."""
        self.progress = Progress()
        """Where the loop last was."""

    def is_lag_due(self, now_ms: int) -> bool:
        """Return whether `look_at_lag` is to be called; True once for each time."""
        if now_ms < self._lag_at_ms:
            return False
        self._lag_at_ms = now_ms + LAG_EVERY_MS
        return True

    async def look_at_lag(self) -> None:
        """Ask how many facts wait."""
        held = [keeper.partition for keeper in self._holding]
        ends = await self._asking.ledger_ends(held) if held else {}
        self._ends = {partition: end.offset for partition, end in ends.items()}
        if not held:
            self._lag = await self._asking.idle_lag()
        else:
            self._lag = sum(waits for _, _, waits in self._waiting()) if ends else None

    def report(self) -> None:
        """The loop came round."""
        self._turns += 1
        held = sorted(self._holding, key=lambda keeper: keeper.partition)
        self.progress = Progress(
            turns=self._turns,
            folded=self.folded,
            kept=self._holding.kept,
            lag=self._lag,
            waiting=tuple(self._waiting()),
            partitions=tuple(keeper.partition for keeper in held),
            taking=self._holding.taking,
            restored=self.restored,
            unconfirmed=self._serving.unconfirmed,
            emitted=self._serving.emitted,
            refused=self._holding.refused,
            committing=tuple((keeper.partition, keeper.begun) for keeper in held if keeper.is_committing),
        )

    def _waiting(self) -> list[tuple[int, int, int]]:
        return waiting_of((keeper.tenure for keeper in self._holding), self._ends)
