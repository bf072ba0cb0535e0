"""`amends topics create|check`: the topics as the protocol wants them."""

from __future__ import annotations

import typer

from amends.console.exits import NEEDS_ATTENTION
from amends.console.options import AsJson, Engine, EngineName, Kafka
from amends.console.output import show_json
from amends.console.reading import kafka_settings
from amends.kafka.topics import TopicsReport, create_topics, examine_topics

app = typer.Typer(no_args_is_help=True, help="The topics as the protocol wants them.")


@app.command("create")
def create(as_json: AsJson = False, kafka: Kafka = None, engine: Engine = EngineName.TRANSACTIONS) -> None:
    """Make the topics that are missing, then say what is wrong with those that were there; they are not changed."""
    settings = kafka_settings(kafka)
    created = create_topics(settings, engine)
    _report(created, examine_topics(settings, engine=engine), as_json)


@app.command("check")
def check(as_json: AsJson = False, kafka: Kafka = None, engine: Engine = EngineName.TRANSACTIONS) -> None:
    """Say what is missing or wrong; ends with 4 if anything is."""
    _report([], examine_topics(kafka_settings(kafka), engine=engine), as_json)


def _report(created: list[str], report: TopicsReport, as_json: bool) -> None:
    if as_json:
        show_json({"created": created, "problems": report.problems, "not_judged": report.not_judged})
    else:
        for name in created:
            typer.echo(f"made {name}")
        for line in (*report.not_judged, *(f"wrong: {problem}" for problem in report.problems)):
            typer.echo(line, err=True)
        if not report.problems:
            typer.echo("the topics are as amends needs them")
    if report.problems:
        raise typer.Exit(NEEDS_ATTENTION)
