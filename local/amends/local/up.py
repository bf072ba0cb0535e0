"""`amends up`: everything amends needs, on this machine, for development."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from amends.kafka.settings import KafkaSettings
from amends.local.children import keep_folder, make_folder, remove_folder
from amends.local.errors import ServerUnavailable
from amends.local.parts import PREFIX, Part, Parts, environment, make_topics
from amends.local.servers import servers
from amends.schemas.topics import FAUST, TRANSACTIONS
from amends.tools.errors import ContractError
from amends.tools.registry import HandlerRegistry

app = typer.Typer(help="Broker, registry, processor and compensator on this machine.", add_completion=False)

LOOK_EVERY_S = 0.5
SERVERS = ("AMENDS_KAFKA__", "AMENDS_COMPENSATOR__REDIS_", "AMENDS_CONFIG_FILE")
ENGINE = "AMENDS_PROCESSOR__ENGINE"


@app.callback(invoke_without_command=True)
def up(
    modules: Annotated[
        list[str] | None, typer.Option("--module", "-m", help="Module with your tools; starts a compensator for them.")
    ] = None,
    lanes: Annotated[
        list[str] | None, typer.Option("--lane", help="Undo lane the compensator serves; may be given several times.")
    ] = None,
    kafka: Annotated[str | None, typer.Option(help="HOST:PORT of a Kafka to use.")] = None,
    redis: Annotated[str | None, typer.Option(help="URL of a Redis to use.")] = None,
    embedded: Annotated[bool, typer.Option("--embedded", help="Use the embedded servers.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder that keeps Apache Kafka's data from one start to the next.")
    ] = None,
) -> None:
    """Start what is needed, say how to reach it, and run until Ctrl-C. Exits 1 if a part ends by itself."""
    try:
        served = lanes or lanes_of(modules or [])
        ended = run(modules or [], served, kafka=kafka, redis=redis, embedded=embedded, data=data)
    except (ServerUnavailable, ContractError, ImportError) as missing:
        typer.echo(f"amends up: {missing}", err=True)
        raise typer.Exit(2) from missing
    if ended is not None:
        typer.echo(ended, err=True)
        raise typer.Exit(1)


def lanes_of(modules: Sequence[str]) -> list[str]:
    """Return the undo lanes that the tools of `modules` name; one that nobody uses where there are none."""
    sys.path.insert(0, "")
    registry = HandlerRegistry()
    registry.load(modules)
    return sorted(registry.lanes) or ["default"]


def run(
    modules: Sequence[str],
    lanes: Sequence[str],
    *,
    kafka: str | None = None,
    redis: str | None = None,
    embedded: bool = False,
    data: Path | None = None,
) -> str | None:
    """Run until SIGINT or SIGTERM (returns None), or until a part ends (returns its last words).

    Leaves nothing running.
    """
    stopping = threading.Event()
    _stop_on_signals(stopping)
    folder = make_folder("up")
    ended: Part | None = None
    try:
        with servers(kafka=kafka, redis=redis, embedded=embedded, data_dir=data) as both:
            settings = KafkaSettings(
                bootstrap_servers=both.kafka.bootstrap_servers,
                lanes=tuple(lanes),
                replication_factor=1,
                embedded=both.kafka.embedded,
            )
            passed, aside = own_settings(os.environ)
            make_topics(settings, FAUST if passed.get(ENGINE) == FAUST else TRANSACTIONS)
            # Where we stand: a path that a tool is told means the same file to its agent and to its compensator.
            parts = Parts({**passed, **environment(settings, both.redis.url)}, folder, where=Path.cwd())
            try:
                started = [parts.amends("processor", "processor")]
                if modules:
                    options = [argument for lane in lanes for argument in ("--lane", lane)]
                    started.append(parts.amends("compensator", "compensator", *modules, *options))
                typer.echo(f"{both}\nLogs, while it runs: {folder}")
                if aside:
                    typer.echo(f"Left aside, for it has servers of its own: {', '.join(aside)}")
                _tell(started, environment(settings, both.redis.url))
                ended = _wait(stopping, parts, started)
                return None if ended is None else _last_words(ended, folder)
            finally:
                parts.stop()
    finally:
        (remove_folder if ended is None else keep_folder)(folder)


def _last_words(part: Part, folder: Path) -> str:
    code = part.child.exit_code
    return f"{part.name} ended with {code}, so all of it was stopped (its logs: {folder}):\n{part.last_words()}"


def own_settings(given: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables of `given` that the parts are to have, and the names of those that they can't: what says
    where the servers are, and what they are like, says the one who starts them."""
    names = sorted(name for name in given if name.startswith(PREFIX))
    aside = [name for name in names if name.startswith(SERVERS)]
    return {name: given[name] for name in names if name not in aside}, aside


def _tell(started: list[Part], variables: Mapping[str, str]) -> None:
    typer.echo(f"Running: {', '.join(part.name for part in started)}. Ctrl-C ends it.")
    typer.echo("For your agents and for the other commands:\n")
    for name, value in variables.items():
        typer.echo(f"  export {name}={value}")


def _wait(stopping: threading.Event, parts: Parts, started: list[Part]) -> Part | None:
    while not stopping.wait(LOOK_EVERY_S):
        for part in parts.dead(started):
            return part
    return None


def _stop_on_signals(stopping: threading.Event) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, stop)
