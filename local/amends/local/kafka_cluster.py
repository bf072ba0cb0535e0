"""An Apache Kafka of several brokers on this machine, each a controller too: replicated, and taken apart at will.

Each broker has two doors. Clients are told `advertised_port` of 127.0.0.1, behind which something else may stand (a
proxy that cuts them off) and pass them on to `client_port`; brokers and whoever watches them use `inner_port`. All lie
on one disk, so a cluster shows what replication does when brokers die, and nothing about the loss of a disk.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from amends.local import jars
from amends.local.children import Child, free_port, make_folder, remove_folder
from amends.local.errors import ServerUnavailable
from amends.local.wire import kafka_brokers, wait_for

START_DEADLINE_MS = 120_000
JAVA_OPTIONS = (
    "-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)  # fmt: skip


@dataclass(slots=True)
class Broker:
    """One broker and controller. Its data stays over `kill` and `start`."""

    number: int
    client_port: int
    advertised_port: int
    inner_port: int
    controller_port: int
    folder: Path
    child: Child | None = None

    @property
    def name(self) -> str:
        return f"broker {self.number}"

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.alive

    @property
    def pid(self) -> int:
        """Return its process id. Raises ServerUnavailable if it does not run."""
        if self.child is None:
            raise ServerUnavailable(f"{self.name} does not run")
        return self.child.pid

    def kill(self) -> None:
        """End it by SIGKILL, if it runs."""
        if self.child is not None:
            self.child.kill()
            self.child = None

    def stop(self) -> None:
        """End it by SIGTERM, if it runs."""
        if self.child is not None:
            self.child.stop()
            self.child = None

    def last_words(self, lines: int = 8) -> str:
        log = self.folder / "broker.log"
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@dataclass(slots=True)
class KafkaCluster:
    """The brokers. Made by `kafka_cluster`."""

    apache: jars.ApacheKafka
    brokers: list[Broker]

    @property
    def kind(self) -> str:
        return f"apache-kafka {self.apache.version}, {len(self.brokers)} broker(s)"

    @property
    def bootstrap_servers(self) -> str:
        """The door of clients, as advertised."""
        return ",".join(f"127.0.0.1:{broker.advertised_port}" for broker in self.brokers)

    @property
    def inner_servers(self) -> str:
        """The door that no proxy stands before."""
        return ",".join(f"127.0.0.1:{broker.inner_port}" for broker in self.brokers)

    def start(self, broker: Broker) -> None:
        """Start a broker that does not run. Does not wait for it."""
        settings = broker.folder / "server.properties"
        data = broker.folder / "data"
        if not data.exists():
            _format(self.apache.formatted, data, broker.number)
        settings.write_text(_properties(broker, self.brokers, data), encoding="utf-8")
        command = [self.apache.java, *JAVA_OPTIONS, "-cp", self.apache.classpath, "kafka.Kafka", str(settings)]
        with (broker.folder / "broker.log").open("ab") as output:
            broker.child = Child(command, stdout=output, folder=broker.folder)

    def await_all(self) -> None:
        """Block until each broker that runs counts all that run among the live. Raises ServerUnavailable."""
        running = [broker for broker in self.brokers if broker.alive]
        for broker in running:
            if not self.await_broker(broker, among=len(running)):
                raise ServerUnavailable(f"{broker.name} did not come up:\n{broker.last_words()}")

    def await_broker(self, broker: Broker, among: int = 1, deadline_ms: int = START_DEADLINE_MS) -> bool:
        """Block until a broker answers and knows of so many live ones; False if it died or the deadline passed."""
        return wait_for(
            lambda: kafka_brokers("127.0.0.1", broker.inner_port) >= among,
            alive=lambda: broker.alive,
            deadline_ms=deadline_ms,
            every_ms=100,
        )

    def stop(self) -> None:
        """End all brokers by SIGKILL: a cluster that is thrown away needs no farewell."""
        for broker in self.brokers:
            broker.kill()


@contextlib.contextmanager
def kafka_cluster(count: int, *, advertised_ports: Sequence[int] | None = None) -> Iterator[KafkaCluster]:
    """Have a cluster of `count` brokers for the length of a block, with data that is removed after it.

    `advertised_ports`: what clients are told, one for each; by default the brokers' own. Raises ServerUnavailable.
    """
    apache = jars.resolve()
    folder = make_folder("cluster")
    brokers = []
    for number in range(1, count + 1):
        client, inner, controller = free_port(), free_port(), free_port()
        advertised = advertised_ports[number - 1] if advertised_ports else client
        place = folder / f"broker-{number}"
        place.mkdir()
        brokers.append(Broker(number, client, advertised, inner, controller, place))
    cluster = KafkaCluster(apache, brokers)
    try:
        for broker in brokers:
            cluster.start(broker)
        cluster.await_all()
        yield cluster
    finally:
        cluster.stop()
        remove_folder(folder)


def _format(formatted: Path, data: Path, number: int) -> None:
    """Copy an empty storage folder, as that of broker `number`."""
    shutil.copytree(formatted, data)
    meta = data / "meta.properties"
    identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)
    own = {"node.id": str(number), "directory.id": identity}
    lines = meta.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition("=")[0] not in own]
    meta.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in own.items())]) + "\n", encoding="utf-8")


def _properties(broker: Broker, brokers: Sequence[Broker], data: Path) -> str:
    """Return a broker's settings: those of a single one, and what several need; of two lines the later holds."""
    replicas = str(min(3, len(brokers)))
    in_sync = "2" if len(brokers) >= 3 else "1"
    own = {
        "node.id": str(broker.number),
        "controller.quorum.voters": ",".join(f"{b.number}@127.0.0.1:{b.controller_port}" for b in brokers),
        "listeners": f"CLIENTS://127.0.0.1:{broker.client_port},INNER://127.0.0.1:{broker.inner_port},"
        f"CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": f"CLIENTS://127.0.0.1:{broker.advertised_port},INNER://127.0.0.1:{broker.inner_port}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INNER",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "broker.session.timeout.ms": "4000",
        # One that stands still leaves the replicas in sync before writers give up on it.
        "replica.lag.time.max.ms": "5000",
        "num.replica.fetchers": "1",
    }
    base = jars.server_properties(broker_port=broker.client_port, controller_port=broker.controller_port, data=data)
    return base + "".join(f"{name}={value}\n" for name, value in own.items())
