"""The command line: its frame, and the one place where an error becomes words and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from amends.console.discovery import PartsGroup
from amends.console.exits import FAILED, INTERRUPTED, OK, USAGE, Stop
from amends.kafka.errors import KafkaFault, ReadTimedOut, SettingsWrong

app = typer.Typer(
    cls=PartsGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Undo for agent fleets: what failed agent workflows left behind in other people's systems.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"amends {version('amends')}")
        raise typer.Exit


@app.callback(invoke_without_command=False)
def frame(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Exit codes: 0 done, 1 amends could not do it, 2 wrong arguments or settings, 3 no such thing,
    4 what was found needs a person."""


def run(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code (`exits`)."""
    try:
        app(args=list(arguments), prog_name="amends", standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else OK if end.code is None else FAILED
    except Stop as stop:
        return _end(stop.words, stop.code)
    except SettingsWrong as wrong:
        return _end(str(wrong), USAGE)
    except ReadTimedOut as silence:
        return _end(
            f"{silence}; the servers are those of --kafka, else of AMENDS_KAFKA__BOOTSTRAP_SERVERS (see `amends config "
            "show kafka`)",
            FAILED,
        )
    except KafkaFault as fault:
        return _end(str(fault), FAILED)
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def _end(words: str, code: int) -> int:
    if words:
        typer.echo(f"amends: {words}", err=True)
    return code
