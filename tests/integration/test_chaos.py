"""Two processors, two compensators, two hundred workflows, and chance: the world is the judge.

While agents work, in an order that chance says, each kind of part is killed, frozen and woken, and retired; a process
of agents is killed; the broker is killed and restarted on its data; Redis forgets everything, and is gone for a while.
A failure prints the seed of the schedule; what the machine made of it is in the logs.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from tests.integration.chaos_agents import name_of
from tests.integration.chaos_tools import FOLDER, LANES, judge, lines
from tests.killing.stage import Stage

from amends.compensators.lane import group_of
from amends.kafka import PartitionReader
from amends.kafka.consumer import HEAD
from amends.kafka.settings import KafkaSettings
from amends.local.kafka_server import KafkaServer
from amends.local.parts import Part, Parts, environment, make_topics
from amends.local.redis_server import RedisServer
from amends.schemas.codec import decode
from amends.schemas.commands import Incident, IncidentState, Phase, WorkflowEcho

pytestmark = [pytest.mark.kafka, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(600)]

WORKFLOWS = 200
EVERY_MS = 400  # two processes of agents: a hundred workflows each, in 40 s
FROZEN_MS = 8_000  # longer than the session of a part (6 s), shorter than half the longest lease (20 s)
REDIS_GONE_S = 2.0
DEADLINE_S = 300.0
CLOSED = frozenset({Phase.SUCCEEDED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS})


@dataclass
class Agents:
    """One process of agents, and what its agents said."""

    numbers: list[int]
    part: Part | None = None
    said: dict[int, str] = field(default_factory=dict)

    def hears(self, line: str) -> None:
        number, _, word = line.partition(" ")
        self.said[int(number)] = word


class Chaos:
    """The parts, the agents, and what befalls them."""

    def __init__(self, kafka: KafkaServer, registry: RedisServer, folder: Path, prefix: str, seed: int) -> None:
        self.kafka = kafka
        self.registry = registry
        self.seed = seed
        self.settings = KafkaSettings(
            bootstrap_servers=kafka.bootstrap_servers, topic_prefix=prefix, lanes=LANES, partitions=4,
            replication_factor=1,
        )  # fmt: skip
        make_topics(self.settings)
        world = folder / "world"
        world.mkdir()
        os.environ[FOLDER] = str(world)
        told = {**environment(self.settings, registry.url), FOLDER: str(world)}
        patience = {"AMENDS_PRODUCER__STANDING_WITHIN_MS": "60000", "AMENDS_PRODUCER__CONFIRM_WITHIN_MS": "60000"}
        self.parts = Parts({**told, **patience, "AMENDS_COMPENSATOR__PROCESSES": "2"}, folder)
        self.lines: list[str] = []
        self.begun_s = time.monotonic()
        self.stage = Stage(self.parts, self.tell, "tests.integration.chaos_tools", LANES)
        self.agents: list[Agents] = []

    def tell(self, what: str) -> None:
        self.lines.append(f"{time.monotonic() - self.begun_s:7.2f} s  {what}")

    def start_agents(self, numbers: list[int]) -> None:
        agents = Agents(numbers)
        arguments = [str(self.seed), str(EVERY_MS), *map(str, numbers)]
        name = f"agents-{len(self.agents)}"
        agents.part = self.parts.python(name, "tests.integration.chaos_agents", *arguments, on_line=agents.hears)
        self.agents.append(agents)

    # --- what befalls them --------------------------------------------------------------------------------------------

    def schedule(self) -> list[tuple[float, str, Callable[[], None]]]:
        """Return what happens when, in seconds after the agents' start."""
        chance = random.Random(self.seed)
        acts: list[tuple[str, Callable[[], None]]] = [
            ("kill a processor", lambda: self.stage.kill(chance.choice(self.stage.processors))),
            ("freeze a processor", lambda: self.stage.freeze(chance.choice(self.stage.processors), FROZEN_MS)),
            ("kill a compensator", lambda: self.stage.kill(chance.choice(self.stage.compensators))),
            ("freeze a compensator", lambda: self.stage.freeze(chance.choice(self.stage.compensators), FROZEN_MS)),
            ("retire a processor", lambda: self.stage.retire(chance.choice(self.stage.processors))),
            ("retire a compensator", lambda: self.stage.retire(chance.choice(self.stage.compensators))),
            ("flush Redis", self._flush),
            ("kill Redis", self._restart_registry),
            ("kill the broker", self._restart_broker),
            ("kill a process of agents", self._kill_agents),
        ]
        chance.shuffle(acts)
        return [(3.5 * place + chance.uniform(2, 5), word, act) for place, (word, act) in enumerate(acts)]

    def _flush(self) -> None:
        with redis.Redis.from_url(self.registry.url) as client:
            client.flushall()

    def _restart_registry(self) -> None:
        self.registry.kill()
        time.sleep(REDIS_GONE_S)
        self.registry.restart()

    def _restart_broker(self) -> None:
        self.kafka.kill()
        self.kafka.restart()

    def _kill_agents(self) -> None:
        """Kill one process; another begins what it had not begun."""
        victim = self.agents[0]
        assert victim.part is not None
        victim.part.kill()
        self.start_agents([number for number in victim.numbers if number not in victim.said])

    def play(self) -> None:
        """Let everything happen; return when the agents have ended and nobody is frozen."""
        self.stage.start()
        numbers = list(range(WORKFLOWS))
        self.start_agents(numbers[::2])
        self.start_agents(numbers[1::2])
        begun_s = time.monotonic()
        for after_s, word, act in self.schedule():
            self._wait_until(begun_s + after_s)
            self.tell(word)
            act()
        until(lambda: all(a.part is not None and not a.part.child.alive for a in self.agents), self.words)
        self.stage.await_awake()

    def _wait_until(self, at_s: float) -> None:
        while time.monotonic() < at_s:
            self.stage.look()
            time.sleep(0.05)

    # --- what became of them ------------------------------------------------------------------------------------------

    def echoes(self) -> dict[str, WorkflowEcho]:
        found: dict[str, WorkflowEcho] = {}
        for echo in self._records(self.settings.topics.workflows):
            if isinstance(echo, WorkflowEcho) and echo.folded_to >= found.get(echo.workflow_id, echo).folded_to:
                found[echo.workflow_id] = echo
        return found

    def incidents(self) -> list[Incident]:
        records = self._records(self.settings.topics.incidents)
        last = {record.incident_id: record for record in records if isinstance(record, Incident)}
        return [incident for incident in last.values() if incident.state is IncidentState.OPEN]

    def facts(self, workflow: str) -> list[str]:
        """Return what the ledger holds of a workflow."""
        places = self._records(self.settings.topics.ledger)
        return [str(fact) for fact in places if getattr(fact, "workflow_id", "") == workflow]

    def lag(self) -> int:
        """Return how many records are not committed: of the ledger by processors, of commands by compensators."""
        topics = self.settings.topics
        groups = {"amends-processor": topics.ledger}
        groups |= {group_of(self.settings, lane): topics.undo(lane) for lane in LANES}
        return sum(self._lag(group, topic) for group, topic in groups.items())

    def words(self) -> str:
        return f"seed {self.seed}\n" + "\n".join([*self.lines, *self.stage.crashed])

    def _lag(self, group: str, topic: str) -> int:
        places = [ClientPartition(topic, number) for number in range(self.settings.partitions)]
        client = Consumer({"bootstrap.servers": self.settings.bootstrap_servers, "group.id": group})
        try:
            ends = [client.get_watermark_offsets(place, timeout=10)[1] for place in places]
            taken = [max(place.offset, 0) for place in client.committed(places, timeout=10)]
            return sum(ends) - sum(taken)
        finally:
            client.close()

    def _records(self, topic: str) -> Iterator[object]:
        with PartitionReader(self.settings) as reader:
            ends = reader.ends(topic, range(self.settings.partitions))
            for records in reader.read(dict.fromkeys(ends, HEAD), ends):
                yield from (decode(record.value) for record in records if record.value is not None)


@pytest.fixture
def chaos(own_kafka: KafkaServer, own_redis: RedisServer, tmp_path: Path, topic_prefix: str) -> Iterator[Chaos]:
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
    print(f"seed {seed}: CHAOS_SEED={seed} plays this schedule again")
    made = Chaos(own_kafka, own_redis, tmp_path, topic_prefix, seed)
    try:
        yield made
    finally:
        made.stage.stop()
        os.environ.pop(FOLDER)


def test_two_hundred_workflows_under_kills_and_freezes_leave_nothing_and_do_nothing_twice(chaos: Chaos) -> None:
    chaos.play()
    until(lambda: all(echo.phase in CLOSED for echo in chaos.echoes().values()), chaos.words, every_s=1)
    echoes, said = chaos.echoes(), {n: word for agents in chaos.agents for n, word in agents.said.items()}
    wrong = []
    for number in range(WORKFLOWS):
        name, told = name_of(number), said.get(number, "never begun")
        echo, written = echoes.get(name), lines(name)
        phase = echo.phase if echo is not None else None
        wrong += [f"{name}: {what} (agent: {told}, {phase}): {written}" for what in problems(told, echo, written)]
    wrong += [f"an incident that no one needs: {incident.summary}" for incident in chaos.incidents()]
    print(Counter(said.values()), Counter(str(echo.phase) for echo in echoes.values()))
    assert not wrong, "\n".join([chaos.words(), *wrong, *chaos.facts(wrong[0].partition(":")[0])])
    assert not chaos.stage.crashed, chaos.words()
    assert [a.part.child.exit_code for a in chaos.agents if a.part is not None] == [-signal.SIGKILL, 0, 0]
    until(lambda: chaos.lag() == 0, lambda: f"{chaos.words()}\nlag {chaos.lag()}", every_s=1)


def problems(said: str, echo: WorkflowEcho | None, written: list[str]) -> list[str]:
    """Return what is wrong about one workflow: what its agent was told, what the fold says, what the world shows."""
    if echo is None:
        return ["the ledger never knew it"] if written else []
    stands = echo.phase is Phase.SUCCEEDED
    wrong = judge(written, stands=stands)
    if said == "Succeeded" and not stands:
        wrong.append(f"the agent was told of a success, and it is {echo.phase}")
    if said.startswith("failed") and stands:
        wrong.append(f"the agent failed ({said}), and it is {echo.phase}")
    if "AlreadyRunning" in said:
        wrong.append("the agent was told that its id is in use, and nobody else used it")
    return wrong


def until(true: Callable[[], bool], words: Callable[[], str], *, every_s: float = 0.1) -> None:
    """Wait for a fact, with a deadline."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < give_up_at, words()
        time.sleep(every_s)
