"""Apache Kafka as Java jars: resolved once by Maven from a pinned pom, kept in the user's cache folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Literal

from amends.local.errors import ServerUnavailable

JAVA_VERSION_MIN = 17
MAVEN_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class ApacheKafka:
    """An Apache Kafka ready to start: the Java to run it, its jars, a formatted, empty storage folder to copy."""

    java: str
    version: str
    jars: Path
    formatted: Path

    @property
    def classpath(self) -> str:
        return str(self.jars / "*")


@dataclass(frozen=True, slots=True)
class Listener:
    """A further door of a broker on 127.0.0.1. `settings` are the broker's for this listener alone."""

    name: str
    port: int
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class BrokerSetup:
    """What a broker has beside the usual. The plain listener stays: it is how we see that the broker is up."""

    listeners: Sequence[Listener] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    java_options: Sequence[str] = ()


USUAL = BrokerSetup()


def why_not() -> str | None:
    """Return why Apache Kafka can't be started here, or None if it can (the jars may still have to be fetched)."""
    java = _java()
    if java is None:
        return "there is no `java` (JAVA_HOME or PATH)"
    version = _java_version(java)
    if version < JAVA_VERSION_MIN:
        return f"{java} is Java {version}, and Apache Kafka 4 asks for {JAVA_VERSION_MIN}"
    if _cached(_cache_folder()) is None and shutil.which("mvn") is None:
        return "there is no `mvn` on the PATH to fetch its jars"
    return None


def resolve() -> ApacheKafka:
    """Return Apache Kafka's jars, fetching them at the first call (about ten seconds).

    Safe when several processes call it at once. Raises ServerUnavailable where `why_not` has a reason or Maven fails.
    """
    reason = why_not()
    java = _java()
    if reason is not None or java is None:
        raise ServerUnavailable(f"Apache Kafka can't be started here: {reason}")
    folder = _cache_folder()
    found = _cached(folder)
    if found is None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock")):
            found = _cached(folder) or _fetch(folder, java)
    return ApacheKafka(java, _version(found), found / "jars", found / "formatted")


def server_properties(*, broker_port: int, controller_port: int, data: Path, setup: BrokerSetup = USUAL) -> str:
    """Return the settings of a one-node KRaft cluster on 127.0.0.1, tuned to start and to come back quickly.

    A short broker session lets a broker that was killed register again at once; small internal topics load quickly
    after a restart; a cleaner that looks often makes compaction visible in tests.
    """
    further = [(door.name, f"{door.name}://127.0.0.1:{door.port}") for door in setup.listeners]
    advertised = ",".join([f"PLAINTEXT://127.0.0.1:{broker_port}", *(address for _, address in further)])
    protocols = ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", *(f"{d.name}:{d.protocol}" for d in setup.listeners)]
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{advertised},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": advertised,
        "listener.security.protocol.map": ",".join(protocols),
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "controlled.shutdown.enable": "false",
        # Of few cores, which all parts share: each further thread is one more to be woken for a request.
        "num.network.threads": "1",
        "num.io.threads": "2",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "log.cleaner.backoff.ms": "1000",
        "log.index.size.max.bytes": str(1024 * 1024),
        **setup.settings,
    }
    for door in setup.listeners:
        settings |= {f"listener.name.{door.name.lower()}.{name}": value for name, value in door.settings.items()}
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _cache_folder() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "amends" / f"kafka-{hashlib.sha256(_pom()).hexdigest()[:12]}"


def _pom() -> bytes:
    return (resources.files("amends.local") / "apache_kafka" / "pom.xml").read_bytes()


def _cached(folder: Path) -> Path | None:
    return folder if (folder / "formatted" / "meta.properties").is_file() else None


def _version(folder: Path) -> str:
    names = [
        match[1] for jar in (folder / "jars").iterdir() if (match := re.fullmatch(r"kafka_2\.13-(.+)\.jar", jar.name))
    ]
    return names[0]


def _fetch(folder: Path, java: str) -> Path:
    """Fetch the jars and format an empty storage folder beside them; visible under `folder` only when whole."""
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as work_name:
        work = Path(work_name)
        whole = work / "whole"
        whole.mkdir()
        pom = work / "pom.xml"
        pom.write_bytes(_pom())
        maven = [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={whole / 'jars'}",
        ]
        _run([*maven, "-DincludeScope=runtime"], "Maven could not fetch Apache Kafka's jars")
        settings = work / "server.properties"
        settings.write_text(
            server_properties(broker_port=9092, controller_port=9093, data=whole / "formatted"), encoding="utf-8"
        )
        tool = [
            java,
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            str(whole / "jars" / "*"),
            "kafka.tools.StorageTool",
        ]
        _run(
            [*tool, "format", "-t", "YW1lbmRzLWxvY2FsLWthZg", "-c", str(settings)],
            "Kafka's storage could not be formatted",
        )
        shutil.rmtree(folder, ignore_errors=True)
        whole.rename(folder)
    return folder


def _run(arguments: list[str], complaint: str) -> None:
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise ServerUnavailable(f"{complaint}: no answer for {MAVEN_TIMEOUT_S} s") from late
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise ServerUnavailable(f"{complaint} (exit code {done.returncode}):\n" + "\n".join(lines[-8:]))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (java := shutil.which("java", path=str(Path(home) / "bin"))):
        return java
    return shutil.which("java")


def _java_version(java: str) -> int:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else 0
