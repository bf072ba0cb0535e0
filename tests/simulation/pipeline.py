"""The pipeline on one ledger partition in virtual time: broker, registry, remotes, and how long everything takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from tests.simulation.callbacks import Doors
from tests.simulation.chances import Mishaps, Mix
from tests.simulation.decoding import encoded
from tests.simulation.schedule import Process, Schedule
from tests.simulation.world import SETTLE_MS, Tool, World

from amends.compensators.registry import MemoryRegistry
from amends.processors.memory import MemoryBroker, StoredRecord
from amends.processors.terms import Terms
from amends.schemas.facts import Fact, Resolution, StepEvent, Timeout, UndoEvent, WorkflowEvent
from amends.schemas.keys import partition_for
from amends.schemas.topics import Topics

LANDS_MAX_MS = SETTLE_MS * 6 // 10
LAG_MAX_MS = SETTLE_MS // 3
GROUP = "amends"
REPEAT_MS = 1_500
CARRY_AGAIN_MS = 1_000


class Broker(MemoryBroker):
    """The broker in memory, which tells who waits for a topic that something came."""

    def __init__(self, partitions: int, now_ms: Callable[[], int]) -> None:
        super().__init__(partitions, now_ms)
        self.listeners: dict[str, list[Callable[[StoredRecord], None]]] = {}
        self._gone: dict[tuple[str, int], list[StoredRecord]] = {}

    def append(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> StoredRecord:
        stored = super().append(topic, key=key, value=value, partition=partition, headers=headers)
        for listener in self.listeners.get(topic, ()):
            listener(stored)
        return stored

    def forget(self, topic: str, partition: int, before_offset: int) -> None:
        records = self.read(topic, partition)
        super().forget(topic, partition, before_offset)
        kept_from = self.start(topic, partition)
        self._gone.setdefault((topic, partition), []).extend(r for r in records if r.offset < kept_from)

    def whole(self, topic: str, partition: int) -> list[StoredRecord]:
        """Return all that ever stood on a topic, what was forgotten included."""
        return self._gone.get((topic, partition), []) + self.read(topic, partition)

    def leave_behind(self, topics: Topics, partition: int) -> None:
        """Forget what processors have kept of a partition, and how far they had come."""
        self.forget(topics.changelog(), partition, self.end(topics.changelog(), partition))
        self._committed.pop((GROUP, topics.ledger, partition), None)


class Pipeline:
    """What all processes of a run share."""

    def __init__(self, schedule: Schedule, mix: Mix, chance: Random, tools: Iterable[Tool], mishaps: Mishaps) -> None:
        self.schedule = schedule
        self.mix = mix
        self.mishaps = mishaps
        self.chance = chance
        self.topics = Topics(lanes=("default",))
        self.terms = Terms(
            self.topics,
            frozenset({"default"}),
            command_repeat_ms=REPEAT_MS,
            grace_ms=mix.grace_ms,
            carry_after_ms=mix.retention_ms // 4 or None,
            carry_again_ms=CARRY_AGAIN_MS,
            partitions=mix.partitions,
            **mix.budgets,
        )
        self.broker = Broker(mix.partitions, self._append_time_ms)
        self.registry = MemoryRegistry(lambda: schedule.now_ms)
        self.world = World()
        self.doors = Doors(self)
        self.tools = {tool.name: tool for tool in tools}
        self.outage_until_ms = 0  # the ledger takes nothing until then
        self.calm = False  # no more faults: what is left must come to its end

    def _append_time_ms(self) -> int:
        jitter_ms = self.mix.jitter_ms
        return self.schedule.now_ms + (self.chance.randint(-jitter_ms, jitter_ms) if jitter_ms else 0)

    def partition_of(self, workflow_id: str) -> int:
        """Return where the facts of a workflow stand."""
        partitions = self.mix.partitions
        return 0 if partitions == 1 else partition_for(workflow_id.encode(), partitions)

    def happens(self, rate: float) -> bool:
        return not self.calm and rate > 0 and self.chance.random() < rate and self.mishaps.happen()

    def delay_ms(self, high_ms: int = 4) -> int:
        """Return how long a message is under way."""
        if self.happens(self.mix.slow):
            return self.chance.choice((self.chance.randint(20, 400), self.chance.randint(200, 2_500)))
        return self.chance.randint(1, high_ms) if self.mix.slow else 1

    def _repeat(self, key: bytes, data: bytes, fact: Fact) -> None:
        wait_ms = self.outage_until_ms - self.schedule.now_ms
        if wait_ms > 0:  # the ledger takes nothing
            self.schedule.after(wait_ms + self.delay_ms(), lambda: self._repeat(key, data, fact))
            return
        stored = self.broker.append(
            self.topics.ledger, key=key, value=data, partition=self.partition_of(fact.workflow_id)
        )
        self.schedule.say(self.ledger_name(stored.partition), f"{stored.offset}: again {in_words(fact)}")

    def ledger_name(self, partition: int) -> str:
        """Return what a partition of the ledger is called in stories."""
        return "ledger" if self.mix.partitions == 1 else f"ledger {partition}"

    def landing_ms(self, *, uncertain: bool) -> int:
        """Return how long a request is under way to a remote: a remote shows an effect within `settle_ms` (A1)."""
        if uncertain and self.chance.random() < 0.5:
            return self.chance.randint(1, LANDS_MAX_MS)
        return min(self.delay_ms(), LANDS_MAX_MS)

    def write(self, process: Process, fact: Fact, told: Callable[[StoredRecord | bool], None]) -> None:
        """Append a fact to the ledger and tell the sender: the record, or whether it is certain that none stands there.

        What was sent first stands first; it stands there whether or not the sender lives to hear of it.
        """
        schedule, mix = self.schedule, self.mix
        if self.happens(mix.write_refused):
            schedule.after(self.delay_ms(), lambda: told(True), process)
            return
        lost = self.happens(mix.ack_lost)
        if lost and self.chance.random() < 0.5:
            schedule.after(self.delay_ms(), lambda: told(False), process)
            return
        data = encoded(fact)
        key, partition = fact.workflow_id.encode(), self.partition_of(fact.workflow_id)
        at_ms = max(schedule.now_ms + self.delay_ms(), process.written_at_ms)
        if at_ms < self.outage_until_ms:
            at_ms = self.outage_until_ms + self.delay_ms()
        process.written_at_ms = at_ms
        answer_ms = self.delay_ms()

        def arrive() -> None:
            stored = self.broker.append(self.topics.ledger, key=key, value=data, partition=partition)
            if schedule.tells:
                schedule.say(self.ledger_name(partition), f"{stored.offset}: {in_words(fact)} (from {process.name})")
            if not lost:
                schedule.after(answer_ms, lambda: told(stored), process)

        schedule.after(at_ms - schedule.now_ms, arrive)
        if self.happens(mix.repeated):  # at least once: a retry somewhere below, or a replay
            again_ms = self.chance.choice(mix.late_ms)
            schedule.after(at_ms - schedule.now_ms + again_ms, lambda: self._repeat(key, data, fact))
        if lost:
            schedule.after(answer_ms, lambda: told(False), process)


def in_words(fact: Fact) -> str:
    """Return a fact as a line of the story."""
    match fact:
        case StepEvent():
            what = f"{fact.call_id or 'step ' + fact.step_id[:6]} ({fact.tool_name}) {fact.status}"
            return f"{what}, attempt {fact.attempt}, epoch {fact.epoch}"
        case WorkflowEvent():
            to = f" {fact.savepoint}" if fact.savepoint else ""
            return f"{fact.workflow_id} {fact.status}{to}, epoch {fact.epoch}"
        case UndoEvent():
            which = f"attempt {fact.generation}/{fact.attempt} by {fact.owner}"
            return f"undo of {fact.tool_name} ({fact.step_id[:6]}) {fact.status}, {which}"
        case Resolution():
            about = f"step {fact.step_id[:6]}" if fact.step_id else fact.workflow_id
            return f"{fact.by} says {fact.decision} of {about} {', '.join(fact.attempts)}".rstrip()
        case Timeout():
            return f"{fact.kind} of {fact.workflow_id} ran out, epoch {fact.epoch}"
        case _:
            return f"{type(fact).__name__} {fact.workflow_id}"
