"""All parts with a schema registry, on Apache Kafka: both framings on one topic, and a registry that goes and comes.

The registry is one of ours (`tests/contract/schema_registry_server.py`): it has to be away when the test wants it so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.contract.schema_registry_server import OurRegistry
from tests.core.record_samples import avro_body
from tests.integration.kafka_parts import ROOT, eventually, settings_of
from tests.integration.undo_tools import lines_of

from amends.kafka import KafkaSettings, PartitionReader, Publisher, Record, create_topics
from amends.kafka.owned import HEAD
from amends.kafka.registering import text_of
from amends.kafka.schema_registry_client import SchemaRegistryClient
from amends.kafka.schema_registry_settings import SchemaRegistrySettings
from amends.local.children import free_port
from amends.local.kafka_server import KafkaServer
from amends.local.parts import AMENDS, Part, Parts
from amends.local.parts import environment as variables_of
from amends.processors.watchdog import EXIT_CODE
from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.commands import Phase, WorkflowEcho
from amends.schemas.facts import UndoEvent, WorkflowEvent, WorkflowStatus
from amends.schemas.framing import frame, framed_id
from amends.schemas.topics import FAUST, TRANSACTIONS

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

MODULE = "tests.integration.undo_tools"
AGENT = """
import sys
from amends.producers import workflow
from tests.integration.undo_tools import plain

world, name = sys.argv[1:]
with workflow(name):
    plain(world, name)
    raise RuntimeError("the agent fails")
"""


@dataclass
class Stage:
    """Topics of one test, a registry, and parts that are started by hand."""

    kafka: KafkaSettings
    registry: OurRegistry
    parts: Parts
    world: str
    health_port: int = field(default_factory=free_port)

    @property
    def url(self) -> dict[str, str]:
        return {"AMENDS_SCHEMA_REGISTRY__URL": self.registry.url}

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self._run([*AMENDS, *arguments], **environment)

    def agent(self, name: str, **environment: str) -> None:
        ended = self._run([sys.executable, "-c", AGENT, self.world, name], **environment)
        assert "the agent fails" in ended.stderr, ended.stderr

    def _run(self, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**self.parts.environment, **environment}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)

    def processor(self, **environment: str) -> Part:
        port = {"AMENDS_PROCESSOR__HEALTH_PORT": str(self.health_port)}
        return self.parts.amends("processor", "processor", environment={**self.url, **port, **environment})

    def compensator(self) -> Part:
        return self.parts.amends("compensator", "compensator", MODULE, environment=self.url)

    def encoding(self) -> str | None:
        """Return what the processor writes now, None while it does not answer."""
        asks = HTTPConnection("127.0.0.1", self.health_port, timeout=10)
        try:
            asks.request("GET", "/healthz")
            said: str = json.loads(asks.getresponse().read())["schema_registry"]["encoding"]
        except OSError:
            return None
        finally:
            asks.close()
        return said

    def read(self, topic: str) -> list[Record]:
        with PartitionReader(self.kafka) as reader:
            ends = reader.ends(topic, range(self.kafka.partitions))
            return [record for batch in reader.read(dict.fromkeys(ends, HEAD), ends) for record in batch]

    def phase(self, name: str) -> Phase | None:
        echoes = [decode(r.value, r) for r in self.read(self.kafka.topics.workflows) if r.key == name.encode()]
        return next((echo.phase for echo in reversed(echoes) if isinstance(echo, WorkflowEcho)), None)

    def compensated(self, name: str) -> Callable[[], bool]:
        return lambda: self.phase(name) is Phase.COMPENSATED

    def framings(self, topic: str, name: str = "") -> set[bool]:
        """Return whether values are framed: of a workflow, or all."""
        return {
            framed_id(r.value) is not None
            for r in self.read(topic)
            if r.value is not None and name.encode() in (b"", r.key)
        }

    def strangers(self, name: str, schema: dict[str, Any]) -> tuple[int, bytes]:
        """Register another program's schema; return its id and the STARTED of a workflow, written with it."""
        with SchemaRegistryClient(SchemaRegistrySettings(url=(self.registry.url,))) as client:
            number = client.register("amends.WorkflowEvent", json.dumps(schema))
        return number, frame(number) + body_of(name)

    def write(self, name: str, value: bytes) -> None:
        with Publisher(self.kafka) as publisher:
            publisher.publish_sync(self.kafka.topics.ledger, key=name.encode(), value=value)


def body_of(name: str) -> bytes:
    """Return the STARTED of a workflow as another program writes it."""
    fact = WorkflowEvent(name, 0, WorkflowStatus.STARTED, agent_id="go", lease_ms=600_000)
    return avro_body(fact, with_a_mood(), mood="blue")


def with_a_mood() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(text_of(WorkflowEvent))
    schema["fields"].append({"name": "mood", "type": ["null", "string"], "default": None})
    return schema


@pytest.fixture
def stage(kafka: KafkaServer, redis_url: str, topic_prefix: str, tmp_path: Path) -> Iterator[Stage]:
    settings = settings_of(kafka, topic_prefix, partitions=1).model_copy(update={"lanes": ("files",)})
    for engine in (TRANSACTIONS, FAUST):
        create_topics(settings, engine)
    environment = {
        **variables_of(settings, redis_url),
        "AMENDS_COMPENSATOR__REGISTRY_PREFIX": topic_prefix,
        "AMENDS_PROCESSOR__APPLICATION_ID": topic_prefix,
        "AMENDS_SCHEMA_REGISTRY__AGAIN_MS": "200",
    }
    parts = Parts(environment, tmp_path, where=ROOT)
    with OurRegistry() as registry:
        yield Stage(settings, registry, parts, str(tmp_path / "world"))
        parts.stop()


def test_both_framings_stand_on_one_topic_and_a_registry_that_goes_and_comes_stops_nothing(stage: Stage) -> None:
    topics = stage.kafka.topics
    assert stage.command("schemas", "register", **stage.url).returncode == 0
    processor, compensator = stage.processor(), stage.compensator()
    stage.agent("without")
    stage.agent("within", **stage.url)
    eventually(lambda: stage.compensated("without")() and stage.compensated("within")(), 90)
    assert stage.framings(topics.ledger, "without") == {False, True}, "of the agent, and of the others"
    assert stage.framings(topics.ledger, "within") == {True}
    assert stage.framings(topics.undo("files")) == stage.framings(topics.workflows) == {True}

    for part in (processor, compensator):
        part.kill()
    stage.registry.fault = (503, b"away")
    stage.processor()
    stage.compensator()
    stage.agent("away", **stage.url)
    eventually(stage.compensated("away"), 90)
    assert stage.encoding() == "single-object"
    assert stage.framings(topics.ledger, "away") == {False}

    stage.registry.fault = None
    eventually(lambda: stage.encoding() == "registry", 60)
    stage.agent("back", **stage.url)
    eventually(stage.compensated("back"), 90)
    assert stage.framings(topics.ledger, "back") == {True}
    names = ("without", "within", "away", "back")
    assert sorted(lines_of(stage.world)) == sorted(
        f"{what} {name}" for name in names for what in ("do", "begin", "undo")
    )
    assert not stage.read(topics.ledger_dead_letters)
    undone = [fact for r in stage.read(topics.ledger) if isinstance(fact := decode(r.value, r), UndoEvent)]
    assert {fact.workflow_id for fact in undone} == set(names)
    shown = stage.command("workflows", "list", "--json")
    assert {row["workflow_id"] for row in json.loads(shown.stdout)} == set(names), shown.stderr


@pytest.mark.parametrize("engine", [TRANSACTIONS, FAUST])
def test_a_strangers_records_are_read_and_an_id_of_nobodys_goes_to_the_dead_letters_byte_for_byte(
    stage: Stage, engine: str
) -> None:
    assert stage.command("schemas", "register", **stage.url).returncode == 0
    stage.processor(AMENDS_SCHEMA_REGISTRY__UNKNOWN_WITHIN_MS="500", AMENDS_PROCESSOR__ENGINE=engine)
    known, value = stage.strangers("stranger", with_a_mood())
    nobodys = frame(4711) + value[5:]
    stage.write("nobody", nobodys)
    stage.write("stranger", value)
    eventually(lambda: stage.phase("stranger") is Phase.RUNNING, 90)
    (letter,) = stage.read(stage.kafka.topics.ledger_dead_letters)
    assert (letter.key, letter.value) == (b"nobody", nobodys)
    with pytest.raises(UnreadableRecord):
        decode(letter.value, letter)

    unknown, late = stage.strangers("late", {**with_a_mood(), "doc": "another"})
    assert unknown != known
    stage.registry.fault = (503, b"away")
    stage.write("late", late)
    stage.write("known", frame(known) + body_of("known"))
    eventually(lambda: stage.phase("known") is Phase.RUNNING, 60)
    assert [record.value for record in stage.read(stage.kafka.topics.ledger_dead_letters)] == [nobodys, late]


def test_a_processor_that_never_heard_from_the_registry_ends_and_loses_nothing(stage: Stage) -> None:
    assert stage.command("schemas", "register", **stage.url).returncode == 0
    _, value = stage.strangers("stranger", with_a_mood())
    stage.write("stranger", value)
    stage.registry.fault = (503, b"away")
    processor = stage.processor(AMENDS_SCHEMA_REGISTRY__UNKNOWN_WITHIN_MS="500")
    assert processor.child.wait(90_000) == EXIT_CODE
    assert "the schema registry has not answered since the start" in processor.last_words()
    assert not stage.read(stage.kafka.topics.ledger_dead_letters)
    stage.registry.fault = None
    stage.processor()
    eventually(lambda: stage.phase("stranger") is Phase.RUNNING, 60)
    assert not stage.read(stage.kafka.topics.ledger_dead_letters)


@pytest.mark.parametrize("part", ["processor", f"compensator {MODULE}"])
def test_a_part_that_finds_no_schemas_or_is_let_in_by_nobody_ends_and_says_what_to_do(stage: Stage, part: str) -> None:
    refused = stage.command(*part.split(), **stage.url)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "run `amends schemas register`" in refused.stderr
    stage.registry.user = "agent:right"
    user = {"AMENDS_SCHEMA_REGISTRY__USER": "agent", "AMENDS_SCHEMA_REGISTRY__PASSWORD": "very-wrong"}
    refused = stage.command(*part.split(), **stage.url, **user)
    assert refused.returncode == 2
    assert "AMENDS_SCHEMA_REGISTRY__PASSWORD" in refused.stderr
    assert "very-wrong" not in refused.stderr + refused.stdout
