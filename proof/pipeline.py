"""The pipeline around the agents: broker, registry, processor, compensator and databases, each a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amends.kafka.owned import HEAD
from amends.kafka.reader import PartitionConsumer
from amends.kafka.records import Record, TopicPartition
from amends.kafka.settings import KafkaSettings
from amends.local.children import free_port, make_folder, remove_folder
from amends.local.parts import Part, Parts, environment, make_topics
from amends.local.servers import Servers
from amends.local.wire import answers, wait_for
from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.commands import Incident, IncidentState, Phase, WorkflowEcho
from amends.schemas.facts import StepEvent, StepStatus, UndoEvent, UndoStatus
from proof.databases import ADDRESS
from proof.domains import LANES, Case

READY_MS = 60_000
AGENT_PROCESSES = 4
PARTITIONS = 8
QUIET_S = 5.0
"""Nothing was said for so long: whatever can be done beside an open incident is done."""


class Broken(RuntimeError):  # noqa: N818
    """A part ended or did not start, or the cases did not come to an end; the message has its last words."""


@dataclass
class Seen:
    """What the ledger, the echo and the incidents have told so far."""

    phases: dict[str, Phase] = field(default_factory=dict)
    writes: Counter[StepStatus] = field(default_factory=Counter)
    undos: Counter[UndoStatus] = field(default_factory=Counter)
    incidents: dict[str, Incident] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        try:
            said = decode(record.value, record)
        except UnreadableRecord:
            return  # a tombstone
        if isinstance(said, WorkflowEcho):
            self.phases[said.workflow_id] = said.phase
        elif isinstance(said, StepEvent):
            self.writes[said.status] += 1
        elif isinstance(said, UndoEvent):
            self.undos[said.status] += 1
        elif isinstance(said, Incident):
            self.incidents[said.incident_id] = said

    def closed(self, workflow_id: str) -> bool:
        return self.phases.get(workflow_id) in (Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS)

    def asked(self) -> dict[str, str]:
        """Return the workflows that wait for a person, with the kind of incident."""
        open_ones = [i for i in self.incidents.values() if i.state is IncidentState.OPEN]
        return {incident.workflow_id: incident.kind for incident in open_ones}


class Pipeline:
    """All parts, running. Make it with `running`."""

    def __init__(self, settings: KafkaSettings, parts: Parts, port: int) -> None:
        self.settings = settings
        self.port = port  # of the databases
        self._parts = parts

    def run(self, cases: Sequence[Case], lease: str, killed: str) -> list[Part]:
        """Let agents make the calls of all cases, in a few processes; return those once each stands where it is to be
        killed."""
        shares = [cases[number::AGENT_PROCESSES] for number in range(min(AGENT_PROCESSES, len(cases)))]
        started = [self._agents(number, share, lease, killed) for number, share in enumerate(shares)]
        for part, made in started:
            if not wait_for(made.is_set, alive=lambda p=part: p.child.alive, deadline_ms=300_000):  # type: ignore[misc]
                raise Broken(f"the agents did not come to the end of their calls:\n{part.last_words()}")
        return [part for part, _ in started]

    def _agents(self, number: int, share: Sequence[Case], *how: str) -> tuple[Part, threading.Event]:
        file = self._parts.folder / f"cases-{number}.json"
        file.write_text(json.dumps([{**dataclasses.asdict(case), "name": case.name} for case in share]))
        made = threading.Event()

        def heard(line: str) -> None:
            if line == "all made":
                made.set()

        return self._parts.python(f"agents-{number}", "proof.agents", str(file), *how, on_line=heard), made

    def follow(self, wanted: set[str], deadline_s: float, *, asked_is_an_end: bool) -> Seen:
        """Read what the parts say until every wanted workflow is closed, or, where that is an end too, waits for a
        person and nothing more is done meanwhile.

        Raises:
            Broken: that did not happen before the deadline, or a part ended.
        """
        seen, topics = Seen(), self.settings.topics
        places = [
            TopicPartition(topic, number)
            for topic in (topics.workflows, topics.ledger, topics.incidents)
            for number in range(self.settings.partitions)
        ]
        consumer = PartitionConsumer(self.settings)
        try:
            consumer.add(dict.fromkeys(places, HEAD))
            heard_at = time.monotonic()
            give_up_at = heard_at + deadline_s
            while True:
                for record in consumer.poll_batch(200).records:
                    seen.take(record)
                    heard_at = time.monotonic()
                asked = seen.asked()
                left = {w for w in wanted if not seen.closed(w) and not (asked_is_an_end and w in asked)}
                if not left and (not asked or time.monotonic() - heard_at > QUIET_S):
                    return seen
                self._check(left, seen, give_up_at)
        finally:
            consumer.close()

    def _check(self, left: set[str], seen: Seen, give_up_at: float) -> None:
        gone = self._parts.dead(part for part in self._parts.running if not part.name.startswith("agents"))
        if gone:
            raise Broken(f"{gone[0].name} ended:\n{gone[0].last_words()}")
        if time.monotonic() > give_up_at:
            some = {name: seen.phases.get(name) for name in sorted(left)[:5]}
            raise Broken(f"{len(left)} workflows are not closed, such as {some}; incidents: {seen.asked()}")


@contextlib.contextmanager
def running(servers: Servers) -> Iterator[Pipeline]:
    """Start all parts for the length of a block. Raises Broken."""
    settings = KafkaSettings(
        bootstrap_servers=servers.kafka.bootstrap_servers,
        topic_prefix=f"proof{int(time.time())}",
        lanes=LANES,
        partitions=PARTITIONS,
        replication_factor=1,
        embedded=servers.kafka.embedded,
    )
    make_topics(settings)
    folder = make_folder("proof")
    given = environment(settings, servers.redis.url)
    parts = Parts({**given, "AMENDS_COMPENSATOR__REGISTRY_PREFIX": settings.topic_prefix}, folder, where=Path.cwd())
    try:
        parts.environment[ADDRESS] = str(port := _databases(parts))
        health = [free_port(), free_port()]
        started = [
            parts.amends("processor", "processor", "--health-port", str(health[0])),
            parts.amends("compensator", "compensator", "proof.tools", "--health-port", str(health[1])),
        ]
        for part, number in zip(started, health, strict=True):
            alive = functools.partial(lambda p: p.child.alive, part)
            if not wait_for(functools.partial(answers, number), alive=alive, deadline_ms=READY_MS):
                raise Broken(f"{part.name} did not start:\n{part.last_words()}")
        yield Pipeline(settings, parts, port)
    finally:
        parts.stop()
        remove_folder(folder)


def _databases(parts: Parts) -> int:
    said, ready = list[str](), threading.Event()

    def heard(line: str) -> None:
        said.append(line)
        ready.set()

    part = parts.python("databases", "proof.databases", on_line=heard)
    if not wait_for(ready.is_set, alive=lambda: part.child.alive, deadline_ms=READY_MS):
        raise Broken(f"the databases did not start:\n{part.last_words()}")
    return int(said[0].removeprefix("port "))
