"""`amends acls`: the least rights of each part on Kafka, as commands for kafka-acls or as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer
from pydantic import BaseModel

from amends.console.configuration import sections
from amends.console.exits import USAGE, Stop
from amends.console.options import AsJson, EngineName, Kafka
from amends.console.output import show_json
from amends.kafka.loading import load_settings
from amends.kafka.rights import Part, Right, rights_of, rights_to_change_engine
from amends.kafka.settings import KafkaSettings
from amends.schemas.topics import TRANSACTIONS

app = typer.Typer(help="The least rights of each part on Kafka, as commands for kafka-acls.")

PARTS = ", ".join(Part)


@app.callback(invoke_without_command=True)
def acls(
    part: Annotated[list[Part] | None, typer.Option("--part", help="Only this part; may be given again.")] = None,
    principal: Annotated[
        list[str] | None,
        typer.Option(
            "--principal",
            metavar="PART=PRINCIPAL",
            help="Whom a part comes as, such as processor=User:CN=amends; otherwise User:amends-PART.",
        ),
    ] = None,
    lane: Annotated[
        list[str] | None, typer.Option("--lane", help="Lanes that the compensator serves; otherwise all of them.")
    ] = None,
    as_json: AsJson = False,
    kafka: Kafka = None,
    engine: Annotated[EngineName | None, typer.Option("--engine", help="Instead of AMENDS_PROCESSOR__ENGINE.")] = None,
    refold: Annotated[
        bool, typer.Option("--refold", help="Only what the one start that changes to this engine needs beside.")
    ] = False,
) -> None:
    """Print what each part needs under these settings, and nothing more. Asks no broker, changes nothing.

    Lines go to whoever may alter the cluster: `amends acls | sh`, with kafka-acls on the PATH, and --command-config
    where the cluster wants it.
    """
    settings = load_settings(KafkaSettings, "kafka", bootstrap_servers=kafka)
    lanes = _known(lane, settings)
    principals = _principals(principal or ())
    application_id, engine_set = _processor()
    chosen = engine_set if engine is None else engine.value
    if refold:
        beside = rights_to_change_engine(settings, application_id=application_id, engine=chosen)
        granted = [(principals[Part.PROCESSOR], right) for right in beside]
    else:
        granted = [
            (principals[each], right)
            for each in part or list(Part)
            for right in rights_of(each, settings, application_id=application_id, lanes=lanes, engine=chosen)
        ]
    if as_json:
        show_json([_document(whom, right) for whom, right in granted])
        return
    for whom, right in granted:
        typer.echo(" ".join(_command(settings, whom, right)))


def _document(principal: str, right: Right) -> dict[str, object]:
    return {
        "principal": principal,
        "resource": right.resource.value,
        "name": right.name,
        "pattern": _pattern(right),
        "operations": [operation.value for operation in right.operations],
    }


def _command(settings: KafkaSettings, principal: str, right: Right) -> Iterator[str]:
    yield from ("kafka-acls", "--bootstrap-server", shlex.quote(settings.bootstrap_servers), "--add")
    yield from ("--allow-principal", shlex.quote(principal))
    for operation in right.operations:
        yield from ("--operation", operation.value)
    yield from (f"--{right.resource}", shlex.quote(right.name))
    if right.prefixed:
        yield from ("--resource-pattern-type", _pattern(right))


def _pattern(right: Right) -> str:
    return "prefixed" if right.prefixed else "literal"


def _known(lanes: Sequence[str] | None, settings: KafkaSettings) -> Sequence[str] | None:
    for lane in lanes or ():
        if lane not in settings.lanes:
            raise Stop(f"there is no lane {lane!r}: lanes are {', '.join(settings.lanes)} (AMENDS_KAFKA__LANES)", USAGE)
    return lanes or None


def _principals(given: Sequence[str]) -> Mapping[Part, str]:
    principals = {part: f"User:amends-{part.value}" for part in Part}
    for text in given:
        name, _, principal = text.partition("=")
        if name not in list(Part) or ":" not in principal:
            raise Stop(f"--principal {text!r} is not PART=TYPE:NAME, such as processor=User:p; parts: {PARTS}", USAGE)
        principals[Part(name)] = principal
    return principals


def _processor() -> tuple[str, str]:
    """Return the processor's name for its group, and its engine, where its settings are installed."""
    model: type[BaseModel] | None = sections().get("processor")
    found = load_settings(model, "processor") if model is not None else None
    return getattr(found, "application_id", "amends-processor"), getattr(found, "engine", TRANSACTIONS)
