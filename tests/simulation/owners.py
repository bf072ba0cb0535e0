"""Processors: the real engine in memory around the real fold, one atom at a time, with takeovers and zombies."""

from __future__ import annotations

from collections.abc import Callable, Generator

from tests.simulation.pipeline import GROUP, Pipeline
from tests.simulation.schedule import Process

from amends.processors.engine import LedgerHoleError
from amends.processors.memory import MemoryEngine, StoredRecord
from amends.processors.partition import Partition

SESSION_MS = 3_000


def next_but_carries_ms(fold: Partition) -> int | None:
    """Return when a fold has something to do that is not for ever: what is open is carried again and again."""
    if fold._refolds.is_wanted:
        return 0
    due = (fold._wakes.next_ms(), fold._leases.next_ms(), fold._admission.next_due_ms(fold._looked_at_ms))
    return min((at_ms for at_ms in due if at_ms is not None), default=None)


class ProcessorProcess(Process):
    """One process that may own a partition, always the same one."""

    def __init__(self, pipeline: Pipeline, name: str, number: int) -> None:
        super().__init__("processor", name)
        self.number = number
        self._pipeline = pipeline
        self.engine = MemoryEngine(
            pipeline.broker,
            pipeline.topics,
            lambda partition: Partition(partition, pipeline.terms),
            self.now_ms,
            group=GROUP,
        )
        self.skew_ms = 0
        self.refused: Callable[[], None] = lambda: None
        self._sleeps = False
        self._tenure = 0
        pipeline.broker.listeners.setdefault(pipeline.topics.ledger, []).append(self._came)

    def now_ms(self) -> int:
        """What this machine's clock shows."""
        return self._pipeline.schedule.now_ms + self.skew_ms

    def take(self) -> None:
        """Become the owner of the partition; whoever had it is a zombie from now on."""
        self._tenure += 1
        self._sleeps = False
        own, tenure = self._own(), self._tenure

        def go_on() -> None:
            self._step(own, tenure, go_on)

        go_on()

    def owns(self) -> bool:
        return self.alive and self.engine.holds(self.number)

    def idle(self) -> bool:
        """Whether nothing is left to do or to wait for."""
        return self._sleeps and next_but_carries_ms(self.partition()) is None

    def is_at_work(self) -> bool:
        """Whether it owns the partition, and neither it nor the ledger is asleep."""
        now_ms = self._pipeline.schedule.now_ms
        return self.owns() and max(self.frozen_until_ms, self._pipeline.outage_until_ms) <= now_ms

    def partition(self) -> Partition:
        fold = self.engine.tenure(self.number).fold
        assert isinstance(fold, Partition)
        return fold

    def _own(self) -> Generator[str | int, None, None]:
        """Each yield is a point at which the process may die or freeze; a number is how long it sleeps at most."""
        engine, pipeline = self.engine, self._pipeline
        yield "take"
        engine.take(self.number)
        while engine.holds(self.number):
            yield "fold"
            try:
                folded = engine.fold_next(self.number)
            except LedgerHoleError:
                if not self._is_fenced_off():
                    raise
                engine.lose(self.number)  # it slept for longer than facts are kept, and ends itself
                return
            busy = folded
            if folded and pipeline.happens(0.3):
                continue  # several facts before anything is sent
            if not folded:
                engine.tick(self.number)
            while True:
                yield "send"
                sent = engine.send_next(self.number)
                if sent is None:
                    break
                busy = True
                if pipeline.schedule.tells:
                    pipeline.schedule.say(self.name, f"sends to {sent.topic} {sent.offset}")
                if pipeline.happens(pipeline.mix.duplicate):
                    self._again(sent)
            if not folded or pipeline.happens(0.3):
                yield "checkpoint"
                engine.checkpoint(self.number)
            if not busy and self._has_read_all():
                due_ms = engine.tenure(self.number).fold.next_due_ms()
                yield 600_000 if due_ms is None else max(1, due_ms - self.now_ms())

    def _is_fenced_off(self) -> bool:
        """Whether somebody has taken the partition since this one did."""
        current = self._pipeline.broker._epochs[self.engine._transactional_id(self.number)]
        return self.engine._held[self.number].epoch != current

    def _has_read_all(self) -> bool:
        engine, pipeline = self.engine, self._pipeline
        if not engine.holds(self.number):
            return False
        return engine.tenure(self.number).next_offset == pipeline.broker.end(pipeline.topics.ledger, self.number)

    def _again(self, sent: StoredRecord) -> None:
        """A record that a retry of the client, or a replay, appends a second time."""

        def append() -> None:
            self._pipeline.broker.append(
                sent.topic, key=sent.key, value=sent.value, partition=sent.partition, headers=sent.headers
            )

        self._pipeline.schedule.after(self._pipeline.chance.choice((1, 50, 3_000)), append)

    def _step(self, own: Generator[str | int, None, None], tenure: int, go_on: Callable[[], None]) -> None:
        pipeline = self._pipeline
        schedule = pipeline.schedule
        if tenure != self._tenure:
            return
        if pipeline.outage_until_ms > schedule.now_ms:
            schedule.after(pipeline.outage_until_ms - schedule.now_ms, go_on, self)
            return
        try:
            atom = next(own)
        except StopIteration:
            schedule.say(self.name, "is told that somebody else owns the partition")
            self.refused()
            return
        if isinstance(atom, int):
            self._sleeps = True
            self._sleeper = lambda: self._wake(tenure, go_on)
            schedule.after(atom, self._sleeper, self)
            return
        if schedule.passes(self, atom):
            schedule.after(pipeline.chance.randint(0, 2) if pipeline.mix.slow else 0, go_on, self)

    def _wake(self, tenure: int, go_on: Callable[[], None]) -> None:
        if self._sleeps and tenure == self._tenure:
            self._sleeps = False
            go_on()

    def _came(self, record: StoredRecord) -> None:
        if self._sleeps and record.partition == self.number:
            self._pipeline.schedule.after(1, self._sleeper, self)
