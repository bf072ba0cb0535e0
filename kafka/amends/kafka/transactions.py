"""Checkpoints: state and offsets become visible together or not at all, and a replaced owner is refused."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from amends.kafka.errors import AccessRefused, CheckpointAborted, CheckpointFenced
from amends.kafka.handles import Producer
from amends.kafka.options import logger, transaction_options
from amends.kafka.permission import NO_RIGHT, no_right
from amends.kafka.records import TopicPartition, Writable
from amends.kafka.settings import KafkaSettings

Result = TypeVar("Result")

RETRY_PAUSE_MS = 20
CALL_MS = 1_000
"""How long one call of the client may wait. Made again, it goes on; a fatal error shows only in a new call."""

_FENCED = frozenset({
    KafkaError._FENCED, KafkaError._FATAL, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.FENCED_INSTANCE_ID, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION,
    KafkaError.TRANSACTION_COORDINATOR_FENCED, KafkaError.STALE_MEMBER_EPOCH, KafkaError.FENCED_MEMBER_EPOCH,
})  # fmt: skip
"""Somebody else owns the transactional id, or the group went on without this member."""


class Checkpointer:
    """One static transactional id, one owner at a time. One thread uses it; close it when done.

    Args:
        transactional_id: the same for every owner of the same thing, such as a ledger partition.
        timeout_ms: a transaction that is open for so long is aborted by the broker; also how long a call keeps trying
            while the broker can't answer.
    """

    def __init__(self, settings: KafkaSettings, transactional_id: str, *, timeout_ms: int = 10_000) -> None:
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._fenced = False
        self._producer: Producer | None = Producer(
            transaction_options(settings, transactional_id=transactional_id, timeout_ms=timeout_ms), logger=logger
        )

    def initialise(self) -> None:
        """End what a former owner left open and refuse it from now on. Call once, before offsets or state are read.

        Raises:
            CheckpointFenced: another owner did the same meanwhile, or the broker can't be used for this.
            AccessRefused: this client may not use the transactional id.
            CheckpointAborted: the broker did not answer in time; may be called again.
        """
        producer = self._open_producer()
        try:
            self._insist(lambda: producer.init_transactions(CALL_MS / 1000))
        except KafkaException as error:
            raise self._classed(error) from error

    def commit(
        self,
        records: Iterable[Writable],
        offsets: Mapping[TopicPartition, int],
        group_metadata: object,
    ) -> None:
        """Write `records` and the group's `offsets` (the next to read) as one. Blocks until they stand or do not.

        Raises:
            CheckpointAborted: nothing of it is visible; the same may be committed again.
            CheckpointFenced: another owner took over, or the fate of this commit could not be learned: stop, write
                nothing more; who comes next reads from the topic which it was.
            AccessRefused: a right is missing; nothing of it is visible, and nothing more can be committed.
        """
        producer = self._open_producer()
        ending = False
        try:
            producer.begin_transaction()
            for record in records:
                self._produce(producer, record)
            if offsets:
                places = [ClientPartition(p.topic, p.partition, offset) for p, offset in offsets.items()]
                self._insist(lambda: producer.send_offsets_to_transaction(places, group_metadata, CALL_MS / 1000))
            ending = True
            self._insist(lambda: producer.commit_transaction(CALL_MS / 1000))
        except KafkaException as error:
            fault = self._classed(error, ending=ending)
            if isinstance(fault, CheckpointAborted):
                self._abort(producer)
            raise fault from error

    def close(self) -> None:
        """Let go of the producer. A transaction that is open is aborted. Twice is harmless."""
        producer, self._producer = self._producer, None
        # One that was fenced, or failed for good, has nothing left to abort, and would only complain.
        if producer is not None and not self._fenced:
            with contextlib.suppress(KafkaException):
                producer.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_producer(self) -> Producer:
        if self._producer is None:
            raise CheckpointFenced(f"{self.transactional_id}: the checkpointer is closed")
        if self._fenced:
            raise CheckpointFenced(f"{self.transactional_id}: the checkpointer was fenced before")
        return self._producer

    def _produce(self, producer: Producer, record: Writable) -> None:
        give_up_at = time.monotonic() + self._timeout_ms / 1000
        partition = record.partition
        while True:
            try:
                producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    -1 if partition is None else partition,
                    headers=list(record.headers) or None,
                )
                return
            except BufferError:
                if time.monotonic() > give_up_at:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL, txn_requires_abort=True)) from None
                producer.poll(0.01)

    def _insist(self, call: Callable[[], Result]) -> Result:
        """Make the same call again while the client says it may be: it goes on with what it began."""
        give_up_at = time.monotonic() + self._timeout_ms / 1000
        said = False
        while True:
            try:
                return call()
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if not _may_be_repeated(cause) or time.monotonic() > give_up_at:
                    raise
                if not said:
                    logger.info("checkpointer %s: %s; trying again", self.transactional_id, cause.str())
                said = True
                time.sleep(RETRY_PAUSE_MS / 1000)

    def _abort(self, producer: Producer) -> None:
        try:
            self._insist(lambda: producer.abort_transaction(CALL_MS / 1000))
        except KafkaException as error:
            # Not known to be aborted: the broker will do it, but this producer can't go on.
            self._fenced = True
            raise CheckpointFenced(f"{self.transactional_id}: not aborted: {error.args[0].str()}") from error

    def _classed(
        self, error: KafkaException, *, ending: bool = False
    ) -> CheckpointAborted | CheckpointFenced | AccessRefused:
        cause: KafkaError = error.args[0]
        if cause.code() in NO_RIGHT:
            self._fenced = True  # the broker ends the transaction; nothing of it was committed
            return no_right(self.transactional_id, cause)
        words = f"{self.transactional_id}: {cause.str()} ({cause.name()})"
        if not (cause.fatal() or cause.code() in _FENCED):
            if cause.txn_requires_abort() or (not ending and (cause.retriable() or cause.code() == KafkaError._STATE)):
                return CheckpointAborted(words)
            if ending:
                words += "; whether the commit took place is not known"
        self._fenced = True
        return CheckpointFenced(words)


def _may_be_repeated(cause: KafkaError) -> bool:
    if cause.fatal() or cause.txn_requires_abort() or cause.code() == KafkaError._CONFLICT:
        return False
    # A broker that dies under send_offsets_to_transaction shows as _TRANSPORT, neither retriable nor abortable.
    return cause.retriable() or cause.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)
