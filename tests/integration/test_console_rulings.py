"""A person decides an incident by the command line: it asks, it writes once, and the fold takes it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from tests.core.ledger import contract_of

from amends.console.application import run
from amends.console.exits import FAILED, NEEDS_ATTENTION, NOT_FOUND, OK, USAGE
from amends.kafka.publisher import Publisher
from amends.kafka.reader import PartitionReader
from amends.kafka.records import Record, TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.kafka_server import KafkaServer
from amends.processors.partition import Partition
from amends.processors.terms import Terms
from amends.schemas.codec import decode, encode
from amends.schemas.commands import Incident, IncidentState, UndoCommand
from amends.schemas.contract import CallTerms, Effect
from amends.schemas.facts import (
    Fact,
    Failure,
    Resolution,
    StepEvent,
    StepStatus,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)

STEP = "5" * 32
Amends = Callable[..., tuple[int, str, str]]


@dataclass
class Fold:
    """The processor's fold of one partition over a broker's ledger; a turn of it whenever `turn` is called."""

    settings: KafkaSettings
    publisher: Publisher
    partition: Partition = field(init=False)
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.partition = Partition(0, Terms(topics=self.settings.topics, lanes=frozenset(self.settings.lanes)))

    def read(self, topic: str, start: int = 0) -> list[Record]:
        with PartitionReader(self.settings) as reader:
            place = TopicPartition(topic, 0)
            ends = reader.ends(topic, [0])
            return [record for batch in reader.read({place: start}, ends) for record in batch] if ends[place] else []

    def turn(self, wait_ms: int = 0) -> None:
        """Fold what is new and write what follows; then let `wait_ms` pass, and fold the Timeouts due by then."""
        self._fold()
        if wait_ms:
            self.now_ms += wait_ms
            for emission in self.partition.timeouts(self.now_ms):
                self.publisher.publish_sync(emission.topic, key=emission.key, value=emission.value, partition=0)
            self._fold()

    def _fold(self) -> None:
        for record in self.read(self.settings.topics.ledger, self.partition.folded_to + 1):
            self.now_ms = max(self.now_ms, record.appended_at_ms)
            self.partition.fold(record)
        for emission in self.partition.outputs(self.now_ms):
            self.publisher.publish_sync(
                emission.topic, key=emission.key, value=emission.value, headers=emission.headers, partition=0
            )

    def write(self, *facts: Fact | bytes, key: bytes = b"order-1") -> None:
        for fact in facts:
            value = fact if isinstance(fact, bytes) else encode(fact)
            self.publisher.publish_sync(self.settings.topics.ledger, key=key, value=value)
        self.turn()

    def incident(self) -> Incident:
        """Return the last word on the incident that was opened last."""
        found = [decode(record.value) for record in self.read(self.settings.topics.incidents)]
        assert isinstance(found[-1], Incident)
        return found[-1]


@pytest.fixture
def fold(embedded_kafka: KafkaServer, topic_prefix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fold]:
    settings = KafkaSettings(
        bootstrap_servers=embedded_kafka.bootstrap_servers,
        topic_prefix=topic_prefix,
        partitions=1,
        replication_factor=1,
        embedded=True,
    )
    create_topics(settings)
    for name in ("topic_prefix", "partitions", "replication_factor", "bootstrap_servers", "embedded"):
        monkeypatch.setenv(f"AMENDS_KAFKA__{name.upper()}", str(getattr(settings, name)))
    with Publisher(settings) as publisher:
        yield Fold(settings, publisher)


@pytest.fixture
def amends(capsys: pytest.CaptureFixture[str]) -> Amends:
    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def call(status: StepStatus, *, effect: Effect = Effect.COMPENSABLE, attempt: str = "p1") -> StepEvent:
    terms = replace(contract_of("pay.charge", effect=effect), call=CallTerms(settle_ms=0))
    contract = encode(terms) if status is StepStatus.STARTED else None
    return StepEvent(
        "order-1",
        STEP,
        attempt,
        0,
        status,
        "pay.charge",
        side_effect_classification=effect,
        contract=contract,
        undo_arguments=b"{}",
    )


def failed_undo(fold: Fold) -> Incident:
    undo = UndoEvent("order-1", STEP, 0, 0, UndoStatus.STARTED, "o")
    fold.write(
        WorkflowEvent("order-1", 0, WorkflowStatus.STARTED),
        call(StepStatus.STARTED),
        call(StepStatus.SUCCEEDED),
        WorkflowEvent("order-1", 0, WorkflowStatus.FAILED),
        undo,
        UndoEvent(
            "order-1", STEP, 0, 0, UndoStatus.FAILED, "o", retryable=False, error=Failure("Gone", "no such charge")
        ),
    )
    return fold.incident()


def rulings(fold: Fold) -> list[Resolution]:
    facts = [decode(r.value) for r in fold.read(fold.settings.topics.ledger) if r.value != b"junk"]
    return [fact for fact in facts if isinstance(fact, Resolution)]


def test_a_decision_is_asked_for_written_once_and_taken_by_the_fold(
    fold: Fold, amends: Amends, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident = failed_undo(fold)
    short = incident.incident_id[:8]
    assert f"amends incidents resolve {short} --decision" in amends("incidents", "show", short)[1]
    decision = (
        "incidents",
        "resolve",
        short,
        "--decision",
        "mark-undone",
        "--reason",
        "refunded by hand",
        "--by",
        "ann",
    )

    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert amends(*decision)[0] == FAILED
    code, out, _ = amends(*decision, "--dry-run")
    assert (code, "Nothing was written" in out) == (OK, True)
    assert rulings(fold) == []

    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, out, err = amends(*decision, "--evidence", "re_7")
    assert (code, err.strip()) == (OK, "Write this decision to the ledger? [y/N]:")
    (written,) = rulings(fold)
    assert (written.by, written.version, written.evidence) == ("ann", incident.version, "re_7")
    record = fold.read(fold.settings.topics.ledger)[-1]
    assert record.key == b"order-1"
    assert dict(record.headers)["ce_type"] == b"amends.Resolution.v1"

    fold.turn()
    assert (fold.incident().state, fold.incident().closed_by) == (IncidentState.CLOSED, "ann")
    code, _, err = amends(*decision, "--yes")
    assert (code, "was closed by ann" in err) == (NEEDS_ATTENTION, True)
    assert len(rulings(fold)) == 1


def test_retry_has_the_undo_commanded_again(fold: Fold, amends: Amends) -> None:
    incident = failed_undo(fold)
    code, out, err = amends(
        "incidents", "resolve", incident.incident_id, "--decision", "retry", "--reason", "it is back", "--yes", "--json"
    )
    assert code == OK, err
    assert json.loads(out)["written"] == [{"partition": 0, "offset": fold.partition.folded_to + 1}]
    fold.turn()
    commands = [decode(record.value) for record in fold.read(fold.settings.topics.undo("default"))]
    assert [c.entries[0].generation for c in commands if isinstance(c, UndoCommand)] == [1]
    assert fold.incident().state is IncidentState.CLOSED


def test_evidence_names_the_attempts_that_stand_on_the_ledger(fold: Fold, amends: Amends) -> None:
    fold.write(
        WorkflowEvent("order-1", 0, WorkflowStatus.STARTED),
        *(call(status, attempt=a) for a in ("p1", "p2") for status in (StepStatus.STARTED, StepStatus.UNKNOWN)),
        WorkflowEvent("order-1", 0, WorkflowStatus.FAILED),
    )
    fold.turn(wait_ms=60_000)
    incident = fold.incident()
    assert incident.kind == "unknown"
    resolve = ("incidents", "resolve", incident.incident_id, "--reason", "they have no record of it", "--yes")
    code, _, err = amends(*resolve, "--decision", "retry")
    assert (code, "present, mark-absent" in err) == (USAGE, True)
    assert amends(*resolve, "--decision", "mark-absent")[0] == OK
    assert [fact.attempts for fact in rulings(fold)] == [("p1", "p2")]
    fold.turn()
    assert fold.incident().state is IncidentState.CLOSED


def test_a_record_nobody_could_read_is_ruled_on_by_its_offset(fold: Fold, amends: Amends) -> None:
    fold.write(WorkflowEvent("order-1", 0, WorkflowStatus.STARTED), b"junk")
    incident = fold.incident()
    assert incident.kind == "unreadable"
    resolve = ("incidents", "resolve", incident.incident_id, "--reason", "a test of ours", "--yes")
    assert amends(*resolve, "--decision", "mark-absent")[0] == OK
    assert [fact.unread_offset for fact in rulings(fold)] == [1]
    fold.turn()
    assert fold.incident().state is IncidentState.CLOSED


def test_an_incident_nobody_knows_and_a_decision_without_a_reason_are_refused(fold: Fold, amends: Amends) -> None:
    incident = failed_undo(fold)
    assert amends("incidents", "resolve", "ffff", "--decision", "retry", "--reason", "x", "--yes")[0] == NOT_FOUND
    assert amends("incidents", "resolve", incident.incident_id, "--decision", "retry", "--reason", " ")[0] == USAGE
    assert amends("incidents", "resolve", incident.incident_id, "--decision", "sue", "--reason", "x")[0] == USAGE
    assert rulings(fold) == []
