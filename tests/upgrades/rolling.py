"""One release is rolled out over another, part by part, while agents of both fail: the world is the judge."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.killing.outside import gates
from tests.killing.stage import READY_DEADLINE_MS, Stage
from tests.killing.strikes import plan_of
from tests.killing.theatre import ENGINE, PATIENCE, Run, Theatre
from tests.upgrades.previous import PreviousParts

from amends.kafka.settings import KafkaSettings
from amends.local.children import free_port
from amends.local.errors import ServerUnavailable
from amends.local.parts import Part, Parts, environment
from amends.local.servers import Servers
from amends.local.story.cards import payment_method
from amends.local.story.remotes import remotes
from amends.local.story.tools import LANES
from amends.local.wire import answers
from amends.schemas.topics import TRANSACTIONS

OLD, NEW = "old", "new"
PROCESSORS, COMPENSATORS = "processors", "compensators"
NO_BROKER = 75
"""How a part ends that finds no broker at its start."""
STATE_UNREADABLE = 65
"""How a processor ends that meets state which another version wrote."""
REFOLD = "--refold"


@dataclass
class RollingStage(Stage):
    """As `Stage`, where each part is of the version that is being rolled out to its kind."""

    versions: dict[str, Parts] = field(default_factory=dict)
    rolled: dict[str, str] = field(default_factory=lambda: {PROCESSORS: OLD, COMPENSATORS: OLD})
    arguments: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What processors are started with beyond the usual, by version."""
    _ports: dict[str, int] = field(default_factory=dict)

    def _may_end(self, part: Part, code: int | None) -> bool:
        # One that folds anew does so once for each partition; what the other version wrote since, the next start does.
        refolds = part.name.endswith(OLD) and REFOLD in self.arguments.get(OLD, ())
        return super()._may_end(part, code) or (refolds and code == STATE_UNREADABLE)

    def start(self) -> None:
        """Start all, one after the other, each when the last one answers. Raises ServerUnavailable."""
        for _ in range(self.processors_wanted):
            self._start_processor()
            self.await_ready(self.processors)
        for _ in range(self.compensators_wanted):
            self._start_compensator()
            self.await_ready(self.compensators)

    def roll(self, kind: str, version: str) -> None:
        """Have every part of a kind replaced by one of `version`, one after the other, each when the last one answers.

        Raises:
            ServerUnavailable: the new one ended, or does not answer.
        """
        self.rolled[kind] = version
        among = self.processors if kind == PROCESSORS else self.compensators
        for part in list(among):
            self.retire(part)
            self.await_ready(among)

    def await_ready(self, among: list[Part]) -> None:
        """Block until the newest of some parts answers; one that found no broker is started again, as wherever parts
        run. Raises ServerUnavailable."""
        end = time.monotonic() + READY_DEADLINE_MS / 1000
        while time.monotonic() < end:
            with self._lock:
                part = among[-1]
            if answers(self._ports[part.name]):
                return
            if not part.child.alive:
                if not self._may_end(part, part.child.exit_code):
                    break
                with self._lock:
                    if self._leaves(part):
                        self._replace(part)
            time.sleep(0.05)
        raise ServerUnavailable(f"{part.name} did not start:\n{part.last_words()}")

    def stop(self) -> None:
        super().stop()
        for parts in self.versions.values():
            parts.stop()

    def _start_part(self, what: str, among: list[Part], *arguments: str) -> int:
        version = self.rolled[PROCESSORS if what == "processor" else COMPENSATORS]
        extra = self.arguments.get(version, ()) if what == "processor" else ()
        self._count += 1
        port = free_port()
        name = f"{what}-{self._count}-{version}"
        part = self.versions[version].amends(name, what, *arguments, *extra, "--health-port", str(port))
        self._ports[name] = port
        among.append(part)
        self.told(f"started {part.name} (pid {part.pid})")
        return port


class RollingTheatre(Theatre):
    """As `Theatre`, with agents of both versions, turn by turn."""

    stage: RollingStage

    def parts_of(self, run: Run) -> Parts:
        return self.stage.versions[OLD if run.plan.seed % 2 else NEW]


@contextlib.contextmanager
def rolling(
    servers: Servers,
    previous: Path,
    folder: Path,
    *,
    new_settings: dict[str, str],
    old_arguments: tuple[str, ...] = (),
    engine: str = TRANSACTIONS,
) -> Iterator[RollingTheatre]:
    """Have topics, services and the parts of the version in `previous` for the length of a block.

    Args:
        new_settings: what today's parts and agents are told beyond what both are told.
        old_arguments: what processors of the previous version are started with when it is rolled back to.
        engine: that of the processors of both versions. 0.1.0 knows of none.
    """
    settings = KafkaSettings(
        bootstrap_servers=servers.kafka.bootstrap_servers,
        topic_prefix=f"amends-upgrade-{uuid.uuid4().hex[:8]}",
        lanes=LANES,
        partitions=8,
        replication_factor=1,
        embedded=servers.kafka.embedded,
    )
    with remotes() as outside, gates(outside) as passed:
        shared = {**environment(settings, servers.redis.url), **passed.environment, **PATIENCE}
        if engine != TRANSACTIONS:
            shared[ENGINE] = engine
        versions = {
            OLD: PreviousParts(previous, shared, folder),
            NEW: Parts({**shared, **new_settings}, folder),
        }
        make_topics(versions[OLD])
        stage = RollingStage(versions[NEW], lambda _: None, excused=frozenset({NO_BROKER}), versions=versions)
        method = payment_method(outside)
        played = RollingTheatre(settings, servers.redis.url, outside, versions[NEW], method, passed, stage)
        try:
            played.start()
            stage.arguments[OLD] = old_arguments
            yield played
        finally:
            played.stop()


def make_topics(parts: Parts) -> None:
    """Have a version make the topics, as whoever installed it did. Raises ServerUnavailable."""
    end = time.monotonic() + READY_DEADLINE_MS / 1000
    while time.monotonic() < end:
        making = parts.amends("topics", "topics", "create")
        if making.child.process.wait(READY_DEADLINE_MS / 1000) == 0:
            return
    raise ServerUnavailable(f"the topics could not be made:\n{making.last_words()}")


class Load:
    """Orders one after the other, so many at once, until it is ended."""

    def __init__(self, played: Theatre, first_seed: int, at_once: int) -> None:
        self.runs: list[Run] = []
        self.failure: BaseException | None = None
        self._played = played
        self._seed = first_seed
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._play, daemon=True) for _ in range(at_once)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> list[Run]:
        """Begin nothing more, wait for what was begun, and return all."""
        self._ending.set()
        for thread in self._threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        return self.runs

    def _play(self) -> None:
        while not self._ending.is_set():
            with self._lock:
                seed, self._seed = self._seed, self._seed + 1
            try:
                run = self._played.play(plan_of(seed))
            except BaseException as failure:
                self.failure = failure
                return
            self.runs.append(run)
