"""Does to the parts what the schedule says. Each fault runs in a thread of its own, for as long as it lasts.

Two faults of the same servers do not run at once: the later one is left out, and said to be.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import psutil
import redis
from tests.chaos.outside import Outside
from tests.chaos.proxy import Link, Mode
from tests.chaos.schedule import FROZEN_S, Fault, Kind
from tests.chaos.troupe import Troupe
from tests.killing.stage import signal_tree

from amends.local.kafka_cluster import Broker, KafkaCluster
from amends.local.parts import Part
from amends.local.redis_server import RedisServer

DISK_BYTES = 1
DIES_OF_ITS_DISK_S = 20.0
FULL_BYTES = "1"

Victim = TypeVar("Victim")


@dataclass
class Faults:
    """Everything that can be hurt."""

    troupe: Troupe
    cluster: KafkaCluster
    registry: RedisServer
    brokers: Sequence[Link]
    redis: Link
    outside: Outside
    told: Callable[[str], None]
    done: Counter[Kind] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    _brokers_busy: threading.Lock = field(default_factory=threading.Lock)
    _redis_busy: threading.Lock = field(default_factory=threading.Lock)
    _links_busy: threading.Lock = field(default_factory=threading.Lock)
    _redis_link_busy: threading.Lock = field(default_factory=threading.Lock)
    _remotes_busy: threading.Lock = field(default_factory=threading.Lock)
    _ending: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self, fault: Fault) -> None:
        """Let a fault happen, from a thread."""
        thread = threading.Thread(target=self._perform, args=(fault,), name=f"fault-{fault.number}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        """End every fault now, and wait until all is healed."""
        self._ending.set()
        for thread in self._threads:
            thread.join(180)
        self.troupe.await_awake()
        for broker in self.cluster.brokers:
            if not broker.alive:
                self._bring_back(broker)
        self.cluster.await_all()

    def abandon(self) -> None:
        """Let every fault end as soon as it can, and start nothing again."""
        self._ending.set()
        for thread in self._threads:
            thread.join(10)

    def _perform(self, fault: Fault) -> None:
        self.told(f"FAULT   {fault}")
        try:
            if self._do(fault):
                self.done[fault.kind] += 1
            else:
                self.told(f"        fault {fault.number} left out: another of its kind is under way")
        except Exception as failed:
            self.failures.append(f"{fault}: {type(failed).__name__}: {failed}")
            self.told(f"        fault {fault.number} failed: {failed}")

    def _do(self, fault: Fault) -> bool:
        troupe, lasting = self.troupe, fault.lasting_s
        match fault.kind:
            case Kind.KILL_PROCESSOR:
                troupe.kill(_one(troupe.processors, fault))
            case Kind.FREEZE_PROCESSOR:
                troupe.freeze(_one(troupe.processors, fault), int(FROZEN_S * 1000))
            case Kind.RETIRE_PROCESSOR:
                troupe.retire(_one(troupe.processors, fault))
            case Kind.KILL_COMPENSATOR:
                troupe.kill(_one(troupe.compensators, fault))
            case Kind.FREEZE_COMPENSATOR:
                troupe.freeze(_one(troupe.compensators, fault), int(FROZEN_S * 1000))
            case Kind.RETIRE_COMPENSATOR:
                troupe.retire(_one(troupe.compensators, fault))
            case Kind.KILL_AGENTS:
                troupe.kill(_one(troupe.agents, fault))
            case Kind.FREEZE_AGENTS:
                troupe.freeze(_one(troupe.agents, fault), int(FROZEN_S * 1000))
            case Kind.RETIRE_AGENTS:
                troupe.retire(_one(troupe.agents, fault))
            case Kind.CUT_PART | Kind.STALL_PART:
                mode = Mode.REFUSED if fault.kind is Kind.CUT_PART else Mode.STALLED
                everybody = troupe.everybody()
                return self._alone(self._links_busy, lambda: self._isolate(_one(everybody, fault), mode, lasting))
            case Kind.CUT_ALL | Kind.CUT_BROKER | Kind.STALL_BROKER:
                return self._alone(self._links_busy, lambda: self._cut(fault))
            case Kind.REMOTES_DOWN | Kind.REMOTES_SLOW:
                return self._alone(self._remotes_busy, lambda: self._trouble_remotes(fault))
            case Kind.CUT_REDIS | Kind.STALL_REDIS:
                mode = Mode.REFUSED if fault.kind is Kind.CUT_REDIS else Mode.STALLED
                return self._alone(self._redis_link_busy, lambda: self._close(self.redis, mode, lasting))
            case Kind.FLUSH_REDIS | Kind.KILL_REDIS | Kind.FREEZE_REDIS | Kind.FILL_REDIS:
                return self._alone(self._redis_busy, lambda: self._hurt_redis(fault))
            case _:
                return self._alone(self._brokers_busy, lambda: self._hurt_brokers(fault))
        return True

    def _alone(self, lock: threading.Lock, work: Callable[[], None]) -> bool:
        if not lock.acquire(blocking=False):
            return False
        try:
            work()
        finally:
            lock.release()
        return True

    def _lasts(self, seconds: float) -> None:
        self._ending.wait(seconds)

    # --- the network --------------------------------------------------------------------------------------------------

    def _isolate(self, part: Part, mode: Mode, lasting_s: float) -> None:
        self.told(f"        it is {part.name}")
        for link in self.brokers:
            link.isolate(lambda: _ports_of(part), mode)
        self._lasts(lasting_s)
        for link in self.brokers:
            link.isolate(None)

    def _cut(self, fault: Fault) -> None:
        if fault.kind is Kind.CUT_ALL:
            for link in self.brokers:
                link.cut()
            return
        mode = Mode.REFUSED if fault.kind is Kind.CUT_BROKER else Mode.STALLED
        self._close(_one(self.brokers, fault), mode, fault.lasting_s)

    def _close(self, link: Link, mode: Mode, lasting_s: float) -> None:
        self.told(f"        {link.name}: {mode}")
        link.treat_all(mode)
        self._lasts(lasting_s)
        link.treat_all(Mode.OPEN)

    def _trouble_remotes(self, fault: Fault) -> None:
        name = "down" if fault.kind is Kind.REMOTES_DOWN else "slow"
        setattr(self.outside, name, True)
        self._lasts(fault.lasting_s)
        setattr(self.outside, name, False)

    # --- Redis --------------------------------------------------------------------------------------------------------

    def _hurt_redis(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.KILL_REDIS:
                self.registry.kill()
                self._lasts(fault.lasting_s)
                self.registry.restart()
            case Kind.FREEZE_REDIS:
                with _frozen(self.registry.pid):
                    self._lasts(fault.lasting_s)
            case Kind.FILL_REDIS:
                with redis.Redis.from_url(self.registry.url) as client:
                    client.config_set("maxmemory", FULL_BYTES)
                    self._lasts(fault.lasting_s)
                    client.config_set("maxmemory", "0")
            case _:
                with redis.Redis.from_url(self.registry.url) as client:
                    client.flushall()

    # --- the brokers --------------------------------------------------------------------------------------------------

    def _hurt_brokers(self, fault: Fault) -> None:
        brokers = self.cluster.brokers
        broker = _one(brokers, fault)
        match fault.kind:
            case Kind.ROLL_BROKERS:
                for each in brokers:
                    if self._ending.is_set():
                        break
                    self.told(f"        {each.name} is stopped")
                    each.stop()
                    self._link_of(each).upstream_is(gone=True)
                    self._bring_back(each)
            case Kind.KILL_ALL_BROKERS:
                for each in brokers:
                    each.kill()
                    self._link_of(each).upstream_is(gone=True)
                self._lasts(fault.lasting_s)
                for each in brokers:
                    self.cluster.start(each)
                self.cluster.await_all()
                for each in brokers:
                    self._link_of(each).upstream_is(gone=False)
                self.told("        all brokers are back")
            case Kind.FREEZE_BROKER:
                self.told(f"        it is {broker.name}")
                with _frozen(broker.pid):
                    self._lasts(fault.lasting_s)
            case Kind.FILL_DISK:
                self._fill_disk(broker, fault.lasting_s)
            case Kind.STOP_BROKER | Kind.KILL_BROKER:
                self.told(f"        it is {broker.name}")
                broker.stop() if fault.kind is Kind.STOP_BROKER else broker.kill()
                self._link_of(broker).upstream_is(gone=True)
                self._lasts(fault.lasting_s)
                self._bring_back(broker)
            case _:
                raise AssertionError(f"nobody does {fault.kind}")

    def _fill_disk(self, broker: Broker, lasting_s: float) -> None:
        """Let every write of a broker to a file fail: it closes its folder, and so itself. Then there is room again.

        The limit on the size of its files does it: nothing outside of the process is touched.
        """
        self.told(f"        it is {broker.name}")
        _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (DISK_BYTES, hard))
        end = time.monotonic() + DIES_OF_ITS_DISK_S
        while broker.alive and time.monotonic() < end and not self._ending.wait(0.2):
            pass
        self.told(f"        {broker.name} {'lives on' if broker.alive else 'has closed itself'}")
        broker.kill()
        self._link_of(broker).upstream_is(gone=True)
        self._lasts(lasting_s)
        self._bring_back(broker)

    def _link_of(self, broker: Broker) -> Link:
        return self.brokers[broker.number - 1]

    def _bring_back(self, broker: Broker) -> None:
        self.cluster.start(broker)
        if not self.cluster.await_broker(broker, among=_quorum(self.cluster)):
            self.failures.append(f"{broker.name} did not come back:\n{broker.last_words()}")
        self._link_of(broker).upstream_is(gone=False)
        self.told(f"        {broker.name} is back")


def _quorum(cluster: KafkaCluster) -> int:
    return sum(broker.alive for broker in cluster.brokers)


def _one(among: Sequence[Victim], fault: Fault) -> Victim:
    found = list(among)
    return found[int(fault.pick * len(found))]


def _ports_of(part: Part) -> set[int]:
    """Return the local TCP ports of a part's processes."""
    ports: set[int] = set()
    with contextlib.suppress(psutil.Error):
        for process in [psutil.Process(part.pid), *psutil.Process(part.pid).children(recursive=True)]:
            ports |= {c.laddr.port for c in process.net_connections("tcp") if c.laddr}
    return ports


@contextlib.contextmanager
def _frozen(pid: int) -> Iterator[None]:
    signal_tree(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_tree(pid, signal.SIGCONT)
