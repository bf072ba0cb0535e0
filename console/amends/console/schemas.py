"""`amends schemas check|register|list`: what this version writes and reads, and what the schema registry has of it."""

from __future__ import annotations

from collections.abc import Callable

import typer

from amends.console.exits import FAILED, NEEDS_ATTENTION, USAGE, Stop
from amends.console.options import AsJson
from amends.console.output import show_json, show_table
from amends.kafka.loading import load_settings
from amends.kafka.registering import LEVEL, Subject, examine, register
from amends.kafka.schema_registry_answers import SchemaRegistryAway, SchemaRegistryFault
from amends.kafka.schema_registry_client import SchemaRegistryClient
from amends.kafka.schema_registry_settings import SECTION, SchemaRegistrySettings
from amends.schemas.codec import ON_TOPICS, RECORDS, schema_of
from amends.schemas.releases import incompatibilities, released, released_versions

app = typer.Typer(
    no_args_is_help=True, help="The records: their schemas, whether every release can be read, the schema registry."
)

NO_REGISTRY = "no schema registry is set: AMENDS_SCHEMA_REGISTRY__URL is its address"


@app.callback()
def schemas() -> None:
    """The records: their schemas, whether every release can be read, and the schema registry."""


@app.command("check")
def check(as_json: AsJson = False) -> None:
    """Check that this version reads what every release wrote and, where a schema registry is set, that it has our
    schemas and none that doesn't fit; ends with 4 if anything is wrong."""
    versions = released_versions()
    current = {record.__name__: schema_of(record) for record in RECORDS}
    problems = [
        {"version": version, "problem": problem}
        for version in versions
        for name, older in released(version).items()
        for problem in (incompatibilities(older, current[name]) if name in current else [f"{name} is gone"])
    ]
    settings = load_settings(SchemaRegistrySettings, SECTION)
    subjects = _asked(settings, examine) if settings.is_set else []
    wrong = [subject for subject in subjects if subject.problems]
    if as_json:
        found = {"records": list(current), "released": versions, "problems": problems}
        show_json({**found, "registry_asked": settings.is_set, "subjects": subjects})
    else:
        if problems:
            show_table(["version", "problem"], [tuple(p.values()) for p in problems], none="")
        else:
            typer.echo(f"{len(RECORDS)} records; released: {', '.join(versions) or 'none yet'}; all can be read")
        if not settings.is_set:
            typer.echo(f"{NO_REGISTRY}; none was asked")
        _say(subjects)
    if problems or wrong:
        raise typer.Exit(NEEDS_ATTENTION)


@app.command("register")
def register_schemas(as_json: AsJson = False) -> None:
    """Set FULL_TRANSITIVE for the subjects of our records and register what is missing; ends with 4, and changes
    nothing, if one doesn't fit what is registered. Again, it does nothing."""
    settings = _settings()
    subjects = _asked(settings, register)
    if as_json:
        show_json({"subjects": subjects})
    else:
        _say(subjects)
    if any(subject.problems for subject in subjects):
        raise typer.Exit(NEEDS_ATTENTION)


@app.command("list")
def list_schemas(as_json: AsJson = False) -> None:
    """List the subjects of our records as the schema registry has them."""
    subjects = _asked(_settings(), examine)
    if as_json:
        show_json({"subjects": subjects})
        return
    show_table(
        ["subject", "id", "version", "all versions", "compatibility"],
        [
            (s.subject, _or_dash(s.id), _or_dash(s.version), ", ".join(map(str, s.versions)), s.compatibility or "—")
            for s in subjects
        ],
        none="",
    )


def _settings() -> SchemaRegistrySettings:
    settings = load_settings(SchemaRegistrySettings, SECTION)
    if not settings.is_set:
        raise Stop(NO_REGISTRY, USAGE)
    return settings


def _asked(settings: SchemaRegistrySettings, ask: Callable[[SchemaRegistryClient], list[Subject]]) -> list[Subject]:
    """Return what the registry said. Raises Stop, SettingsWrong."""
    try:
        with SchemaRegistryClient(settings) as client:
            return ask(client)
    except SchemaRegistryAway as away:
        raise Stop(f"the schema registry {away}", FAILED) from away
    except SchemaRegistryFault as fault:  # the settings: who we are, whom we trust, where it is
        raise Stop(f"the schema registry {fault}", USAGE) from fault


def _say(subjects: list[Subject]) -> None:
    wrong = [(subject.subject, problem) for subject in subjects for problem in subject.problems]
    if wrong:
        show_table(["subject", "problem"], wrong, none="")
    elif subjects:
        typer.echo(f"the schema registry has all {len(ON_TOPICS)} schemas; each subject is {LEVEL}")


def _or_dash(number: int | None) -> str:
    return "—" if number is None else str(number)
