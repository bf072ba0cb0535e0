"""A processor's share for tests of producers: it answers starts and claims by echoes, and undoes nothing."""

from __future__ import annotations

import threading
from types import TracebackType

from amends.kafka.consumer import TAIL, PartitionConsumer
from amends.kafka.publisher import Publisher
from amends.kafka.records import Record, TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.schemas.codec import decode, encode
from amends.schemas.commands import Phase, WorkflowEcho
from amends.schemas.facts import Fact, StepEvent, WorkflowEvent, WorkflowStatus
from amends.schemas.keys import record_key


class Answerer:
    """Keeps every fact it has read, in `facts`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.facts: list[tuple[int, Fact]] = []
        self._settings = settings
        self._state: dict[str, tuple[int, int, Phase]] = {}
        self._folded: dict[str, int] = {}
        self._publisher = Publisher(settings)
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="answerer")

    def __enter__(self) -> Answerer:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(20)
        self._publisher.close()

    def turn(self, workflow_id: str) -> None:
        """Turn a workflow, as its lost heartbeat would."""
        offset, epoch, _ = self._state[workflow_id]
        self._state[workflow_id] = (offset, epoch + 1, Phase.TURNED)
        self._echo(workflow_id, self._folded[workflow_id])

    def statuses(self, workflow_id: str) -> list[str]:
        """Return what was read of one workflow, in words."""
        return [
            f"{fact.tool_name if isinstance(fact, StepEvent) else 'workflow'} {fact.status}"
            for _, fact in list(self.facts)
            if fact.workflow_id == workflow_id and isinstance(fact, StepEvent | WorkflowEvent)
        ]

    def _run(self) -> None:
        topic = self._settings.topics.ledger
        with PartitionConsumer(self._settings) as consumer:
            consumer.add({TopicPartition(topic, p): TAIL for p in range(self._settings.partitions)})
            self._ready.set()
            while not self._stop.is_set():
                for record in consumer.poll_batch(50).records:
                    self._fold(record)

    def _fold(self, record: Record) -> None:
        fact = decode(record.value)
        assert isinstance(fact, StepEvent | WorkflowEvent)
        self.facts.append((record.offset, fact))
        self._folded[fact.workflow_id] = record.offset
        offset, epoch, phase = self._state.get(fact.workflow_id, (record.offset, 0, Phase.RUNNING))
        if isinstance(fact, StepEvent) or fact.status is WorkflowStatus.HEARTBEAT:
            return
        if fact.status is WorkflowStatus.SUCCEEDED and phase is Phase.RUNNING:
            phase = Phase.SUCCEEDED
        if fact.status is WorkflowStatus.FAILED and phase is Phase.RUNNING:
            phase, epoch = Phase.TURNED, epoch + 1
        self._state[fact.workflow_id] = (offset, epoch, phase)
        self._echo(fact.workflow_id, record.offset)

    def _echo(self, workflow_id: str, folded_to: int) -> None:
        offset, epoch, phase = self._state[workflow_id]
        echo = WorkflowEcho(workflow_id, offset, epoch, phase, folded_to, answers_offset=folded_to)
        self._publisher.send(
            self._settings.topics.workflows, key=record_key(workflow_id), value=encode(echo), on_done=lambda _: None
        )
