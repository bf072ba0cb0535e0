"""The echo reader: one consumer per process that tails the workflows topic where open workflows are.

A partition is read from the end it had before the workflow's STARTED was sent, so the answer to that is always seen.
Which echoes are believed is decided by the scope that hears them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future

from amends.kafka.consumer import TAIL, PartitionConsumer
from amends.kafka.errors import KafkaFault, ReadTimedOut, TopicsWrong
from amends.kafka.owned import GATHER_MS
from amends.kafka.records import Record, TopicPartition
from amends.kafka.rights import Part, rights_of
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import entered
from amends.producers.ledger import Listener
from amends.schemas.codec import UnreadableRecord, decode_as
from amends.schemas.commands import WorkflowEcho
from amends.schemas.keys import partition_for, record_key
from amends.tools.errors import LedgerUnavailable

logger = logging.getLogger(__name__)

POLL_MS = 20  # how long a new partition may wait for its turn
QUIET_AFTER_S = 60.0  # a partition without open workflows is read for this long: the next one is often near
FETCH_WAIT_MS = 100  # a partition that is added waits for the fetch that is under way: 500 ms by default
ALL_AT_ONCE_MAX = 32  # of so few partitions all are read once a second one is wanted: adding them one by one is slow
REQUEST_MS = 5_000
MEND_AFTER_S = 1.0


class EchoReader:
    """Listeners are called in the reader's thread and must not block. Its thread begins with the first `follow`."""

    def __init__(self, settings: KafkaSettings, *, within_ms: int = 10_000) -> None:
        self._settings = settings
        self._within_s = within_ms / 1000
        self._checked = False
        self._topic = settings.topics.workflows
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._listeners: dict[bytes, list[Listener]] = {}
        self._users: dict[int, int] = defaultdict(int)
        self._quiet_since: dict[int, float] = {}
        self._followed: dict[int, Future[None]] = {}
        self._wanted: list[int] = []
        self._next: dict[int, int] = {}  # where to go on after the consumer was made anew
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._blind = False  # the consumer found no partition: another one is to try

    def follow(self, workflow_id: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each echo of the workflow written from now on; return what ends that.

        Raises:
            LedgerUnavailable: where the partition ends could not be asked.
        """
        ready, unfollow = self._listen(workflow_id, listener)
        try:
            ready.result(timeout=self._within_s)
        except BaseException as error:
            unfollow()
            raise _unavailable(workflow_id, error) from error
        return unfollow

    async def follow_async(self, workflow_id: str, listener: Listener) -> Callable[[], None]:
        """As `follow`, for a task."""
        ready, unfollow = self._listen(workflow_id, listener)
        if ready.done() and ready.exception() is None:
            return unfollow
        answer = asyncio.wrap_future(ready)
        answer.add_done_callback(_note)
        try:
            await asyncio.wait_for(asyncio.shield(answer), self._within_s)
        except BaseException as error:
            unfollow()
            raise _unavailable(workflow_id, error) from error
        return unfollow

    def close(self) -> None:
        """End the thread and its consumer. Twice is harmless."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    # --- registration -----------------------------------------------------------------------------------------------

    def _listen(self, workflow_id: str, listener: Listener) -> tuple[Future[None], Callable[[], None]]:
        key = record_key(workflow_id)
        partition = partition_for(key, self._settings.partitions)
        with self._lock:
            self._listeners.setdefault(key, []).append(listener)
            self._users[partition] += 1
            self._quiet_since.pop(partition, None)
            ready = self._followed.get(partition)
            if ready is None or (ready.done() and ready.exception() is not None):
                ready = self._followed[partition] = Future()
                self._wanted.append(partition)
                self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="amends-echo", daemon=True)
                self._thread.start()
        return ready, lambda: self._unfollow(key, partition, listener)

    def _unfollow(self, key: bytes, partition: int, listener: Listener) -> None:
        with self._lock:
            left = self._listeners.get(key, [])
            if listener not in left:
                return
            left.remove(listener)
            if not left:
                del self._listeners[key]
            self._users[partition] -= 1
            if self._users[partition] == 0:
                self._quiet_since[partition] = time.monotonic()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped:
            try:
                with PartitionConsumer(
                    self._settings, fetch_wait_ms=FETCH_WAIT_MS, says_ends=False, gather_ms=GATHER_MS
                ) as consumer:
                    self._resume(consumer)
                    self._blind = False
                    while not self._stopped and not self._blind:
                        self._turn(consumer)
            except Exception:  # a consumer that broke is replaced: without echoes every agent would stand still
                logger.exception("the echo reader begins anew")
                self._wake.wait(MEND_AFTER_S)

    def _resume(self, consumer: PartitionConsumer) -> None:
        if self._next:
            consumer.add({TopicPartition(self._topic, p): offset for p, offset in self._next.items()})

    def _turn(self, consumer: PartitionConsumer) -> None:
        self._begin_wanted(consumer)
        self._end_quiet(consumer)
        if not self._next:
            self._wake.wait(1.0)
            self._wake.clear()
            return
        for record in consumer.poll_batch(POLL_MS).records:
            self._next[record.partition] = record.offset + 1
            self._hear(record)

    def _begin_wanted(self, consumer: PartitionConsumer) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, []
            if wanted and self._next and self._reads_all():
                wanted.extend(p for p in range(self._settings.partitions) if p not in self._followed)
                now = time.monotonic()
                for partition in wanted:
                    self._followed.setdefault(partition, Future())
                    if not self._users[partition]:
                        self._quiet_since[partition] = now
        if not wanted:
            return
        waiting = [self._followed[partition] for partition in wanted]
        try:
            self._check(consumer)
            places = {TopicPartition(self._topic, partition): TAIL for partition in wanted}
            self._next.update({place.partition: at for place, at in consumer.add(places, REQUEST_MS).items()})
            for ready in waiting:
                ready.set_result(None)
        except KafkaFault as error:
            # A client may lose sight of a topic for good, as when all brokers were killed at once (`follower`).
            self._blind = isinstance(error, ReadTimedOut)
            for ready in waiting:
                ready.set_exception(error)

    def _reads_all(self) -> bool:
        return self._settings.partitions <= ALL_AT_ONCE_MAX

    def _check(self, consumer: PartitionConsumer) -> None:
        """Once: under another count of partitions our facts would stand where nobody folds them."""
        if self._checked:
            return
        entered(self._settings, rights_of(Part.AGENTS, self._settings), REQUEST_MS)
        ours = self._settings.partitions
        for topic in (self._settings.topics.ledger, self._topic):
            theirs = consumer.partitions_of(topic, REQUEST_MS)
            if theirs != ours:
                raise TopicsWrong([f"topic {topic} has {theirs} partitions, the settings say {ours}: set {theirs}"])
        self._checked = True

    def _end_quiet(self, consumer: PartitionConsumer) -> None:
        if not self._quiet_since or (self._reads_all() and any(self._users.values())):
            return
        horizon = time.monotonic() - QUIET_AFTER_S
        with self._lock:
            quiet = [p for p, since in self._quiet_since.items() if since < horizon and p in self._next]
            for partition in quiet:
                del self._quiet_since[partition], self._followed[partition], self._next[partition]
        consumer.remove([TopicPartition(self._topic, partition) for partition in quiet])

    def _hear(self, record: Record) -> None:
        if record.key is None or record.value is None:
            return
        with self._lock:
            listeners = tuple(self._listeners.get(record.key, ()))
        if not listeners:
            return
        try:
            echo = decode_as(WorkflowEcho, record.value, record)
        except UnreadableRecord as error:
            logger.warning("%s[%d]@%d: %s", record.topic, record.partition, record.offset, error)
            return
        for listener in listeners:
            try:
                listener(echo)
            except Exception:
                logger.exception("echo of workflow %s", echo.workflow_id)


def _note(answer: asyncio.Future[None]) -> None:
    """Look at an answer that may come when nobody waits any more: asyncio would tell of an error nobody asked for."""
    if not answer.cancelled():
        answer.exception()


def _unavailable(workflow_id: str, error: BaseException) -> BaseException:
    if not isinstance(error, Exception):
        return error
    return LedgerUnavailable(f"workflow {workflow_id!r}: its echo can't be followed: {error or 'no answer in time'}")
