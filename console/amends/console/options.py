"""Options that several commands have."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from amends.schemas.topics import FAUST, TRANSACTIONS


class EngineName(StrEnum):
    """The engines of a processor."""

    TRANSACTIONS = TRANSACTIONS
    FAUST = FAUST


AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of tables for people.")]
Kafka = Annotated[str | None, typer.Option("--kafka", metavar="HOST:PORT", help="Instead of the setting's servers.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Show at most so many, the newest.")]
Check = Annotated[bool, typer.Option("--check", help="End with 4 if anything is listed; for monitors.")]

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def since_ms(text: str | None) -> int | None:
    """Return the point in time that "2h", "3d" ago or an ISO date-time (UTC without a zone) means.

    Raises:
        typer.BadParameter: it is neither.
    """
    if text is None:
        return None
    ago = re.fullmatch(r"(\d+)([smhd])", text)
    if ago:
        return int(time.time() * 1000) - int(ago[1]) * _UNITS_MS[ago[2]]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither an age such as 2h or 3d nor a date such as 2026-11-30") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


Since = Annotated[str | None, typer.Option("--since", metavar="AGE|DATE", help="2h, 3d, or 2026-11-30T12:00.")]

Engine = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        envvar="AMENDS_PROCESSOR__ENGINE",
        help="The processors' engine; faust has a changelog of its own.",
    ),
]
