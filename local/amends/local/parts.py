"""The parts of amends as processes of their own: what the demo, `amends up` and the killing runs start and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics, require_topics
from amends.local.children import Child
from amends.schemas.topics import TRANSACTIONS

AMENDS = (sys.executable, "-c", "from amends.console.main import main; main()")
PREFIX = "AMENDS_"


def environment(settings: KafkaSettings, redis_url: str) -> dict[str, str]:
    """Return the settings as the variables that every part reads."""
    return {
        "AMENDS_KAFKA__BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "AMENDS_KAFKA__TOPIC_PREFIX": settings.topic_prefix,
        "AMENDS_KAFKA__LANES": ",".join(settings.lanes),
        "AMENDS_KAFKA__PARTITIONS": str(settings.partitions),
        "AMENDS_KAFKA__REPLICATION_FACTOR": str(settings.replication_factor),
        "AMENDS_KAFKA__EMBEDDED": "true" if settings.embedded else "false",
        "AMENDS_COMPENSATOR__REDIS_URL": redis_url,
    }


def make_topics(settings: KafkaSettings, engine: str = TRANSACTIONS) -> None:
    """Create the topics that are missing. Raises TopicsWrong if they are not as the protocol wants them.

    `engine`: the one of the processors.
    """
    create_topics(settings, engine)
    require_topics(settings, engine=engine)


@dataclass(slots=True)
class Part:
    """One process. `log` holds what it wrote."""

    name: str
    child: Child
    log: Path

    @property
    def pid(self) -> int:
        return self.child.pid

    def kill(self) -> None:
        """SIGKILL the process and its children, as when the machine loses power."""
        kill_tree(self.pid)
        self.child.kill()

    def last_words(self, lines: int = 15) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


class Parts:
    """All processes of one run. `environment` is added to ours, of which AMENDS_ variables are left out.

    Their logs go to `folder`. They run there too, or in `where` if it is given.
    """

    def __init__(self, environment: Mapping[str, str], folder: Path, where: Path | None = None) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        # They find the modules that we would find from where we stand.
        path = os.pathsep.join([os.getcwd(), *filter(None, [kept.get("PYTHONPATH")])])
        self.environment = {**kept, **environment, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        self.folder = folder
        self.where = where or folder
        self.running: list[Part] = []

    def amends(self, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Part:
        """Start `amends ARGUMENTS…`."""
        return self._start(name, [*AMENDS, *arguments], environment or {})

    def python(self, name: str, module: str, *arguments: str, on_line: Callable[[str], None] | None = None) -> Part:
        """Start `python -m MODULE ARGUMENTS…`; `on_line` is called from a thread with each line it prints."""
        return self._start(name, [sys.executable, "-m", module, *arguments], {}, on_line)

    def stop(self) -> None:
        """Stop all that run, together; kill what has not ended after ten seconds."""
        alive = [part for part in self.running if part.child.alive]
        for part in alive:
            part.child.process.send_signal(signal.SIGTERM)
        for part in alive:
            part.child.stop()
        self.running.clear()

    def dead(self, among: Iterable[Part]) -> list[Part]:
        """Return those that have ended."""
        return [part for part in among if not part.child.alive]

    def _start(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str],
        on_line: Callable[[str], None] | None = None,
    ) -> Part:
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            child = Child(
                command,
                environment={**self.environment, **environment},
                stdout=output if on_line is None else subprocess.PIPE,
                stderr=output,
                folder=self.where,
            )
        if on_line is not None:
            threading.Thread(target=_follow, args=(child, on_line), daemon=True).start()
        part = Part(name, child, log)
        self.running.append(part)
        return part


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all its descendants."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def caller_of(port: int, among: Iterable[Part]) -> Part | None:
    """Return the part of which a process (itself, or a descendant) has the local TCP port `port`."""
    for part in among:
        try:
            family = [psutil.Process(part.pid), *psutil.Process(part.pid).children(recursive=True)]
            if any(c.laddr.port == port for process in family for c in process.net_connections("tcp") if c.laddr):
                return part
        except psutil.Error:
            continue
    return None


def _follow(child: Child, on_line: Callable[[str], None]) -> None:
    assert child.process.stdout is not None
    with child.process.stdout as lines:
        for line in lines:
            on_line(line.decode(errors="replace").rstrip())
