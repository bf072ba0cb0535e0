"""One chaos from its beginning to its verdict: parts work, faults befall them, all is healed, the world is judged."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis
from tests.chaos.evidence import write_evidence
from tests.chaos.faults import Faults
from tests.chaos.hand_over import FOLDER, parent_of
from tests.chaos.judge import Case, judge
from tests.chaos.outside import Outside
from tests.chaos.proxy import Link, network
from tests.chaos.schedule import EVERY_S, schedule
from tests.chaos.tools import LANES, PORT
from tests.chaos.troupe import Troupe
from tests.chaos.watch import Watch

from amends.kafka.settings import KafkaSettings
from amends.local.children import free_port
from amends.local.kafka_cluster import KafkaCluster, kafka_cluster
from amends.local.parts import Parts, environment, make_topics
from amends.local.redis_server import RedisServer, start_redis
from amends.schemas.codec import decode
from amends.schemas.facts import Fact
from amends.schemas.topics import TRANSACTIONS

ENGINE = "AMENDS_PROCESSOR__ENGINE"
PARTITIONS = 4
WARM, WARM_WITHIN_S = 10, 90.0
STATUS_EVERY_S = 10.0
LOOK_EVERY_S = 0.1
CLOSED_WITHIN_S = 240.0
DRAINED_WITHIN_S = 60.0
QUIET_S = 6.0
CRASHES_MAX = 8
PATIENCE = {
    "AMENDS_PRODUCER__STANDING_WITHIN_MS": "20000",
    "AMENDS_PRODUCER__CONFIRM_WITHIN_MS": "20000",
    "AMENDS_COMPENSATOR__PROCESSES": "1",
    "AMENDS_PROCESSOR__STALL_MS": "45000",
}


@dataclass
class Verdict:
    """What became of a chaos. `wrong` is empty if every promise was kept."""

    seed: int
    begun: int = 0
    closed: int = 0
    waiting: int = 0
    asked: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        words = [
            f"{self.begun} workflows, {self.closed} closed, {self.waiting} wait for a person; {self.asked} requests to "
            f"the remotes; {sum(self.faults.values())} faults of {len(self.faults)} kinds",
            "the agents said: " + ", ".join(f"{word} {count}" for word, count in self.said.most_common()),
            "phases: " + ", ".join(f"{phase} {count}" for phase, count in self.phases.most_common()),
        ]
        return "\n".join(words)


class Chaos:
    """Made by `chaos`. `play` may be called once."""

    def __init__(
        self, seed: int, folder: Path, cluster: KafkaCluster, registry: RedisServer, links: list[Link],
        redis_link: Link, outside: Outside, begun_s: float, told: Callable[[str], None], engine: str,
    ) -> None:  # fmt: skip
        self.seed = seed
        self.folder = folder
        self.outside = outside
        self.begun_s = begun_s
        self.told = told
        self.lines: list[str] = []
        self._asking: threading.Thread | None = None
        count = len(cluster.brokers)
        self.settings = KafkaSettings(
            bootstrap_servers=cluster.inner_servers, topic_prefix=f"chaos-{uuid.uuid4().hex[:8]}", lanes=LANES,
            partitions=PARTITIONS, replication_factor=min(3, count),
        )  # fmt: skip
        make_topics(self.settings, engine)
        outer = self.settings.model_copy(update={"bootstrap_servers": cluster.bootstrap_servers})
        redis_url = f"redis://127.0.0.1:{redis_link.port}/0"
        variables = {
            **environment(outer, redis_url), **PATIENCE, ENGINE: engine, PORT: str(outside.port), FOLDER: str(folder),
        }  # fmt: skip
        self.registry = registry
        self.parts = Parts(variables, folder)
        self.troupe = Troupe(self.parts, self.tell, seed=seed)
        self.watch = Watch(self.settings)
        self.faults = Faults(self.troupe, cluster, registry, links, redis_link, outside, self.tell)

    def play(self, seconds: float, every_s: float = EVERY_S) -> Verdict:
        """Let everything happen for so long, a fault about every `every_s`; heal it, and judge. Blocks."""
        planned = schedule(self.seed, seconds, every_s=every_s)
        self.watch.start()
        self.troupe.start()
        self.tell(f"warms up until {WARM} workflows are closed")
        self._until(lambda: self.watch.counts()[1] >= WARM, WARM_WITHIN_S)
        self.begun_s = time.monotonic()
        self.tell(f"begins: {len(planned)} faults in {seconds:.0f} s")
        shown_s = 0.0
        waiting = list(planned)
        while (now_s := time.monotonic() - self.begun_s) < seconds and not self._crash_loops():
            self.troupe.look()
            while waiting and waiting[0].at_s <= now_s:
                self.faults.begin(waiting.pop(0))
            if now_s >= shown_s + STATUS_EVERY_S:
                shown_s = now_s
                self._status_aside()
            time.sleep(LOOK_EVERY_S)
        return self._judge(self._heal())

    def stop(self) -> None:
        """End whatever runs. Can be called twice, at any time."""
        self.faults.abandon()
        self.troupe.stop()
        self.watch.stop()

    def status(self) -> None:
        """Say how it goes."""
        begun, closed, waiting = self.watch.counts()
        lag = self.watch.lag()
        self.tell(
            f"STATUS  workflows {begun} begun, {closed} closed, {waiting} wait for a person · "
            f"faults {sum(self.faults.done.values())} · lag {'unknown' if lag is None else lag} · "
            f"remotes {self.outside.asked} requests"
        )

    def _status_aside(self) -> None:
        """Say how it goes from a thread: brokers that are down let it wait, and the faults must not."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self.status, name="status", daemon=True)
            self._asking.start()

    def tell(self, what: str) -> None:
        line = f"{time.monotonic() - self.begun_s:8.2f} s  {what}"
        self.lines.append(line)
        self.told(line)

    def _crash_loops(self) -> bool:
        """Whether so many parts ended by themselves that nothing more is to be learnt."""
        return len(self.troupe.crashed) > CRASHES_MAX

    # --- the end ------------------------------------------------------------------------------------------------------

    def _heal(self) -> list[str]:
        """End the faults and the agents, wait until all is closed and drained; return what did not end in time."""
        self.tell("HEALS   no more faults; agents end what they do")
        self.faults.end()
        wrong = [f"a fault could not be done: {failure}" for failure in self.faults.failures]
        wrong += [f"an agent hangs: {late}" for late in self.troupe.dismiss_agents()]
        self.tell("        the agents have ended")
        if not self._until(lambda: not self.watch.hanging() and self.watch.quiet_s() > QUIET_S, CLOSED_WITHIN_S):
            hanging = self.watch.hanging()
            wrong += [f"{name}: 6: not closed {CLOSED_WITHIN_S:.0f} s after all was healed" for name in hanging]
            if not hanging:
                wrong.append(f"6: the ledger did not become quiet within {CLOSED_WITHIN_S:.0f} s")
        if not self._until(lambda: self.watch.lag() == 0, DRAINED_WITHIN_S):
            wrong.append(f"6: a lag of {self.watch.lag()} is left {DRAINED_WITHIN_S:.0f} s after everything was closed")
        self.status()
        return wrong

    def _until(self, true: Callable[[], bool], within_s: float) -> bool:
        end = time.monotonic() + within_s
        shown_s = time.monotonic()
        while time.monotonic() < end and not self._crash_loops():
            self.troupe.look()
            if true():
                return True
            if time.monotonic() > shown_s + STATUS_EVERY_S:
                shown_s = time.monotonic()
                self.status()
            time.sleep(LOOK_EVERY_S)
        return False

    def _judge(self, wrong: list[str]) -> Verdict:
        verdict = Verdict(self.seed, *self.watch.counts(), asked=self.outside.asked, wrong=wrong)
        verdict.faults.update({kind.value: count for kind, count in self.faults.done.items()})
        said = self.troupe.heard()
        verdict.said.update(said.values())
        verdict.phases.update(echo.phase.value for echo in self.watch.echoes.values())
        for name in sorted({*self.watch.facts, *self.outside.effects}):
            parent = parent_of(name)
            above = None if parent is None else self._case(parent, said.get(parent))
            wrong += [f"{name}: {what}" for what in judge(self._case(name, said.get(name), above))]
        if not any(effect.undone_serials for effects in self.outside.effects.values() for effect in effects):
            wrong.append("nothing was undone, so nothing was shown: the machine is too busy, see --every")
        wrong += [f"a part crashed: {crash}" for crash in self.troupe.crashed]
        wrong += [f"the watch: {failure}" for failure in self.watch.failures]
        wrong += [f"a key of Redis without an end: {key}" for key in _endless_keys(self.registry.url)]
        self.tell(f"JUDGED  {len(wrong)} violations")
        (self.folder / "timeline").write_text("\n".join(self.lines) + "\n")
        write_evidence(wrong, self.outside, self.folder, self._inner_environment())
        return verdict

    def _case(self, name: str, said: str | None, parent: Case | None = None) -> Case:
        incidents = [found for found in self.watch.incidents.values() if found.workflow_id == name]
        opened = [found for found in self.watch.open_incidents() if found.workflow_id == name]
        facts: list[tuple[int, Fact]] = []
        for record in self.watch.facts.get(name, []):
            found = decode(record.value)
            if isinstance(found, Fact):
                facts.append((record.offset, found))
        effects = self.outside.effects.get(name, [])
        return Case(name, effects, facts, self.watch.echoes.get(name), incidents, said, opened, parent)

    def _inner_environment(self) -> dict[str, str]:
        return {**self.parts.environment, "AMENDS_KAFKA__BOOTSTRAP_SERVERS": self.settings.bootstrap_servers}


@contextlib.contextmanager
def chaos(
    seed: int, brokers: int, folder: Path, told: Callable[[str], None], engine: str = TRANSACTIONS
) -> Iterator[Chaos]:
    """Have servers, proxies, remotes and parts for the length of a block; logs go to `folder`.

    Raises ServerUnavailable.
    """
    begun_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(network())
        outside = Outside(seed, begun_s, loop)
        registry = start_redis(preference="server")
        stack.callback(registry.stop)
        redis_link = Link(
            "the link to Redis", free_port(), int(registry.url.rpartition(":")[2].partition("/")[0]), loop
        )
        links = [Link(f"the link to broker {number}", free_port(), 0, loop) for number in range(1, brokers + 1)]
        cluster = stack.enter_context(kafka_cluster(brokers, advertised_ports=[link.port for link in links]))
        for link, broker in zip(links, cluster.brokers, strict=True):
            link.upstream_port = broker.client_port
            stack.callback(link.close)
        stack.callback(redis_link.close)
        told(f"{cluster.kind} at {cluster.bootstrap_servers} (inside: {cluster.inner_servers}) · Redis: {registry.url}")
        made = Chaos(seed, folder, cluster, registry, links, redis_link, outside, begun_s, told, engine)
        stack.callback(made.stop)
        yield made


def _endless_keys(url: str) -> list[str]:
    with redis.Redis.from_url(url) as client:
        return [str(key) for key in client.scan_iter() if client.ttl(key) == -1]
