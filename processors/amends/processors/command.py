"""`amends processor`: folds the ledger until SIGTERM."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from amends.kafka.errors import SettingsWrong
from amends.kafka.servers import kafka_of_settings
from amends.kafka.settings import load_settings
from amends.processors.engine import EngineError
from amends.processors.running import EXIT_SETTINGS, run
from amends.processors.settings import ProcessorSettings
from amends.processors.start import learn_schemas

app = typer.Typer(help="Fold the ledger: decide what is to be undone, and tell the compensators.", add_completion=False)


@app.callback(invoke_without_command=True)
def processor(
    refold: Annotated[
        bool, typer.Option("--refold", help="Leave the state behind and build it anew from the ledger.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Refold though open workflows can't be built from the ledger any more."),
    ] = False,
    instance_id: Annotated[
        str | None, typer.Option("--instance", help="Name that stays over restarts (static membership).")
    ] = None,
    health_port: Annotated[
        int | None, typer.Option("--health-port", help="Port of /healthz and /metrics; 0 takes a free one.")
    ] = None,
) -> None:
    """Run until SIGTERM or Ctrl-C, then stop after a last checkpoint. Start as many as there are partitions at most."""
    try:
        kafka = kafka_of_settings()
        settings = load_settings(ProcessorSettings, "processor", instance_id=instance_id, health_port=health_port)
    except SettingsWrong as wrong:
        typer.echo(f"amends processor: {wrong}", err=True)
        raise typer.Exit(EXIT_SETTINGS) from wrong
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        learn_schemas(settings)
    except SettingsWrong as wrong:
        typer.echo(f"amends processor: {wrong}", err=True)
        raise typer.Exit(EXIT_SETTINGS) from wrong
    try:
        run(kafka, settings, refold=refold, accept_loss=accept_loss)
    except EngineError as error:
        typer.echo(f"amends processor: {error}", err=True)
        raise typer.Exit(error.exit_code) from error
