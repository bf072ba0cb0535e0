"""A person's word on the ledger: who says it, why, whether it is to be written, and the confirmed write."""

from __future__ import annotations

import getpass
import uuid
from collections.abc import Sequence
from typing import Annotated

import typer

from amends.console.exits import USAGE, Stop
from amends.kafka.entrance import require_entrance_once
from amends.kafka.publisher import Publisher
from amends.kafka.records import Ack
from amends.kafka.schema_registry_opening import open_schema_registry
from amends.kafka.settings import KafkaSettings
from amends.schemas.codec import encode_value
from amends.schemas.decisions import TOOL_MENDED
from amends.schemas.envelope import headers_of
from amends.schemas.facts import Resolution, WorkflowEvent
from amends.schemas.keys import mended_key, record_key

SOURCE = "/amends/console"

By = Annotated[str | None, typer.Option("--by", help="Who says so. Otherwise the user of this machine.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stays on the ledger.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be written, write nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask before it is written.")]

Said = Sequence[Resolution] | Sequence[WorkflowEvent]


def require_reason(reason: str) -> None:
    """Raise Stop if there is none."""
    if not reason.strip():
        raise Stop("--reason is empty: whoever reads this later wants to know why", USAGE)


def user_of_machine() -> str:
    """Return who decides where --by does not say. Raises Stop if the machine does not know."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise Stop("this machine does not know your name: give it with --by", USAGE) from None


def confirmed(settings: KafkaSettings, facts: Said, question: str, *, dry_run: bool, yes: bool) -> list[Ack]:
    """Ask, then write; return where it stands, nothing of a dry run. Whoever says no ends the command.

    Raises:
        NotWritten, MaybeWritten: one was not, or perhaps not; those before it were.
    """
    if dry_run or not facts:
        return []
    if not yes:
        typer.confirm(question, abort=True, err=True)
    return _written(settings, facts)


def places(acks: Sequence[Ack]) -> list[dict[str, int]]:
    """Return where facts were written, for machines."""
    return [{"partition": ack.partition, "offset": ack.offset} for ack in acks]


def say_written(settings: KafkaSettings, acks: Sequence[Ack], dry_run: bool, what_came: str) -> None:
    """Tell a person where it was written and the command that shows what came of it."""
    if dry_run:
        typer.echo("Nothing was written (--dry-run).")
    elif acks:
        where = ", ".join(f"{ack.partition}:{ack.offset}" for ack in acks)
        typer.echo(f"Written to {settings.topics.ledger} at {where}.")
        typer.echo(f"What came of it: {what_came}")


def _written(settings: KafkaSettings, facts: Said) -> list[Ack]:
    """Write facts, those about a tool to each partition. A schema registry that is away stops no decision."""
    registry = open_schema_registry(learns=False)
    trouble = registry.try_learn() if registry is not None else ""
    if trouble:
        typer.echo(f"amends: written in single-object encoding, which every reader takes: {trouble}", err=True)
    require_entrance_once(settings)
    with Publisher(settings) as publisher:
        return [
            publisher.publish_sync(
                settings.topics.ledger,
                key=key,
                value=encode_value(fact),
                headers=headers_of(fact, source=SOURCE, event_id=uuid.uuid4().hex, time_ms=fact.timestamp_ms),
                partition=partition,
            )
            for fact in facts
            for key, partition in _places_of(settings, fact)
        ]


def _places_of(settings: KafkaSettings, fact: Resolution | WorkflowEvent) -> list[tuple[bytes, int | None]]:
    """Return the key and the partitions a fact is written to; None: the key's own."""
    tool = fact.attributes.get(TOOL_MENDED)
    if tool is None or fact.workflow_id:
        return [(record_key(fact.workflow_id), None)]
    return [(mended_key(tool), partition) for partition in range(settings.partitions)]
