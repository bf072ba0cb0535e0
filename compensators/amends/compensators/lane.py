"""The thread that consumes one undo lane: it takes commands, hands them to the loop, and commits what is done.

No undo ever runs in it, so the group hears of this member however long a handler takes. Only the contiguous prefix of
done commands is committed; when a partition goes, what was not begun is left to its next owner, and what was begun ends
here (its STARTED stands on the ledger, so the next owner loses the read back).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from amends.compensators.clock import lease_clock_ms
from amends.compensators.progress import PartitionProgress
from amends.kafka.consumer import GroupConsumer
from amends.kafka.errors import AccessRefused, KafkaFault, OwnershipLost, RecordGone, TopicsWrong
from amends.kafka.owned import GATHER_MS
from amends.kafka.records import Record, TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.commands import Command, ProbeCommand, ResendCommand, UndoCommand
from amends.schemas.keys import record_key
from amends.schemas.slots import quick

log = logging.getLogger(__name__)

POLL_MS = 50
COMMIT_MS = 100
AFTER_FAULT_MS = 500


@dataclass(frozen=True, slots=True)
class UnreadableCommand:
    """A record of an undo lane that is no command."""

    reason: str


def command_of(record: Record) -> Command | UnreadableCommand:
    """Return the command in a record of a lane. Raises nothing, whatever the bytes are."""
    try:
        found = decode(record.value, record)
    except UnreadableRecord as error:
        return UnreadableCommand(str(error))
    if not isinstance(found, UndoCommand | ProbeCommand | ResendCommand):
        return UnreadableCommand(f"a {type(found).__name__} is no command")
    if record.key != record_key(found.workflow_id):
        return UnreadableCommand(f"its key is not its workflow id, {found.workflow_id!r}")
    return found


@dataclass(eq=False, slots=True)
class Tenure:
    """This member's hold of one partition, from assignment to revocation."""

    partition: int
    held: bool = True
    progress: PartitionProgress = field(default_factory=PartitionProgress)
    committed: int | None = None


@quick
@dataclass(frozen=True, slots=True)
class Delivery:
    """One command as it was handed out, once."""

    lane: str
    record: Record
    tenure: Tenure
    taken_at_ms: int
    command: Command | UnreadableCommand


@dataclass(frozen=True, slots=True)
class LaneEvents:
    """What the thread tells. All are called in it and must be quick."""

    on_deliveries: Callable[[list[Delivery]], None]
    on_assigned: Callable[[list[int]], None]
    on_gone: Callable[[list[int]], None]
    is_full: Callable[[], bool]  # take no more for now
    on_end: Callable[[BaseException | None], None]


class LaneThread:
    """Consumes `amends.undo.<lane>` as a member of the lane's group."""

    def __init__(
        self,
        kafka: KafkaSettings,
        lane: str,
        events: LaneEvents,
        *,
        session_ms: int,
        instance_id: str | None,
    ) -> None:
        self.lane = lane
        self.topic = kafka.topics.undo(lane)
        self.group = group_of(kafka, lane)
        self.last_poll_ms = lease_clock_ms()
        self._kafka = kafka
        self._events = events
        self._session_ms = session_ms
        self._instance_id = instance_id
        self._lock = threading.Lock()
        self._tenures: dict[int, Tenure] = {}
        self._paused = False
        self._draining = threading.Event()
        self._stopping = threading.Event()
        self._last_commit_ms = 0
        self._thread = threading.Thread(target=self._run, name=f"amends-lane-{lane}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Take nothing more; go on as a member and commit what is done. Called from any thread."""
        self._draining.set()

    def stop(self) -> None:
        """Commit what is done, leave the group and end. Called from any thread."""
        self._stopping.set()

    def join(self, timeout_ms: int) -> bool:
        self._thread.join(timeout_ms / 1000)
        return not self._thread.is_alive()

    def done(self, delivery: Delivery) -> None:
        """The command may be committed. Called from any thread."""
        with self._lock:
            delivery.tenure.progress.done(delivery.record.offset)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            consumer = self._open()
            try:
                while not self._stopping.is_set():
                    self._turn(consumer)
                self._commit(consumer, wait=True)
            finally:
                consumer.close()
        except BaseException as error:  # whatever it is, the worker must hear that this lane is served no longer
            log.exception("lane %s ends", self.lane)
            self._events.on_end(error)
        else:
            self._events.on_end(None)

    def _open(self) -> GroupConsumer:
        def revoked(places: list[TopicPartition]) -> None:
            self._commit(consumer, wait=True)
            self._gone(places)

        consumer = GroupConsumer(
            self._kafka,
            group=self.group,
            topics=(self.topic,),
            instance_id=self._instance_id,
            session_ms=self._session_ms,
            gather_ms=GATHER_MS,
            on_assigned=self._assigned,
            on_revoked=revoked,
            on_lost=self._gone,
        )
        return consumer

    def _turn(self, consumer: GroupConsumer) -> None:
        try:
            records = consumer.poll_batch(POLL_MS).records
        except OwnershipLost as error:
            log.warning("lane %s: another member took over: %s", self.lane, error)
            self._gone([TopicPartition(self.topic, partition) for partition in self._tenures])
            return
        except (TopicsWrong, RecordGone, AccessRefused):
            raise
        except KafkaFault as error:
            log.warning("lane %s: %s", self.lane, error)
            self._stopping.wait(AFTER_FAULT_MS / 1000)
            return
        finally:
            self.last_poll_ms = lease_clock_ms()
        self._hand_out(records)
        if self.last_poll_ms - self._last_commit_ms >= COMMIT_MS:
            self._commit(consumer, wait=False)
        self._throttle(consumer)

    def _hand_out(self, records: list[Record]) -> None:
        if self._draining.is_set():
            return
        deliveries: list[Delivery] = []
        with self._lock:
            for record in records:
                tenure = self._tenures.get(record.partition)
                if tenure is not None:
                    tenure.progress.take(record.offset)
                    deliveries.append(Delivery(self.lane, record, tenure, self.last_poll_ms, command_of(record)))
        if deliveries:
            self._events.on_deliveries(deliveries)

    def _throttle(self, consumer: GroupConsumer) -> None:
        full = self._events.is_full() or self._draining.is_set()
        if full == self._paused:
            return
        places = [TopicPartition(self.topic, partition) for partition in self._tenures]
        if full:
            consumer.pause(places)
        else:
            consumer.resume(places)
        self._paused = full

    def _commit(self, consumer: GroupConsumer, *, wait: bool) -> None:
        self._last_commit_ms = lease_clock_ms()
        with self._lock:
            moved = {
                TopicPartition(self.topic, tenure.partition): position
                for tenure in self._tenures.values()
                if (position := tenure.progress.position) is not None and (wait or position != tenure.committed)
            }
            for place, position in moved.items():
                self._tenures[place.partition].committed = position
        try:
            consumer.commit(moved, wait=wait)
        except KafkaFault as error:
            # Not committed is delivered again, which the registry and the read back are there for.
            log.warning("lane %s: %s", self.lane, error)

    def _assigned(self, places: list[TopicPartition]) -> None:
        with self._lock:
            self._tenures.update({place.partition: Tenure(place.partition) for place in places})
            self._paused = False
        log.info("lane %s: partitions %s came", self.lane, sorted(place.partition for place in places))
        self._events.on_assigned([place.partition for place in places])

    def _gone(self, places: list[TopicPartition]) -> None:
        with self._lock:
            ended = [tenure for place in places if (tenure := self._tenures.pop(place.partition, None)) is not None]
            for tenure in ended:
                tenure.held = False
        if ended:  # the client may say twice that a partition went
            partitions = [tenure.partition for tenure in ended]
            log.info("lane %s: partitions %s went", self.lane, sorted(partitions))
            self._events.on_gone(partitions)


def group_of(kafka: KafkaSettings, lane: str) -> str:
    """Return the consumer group of a lane: every compensator of a lane is in it, whatever other lanes it serves."""
    return kafka.topics.lane_group(lane)
