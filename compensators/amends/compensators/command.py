"""`amends compensator MODULE… --lane L`: serves undo lanes until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from amends.compensators.processes import ModulesBroken
from amends.compensators.redis_registry import RegistryUnusable
from amends.compensators.settings import CompensatorSettings
from amends.compensators.waiting import HandlersMissing
from amends.compensators.worker import Worker
from amends.kafka.errors import KafkaFault, ReadTimedOut, SettingsWrong
from amends.kafka.schema_registry_opening import open_schema_registry
from amends.kafka.seldom import collect_seldom
from amends.kafka.servers import kafka_of_settings
from amends.kafka.settings import KafkaSettings, load_settings
from amends.tools.errors import ContractError

app = typer.Typer(add_completion=False)

THREAD_SWITCH_S = 0.0003
"""Poll threads stand beside the loop; at the default of 5 ms each wakes the other late (facts/hot-path.md, 3)."""

STARTING_ERRORS = (
    SettingsWrong,
    ContractError,
    ModulesBroken,
    HandlersMissing,
    RegistryUnusable,
    KafkaFault,
)
"""What says itself what to change; anything else is a bug, or a module's own exception, and keeps its traceback."""


NO_ANSWER = 75
"""How it ends where no broker answers at the start, as a processor does: nothing is to be changed, start it again."""


@app.command()
def compensator(
    modules: Annotated[list[str] | None, typer.Argument(help="Modules that declare the tools to undo.")] = None,
    lane: Annotated[
        list[str] | None,
        typer.Option(help="An undo lane to serve; may be given again. By default, the lanes of the loaded tools."),
    ] = None,
    kafka: Annotated[str | None, typer.Option(help="host:port of brokers.")] = None,
    redis: Annotated[str | None, typer.Option(help="URL of the registry's Redis.")] = None,
    processes: Annotated[int | None, typer.Option(help="Processes for plain functions.")] = None,
    health_port: Annotated[int | None, typer.Option(help="Port of /healthz and /metrics.")] = None,
) -> None:
    """Run undos, probes and re-sends of the lanes this team has credentials for."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    sys.path.insert(0, "")
    try:
        cluster = kafka_of_settings(kafka)
        settings = load_settings(
            CompensatorSettings,
            "compensator",
            modules=modules or None,
            lanes=lane or None,
            redis_url=redis,
            processes=processes,
            health_port=health_port,
        )
        if settings.mode == "enforce":
            open_schema_registry()
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            runner.run(serve(cluster, settings))
    except STARTING_ERRORS as error:
        typer.echo(f"amends compensator: {error}", err=True)
        raise typer.Exit(NO_ANSWER if isinstance(error, ReadTimedOut) else 2) from None


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes uvloop's event loop where it is installed, else None, which is asyncio's own."""
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: slower, and the same in all else
        return None
    return uvloop.new_event_loop


async def serve(cluster: KafkaSettings, settings: CompensatorSettings) -> None:
    """Serve until SIGTERM or SIGINT; then end what was begun."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    collect_seldom()
    await Worker(cluster, settings).run(stop)
