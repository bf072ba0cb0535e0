"""`amends ledger dump`: the facts as people or programs read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from amends.console.options import AsJson, Kafka, Since, since_ms
from amends.console.output import as_json as to_json
from amends.console.output import moment, safe, show_json
from amends.console.phrases import of_fact
from amends.console.reading import kafka_settings, read_partition, read_topics
from amends.kafka.records import Record
from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.facts import Fact
from amends.schemas.keys import record_key

app = typer.Typer(no_args_is_help=True, help="The ledger: every fact there is.")


@app.callback()
def ledger() -> None:
    """The ledger: every fact there is."""


@app.command("dump")
def dump(
    workflow: Annotated[
        str | None, typer.Option("--workflow", help="Only what stands under this workflow's id.")
    ] = None,
    since: Since = None,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Input, output and other bytes too: they may hold personal data.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="End after so many.")] = None,
    as_json: AsJson = False,
    kafka: Kafka = None,
) -> None:
    """Print facts, oldest first within a partition: a line each, with --json a JSON document each."""
    settings = kafka_settings(kafka)
    topic, begin = settings.topics.ledger, since_ms(since)
    records: Iterator[Record] = (
        read_topics(settings, [topic]) if workflow is None else read_partition(settings, topic, record_key(workflow))
    )
    recent = (record for record in records if begin is None or record.appended_at_ms >= begin)
    for record in islice(recent, limit):
        if as_json:
            show_json(_document(record, payloads), one_line=True)
        else:
            typer.echo(safe(_line(record)))


def _fact(record: Record) -> tuple[Fact | None, str]:
    try:
        found = decode(record.value, record)
    except UnreadableRecord as error:
        return None, str(error)
    return (found, "") if isinstance(found, Fact) else (None, f"a {type(found).__name__}, which is no fact")


def _line(record: Record) -> str:
    fact, why = _fact(record)
    who, what = of_fact(fact, {}) if fact is not None else ("", f"UNREADABLE: {why}")
    key = (record.key or b"").decode(errors="replace")
    return f"{record.partition}:{record.offset}  {moment(record.appended_at_ms)}  {key}  {who}  {what}"


def _document(record: Record, payloads: bool) -> dict[str, Any]:
    fact, why = _fact(record)
    document: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "appended_at_ms": record.appended_at_ms,
        "key": (record.key or b"").decode(errors="replace"),
        "headers": {name: value.decode(errors="replace") for name, value in record.headers},
    }
    if fact is None:
        return {**document, "unreadable": why, "bytes": (record.value or b"").hex()}
    shown = {f.name: getattr(fact, f.name) for f in dataclasses.fields(fact)}
    if not payloads:
        shown = {n: {"bytes": len(v)} if isinstance(v, bytes) else v for n, v in shown.items()}
    return {**document, "type": type(fact).__name__, "fact": to_json(shown)}
