"""One librdkafka producer of one process, its thread, and the decision whether a failed record may be on the topic.

*Not written or maybe?* The client says "timed out" for a record that never left and for one whose answer was lost, and
"purged in queue" also for one that waits there to be sent again; the flag that tells them apart is not in the Python
API. But the client counts the Produce requests it has sent to each broker. If those counts are the same in a report
made before the record was handed over and in one made after it failed, no request left in between, so the record is
certainly not written. In every other case of doubt it is `MaybeWritten`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from amends.kafka.errors import MaybeWritten, NotWritten, WriteError
from amends.kafka.handles import Producer
from amends.kafka.options import logger, producer_options
from amends.kafka.records import Ack, Headers
from amends.kafka.settings import KafkaSettings
from amends.kafka.turned_away import TURNED_AWAY, turned_away

POLL_MS = 100
REPORT_EVERY_MS = 250
REPORT_WAIT_MS = 2 * REPORT_EVERY_MS

REFUSED_FOR_GOOD = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.TOPIC_EXCEPTION, KafkaError.INVALID_TIMESTAMP, KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
})  # fmt: skip
"""Answers that speak of the record itself: no try of it can have been accepted (or its topic does not exist)."""

LOCAL = frozenset({
    KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._TIMED_OUT, KafkaError._PURGE_QUEUE,
    KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError._DESTROY, KafkaError._FATAL, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED,
})  # fmt: skip
"""The client gave up by itself, or was told so with the metadata: whether the record left, the counts may tell."""

REPLACED = frozenset({
    KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED, KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError._FENCED, KafkaError._FATAL,
})  # fmt: skip
"""The broker no longer knows this client's producer id: the next record needs a new client."""

Requests = Mapping[str, int]
"""Produce requests sent so far, by broker."""


class Answer:
    """Somebody who waits for the answer to one write."""

    __slots__ = ()

    def give(self, result: Ack | WriteError) -> None:
        """Give the answer. Called once, in the publisher's thread."""
        raise NotImplementedError

    loop: Any = None
    """The event loop of the waiter: answers for one loop are given together by `give_later`."""

    def give_later(self, answers: Sequence[tuple[Answer, Ack | Exception]]) -> None:
        raise NotImplementedError


Pending = tuple[Answer, Ack | WriteError]


class _Delivery:
    """A record on its way. Called by the client with the delivery report."""

    __slots__ = ("answer", "client", "requests_before")

    def __init__(self, client: Client, answer: Answer, requests_before: Requests) -> None:
        self.client = client
        self.answer = answer
        self.requests_before = requests_before

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.client.done.append((self.answer, self.client.places.answer(message)))
        else:
            self.client.failed(self, error, message)


class Places:
    """Tells where acknowledged records stand. Asked with the reports of one client, in their order.

    A repeat that the broker recognises, but so late that it no longer knows where the first one stands, is answered
    with offset -1 for the whole batch; the client counts on from there, so that the batch's second record is reported
    at 0, the third at 1 (librdkafka 2.16, `rd_kafka_msgq_set_metadata`). Such a count is never taken for a place: after
    n records without one on a partition, a real offset is n or more, the counted one n - 1.
    """

    __slots__ = ("_counted",)

    def __init__(self) -> None:
        self._counted: dict[tuple[str | None, int | None], int] = {}

    def answer(self, message: Message) -> Ack | WriteError:
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None and offset >= 0 and not self._counted:  # nearly always
            return Ack(partition, offset, message.timestamp()[1])
        place = (message.topic(), partition)
        if partition is None or offset is None or offset < 0 or offset == self._counted.get(place):
            self._counted[place] = (-1 if offset is None else offset) + 1
            return MaybeWritten(f"{message.topic()}: written, but the broker does not say where", code="NO_OFFSET")
        self._counted.pop(place, None)
        return Ack(partition, offset, message.timestamp()[1])


class Client:
    """A producer and the thread that polls it. `broken` once the client says its error is fatal.

    Args:
        gather_ms: after answers, so long is left for more to come: each time the thread wakes it fights the others for
            the interpreter. A flush does not wait for it.
    """

    def __init__(self, settings: KafkaSettings, *, deadline_ms: int, queue_max: int, gather_ms: int = 0) -> None:
        self.pid = os.getpid()
        self.broken = False
        self.done: list[Pending] = []
        self.places = Places()
        self._requests: Requests = {}
        self._undecided: list[tuple[_Delivery, KafkaError, str, float]] = []
        self._answered = threading.Condition()
        self._open = 0
        self._gather_s = gather_ms / 1000
        self._hurry = threading.Event()
        self._stop = False
        self._heard = ""
        # A failure is decided by the report after it, which may be a little late.
        wait_ms = min(REPORT_WAIT_MS, deadline_ms // 4)
        options = producer_options(settings, deadline_ms=deadline_ms - wait_ms, queue_max=queue_max)
        options |= {
            "statistics.interval.ms": min(REPORT_EVERY_MS, max(10, wait_ms // 2)),
            "stats_cb": self._reported,
            "error_cb": self._error,
        }
        self._report_wait_s = wait_ms / 1000
        self._deadline_ms = deadline_ms
        self._producer = Producer(options, logger=logger)
        self._thread = threading.Thread(target=self._run, name="amends-publisher", daemon=True)
        self._thread.start()

    def offer(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        answer: Answer,
    ) -> NotWritten | None:
        """Hand a record to the client. Return why it was not taken, or None; then `answer` gets the answer."""
        delivery = _Delivery(self, answer, self._requests)
        with self._answered:
            self._open += 1
        try:
            self._producer.produce(
                topic,
                value,
                key,
                -1 if partition is None else partition,
                on_delivery=delivery,
                headers=headers if type(headers) is list else list(headers),
            )
        except BufferError:
            refused = NotWritten("the queue of records that wait for their answer is full", code="_QUEUE_FULL")
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            self.broken = self.broken or cause.code() == KafkaError._FATAL
            refused = NotWritten(f"{topic}: {cause.str()}", code=cause.name())
        else:
            return None
        self._close_one(1)
        return refused

    def flush(self, deadline_ms: int) -> int:
        """Wait until nothing is open; return how many still are."""
        self._hurry.set()
        try:
            with self._answered:
                self._answered.wait_for(lambda: self._open == 0, deadline_ms / 1000)
                return self._open
        finally:
            self._hurry.clear()

    def retire(self) -> None:
        """Answer what is open, in the background, and end."""
        threading.Thread(
            target=self.close, args=(self._deadline_ms,), name="amends-publisher-retire", daemon=True
        ).start()

    def close(self, deadline_ms: int) -> None:
        """Flush, give up what is left, answer it, and end the thread."""
        if self.flush(deadline_ms):
            with contextlib.suppress(KafkaException):
                self._producer.purge()
            self.flush(POLL_MS + int(self._report_wait_s * 1000) + POLL_MS)
        self._stop = True
        self._hurry.set()
        self._thread.join()

    def failed(self, delivery: _Delivery, error: KafkaError, message: Message) -> None:
        code = error.code()
        # Of a record that did not leave the client says how, not why, if brokers turn it away.
        why = f"; {self._heard}" if self._heard and code in LOCAL else ""
        words = f"{message.topic()}: {error.str()}{why}"
        if code in TURNED_AWAY:
            turned_away.hear(error)
        self.broken = self.broken or error.fatal() or code in REPLACED
        if code in REFUSED_FOR_GOOD:
            self.done.append((delivery.answer, NotWritten(words, code=error.name())))
        elif code in LOCAL and not self._stop:
            self._undecided.append((delivery, error, words, time.monotonic()))
        else:
            self.done.append((delivery.answer, MaybeWritten(words, code=error.name())))

    def _run(self) -> None:
        producer = self._producer
        while not self._stop:
            try:
                producer.poll(POLL_MS / 1000 if not self._undecided else 0.01)
            except KafkaException as error:
                # A fatal error of the client comes out here. Its records still get their answers in the next rounds.
                self.broken = True
                logger.error("the publisher's client is broken and is replaced: %s", error.args[0].str())
            if self._undecided:
                self._give_up_on_reports(time.monotonic() - self._report_wait_s)
            if self.done:
                self._hand_over()
                if self._gather_s:
                    self._hurry.wait(self._gather_s)
        self._give_up_on_reports(time.monotonic())
        self._hand_over()

    def _hand_over(self) -> None:
        done, self.done = self.done, []
        by_loop: dict[Any, list[Pending]] = {}
        for pending in done:
            answer = pending[0]
            if answer.loop is None:
                answer.give(pending[1])
            else:
                by_loop.setdefault(answer.loop, []).append(pending)
        for answers in by_loop.values():
            answers[0][0].give_later(answers)
        self._close_one(len(done))

    def _close_one(self, count: int) -> None:
        with self._answered:
            self._open -= count
            if self._open == 0:
                self._answered.notify_all()

    def _reported(self, report: str) -> None:
        told = json.loads(report)
        requests = {name: broker["req"].get("Produce", 0) for name, broker in told["brokers"].items()}
        # The client's clock is the monotonic one in microseconds; where it is not, nothing is ever decided by reports.
        made_at = told["ts"] / 1_000_000
        still: list[tuple[_Delivery, KafkaError, str, float]] = []
        for delivery, error, words, failed_at in self._undecided:
            if not failed_at < made_at <= time.monotonic():
                still.append((delivery, error, words, failed_at))
            elif _nothing_sent(delivery.requests_before, requests):
                self.done.append((delivery.answer, NotWritten(f"{words}; it was never sent", code=error.name())))
            else:
                self._doubt(delivery, error, words)
        self._undecided = still
        self._requests = requests

    def _give_up_on_reports(self, failed_before: float) -> None:
        late = [undecided for undecided in self._undecided if undecided[3] <= failed_before]
        self._undecided = [undecided for undecided in self._undecided if undecided[3] > failed_before]
        for delivery, error, words, _ in late:
            self._doubt(delivery, error, words)

    def _doubt(self, delivery: _Delivery, error: KafkaError, words: str) -> None:
        # A broker that lost its memory leaves a client that has sent something waiting for ever: begin with a new one.
        self.broken = True
        self.done.append((delivery.answer, MaybeWritten(words, code=error.name())))

    def _error(self, error: KafkaError) -> None:
        turned_away.hear(error)
        if error.code() in TURNED_AWAY:
            self._heard = error.str()
        if error.fatal():
            self.broken = True


def _nothing_sent(before: Requests, after: Requests) -> bool:
    """Return whether no Produce request left between two reports. A broker missing in the later one hides its own."""
    return before.keys() <= after.keys() and all(count == before.get(name, 0) for name, count in after.items())
