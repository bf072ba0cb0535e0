"""Records folded into the rows that people look at. Pure: `reading` brings the records, `output` shows the rows.

A table keeps, of one key, what the processor said last, that is with the highest `folded_to`: a zombie may write an
older word later. A value nobody can read is a row of its own kind and never hides the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from amends.schemas.codec import UnreadableRecord, decode, decode_as
from amends.schemas.commands import DeadLetter, Incident, IncidentState, Phase, WorkflowEcho

CLOSED_PHASES = frozenset({Phase.SUCCEEDED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS})
ERRORS_PREFIX = "__dlq.errors."


class Stored(Protocol):
    """A record as it stands on a topic."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def appended_at_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that this version cannot read."""

    topic: str
    partition: int
    offset: int
    key: str
    why: str


Row = TypeVar("Row", WorkflowEcho, Incident)


@dataclass(slots=True)
class Latest(Generic[Row]):
    """The last word on each key of a compacted topic."""

    kind: type[Row]
    _rows: dict[bytes, Row] = field(default_factory=dict)
    unreadable: list[Unreadable] = field(default_factory=list)

    def fold(self, record: Stored) -> None:
        """Take the next record of the topic in."""
        key = record.key or b""
        if record.value is None:
            self._rows.pop(key, None)
            return
        try:
            said = decode_as(self.kind, record.value, record)
        except UnreadableRecord as error:
            self.unreadable.append(_unreadable(record, error))
            return
        before = self._rows.get(key)
        if before is None or _is_later(said, before):
            self._rows[key] = said

    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def get(self, key: str) -> Row | None:
        return self._rows.get(key.encode())


def _is_later(said: WorkflowEcho | Incident, before: WorkflowEcho | Incident) -> bool:
    if isinstance(said, Incident) and isinstance(before, Incident):
        return (said.folded_to, said.version) >= (before.folded_to, before.version)
    return said.folded_to >= before.folded_to


def _unreadable(record: Stored, error: Exception) -> Unreadable:
    key = (record.key or b"").decode(errors="replace")
    return Unreadable(record.topic, record.partition, record.offset, key, str(error))


@dataclass(frozen=True, slots=True)
class WorkflowFilter:
    """Which workflows are wanted; what is None or False does not narrow."""

    phases: frozenset[Phase] = frozenset()
    agent: str | None = None
    open_only: bool = False
    with_incidents: bool = False
    started_since_ms: int | None = None

    def wants(self, row: WorkflowEcho) -> bool:
        return (
            (not self.phases or row.phase in self.phases)
            and self.agent in (None, row.agent_id)
            and not (self.open_only and row.phase in CLOSED_PHASES)
            and not (self.with_incidents and not row.incidents_open)
            and (self.started_since_ms is None or row.started_at_ms >= self.started_since_ms)
        )


def with_open_incidents(rows: Iterable[WorkflowEcho], incidents: Iterable[Incident]) -> list[WorkflowEcho]:
    """Return the rows with the incidents that are open now: the echo speaks when the phase changes, and counts then."""
    counts = Counter((i.workflow_id, i.workflow_offset) for i in incidents if i.state is IncidentState.OPEN)
    return [replace(row, incidents_open=counts[(row.workflow_id, row.workflow_offset)]) for row in rows]


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Which incidents are wanted; what is None does not narrow."""

    closed_too: bool = False
    kind: str | None = None
    workflow: str | None = None
    tool: str | None = None
    lane: str | None = None
    agent: str | None = None

    def wants(self, row: Incident) -> bool:
        return (
            (self.closed_too or row.state is IncidentState.OPEN)
            and self.kind in (None, row.kind)
            and self.workflow in (None, row.workflow_id)
            and self.tool in (None, row.tool_name)
            and self.lane in (None, row.lane)
            and self.agent in (None, row.agent_id)
        )


def by_prefix(rows: Iterable[Incident], wanted: str) -> list[Incident]:
    """Return the incidents whose id is `wanted`, or else begins with it."""
    found = [row for row in rows if row.incident_id.startswith(wanted)]
    return [row for row in found if row.incident_id == wanted] or found


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """A dead letter of either kind, an undo given up on or a record nobody could read, for people."""

    id: str  # <lane, or ledger>:<partition>:<offset>
    topic: str
    dead_at_ms: int
    reason: str
    key: str
    letter: DeadLetter | None  # None: a record nobody could read
    original: bytes
    errors: tuple[tuple[str, str], ...]  # the __dlq.errors.* headers, without the prefix
    incident_open: bool | None = None  # None: no incident is known

    @property
    def tool(self) -> str:
        return self.letter.tool_name if self.letter else ""


def dead_letter_row(record: Stored, lane: str) -> DeadLetterRow:
    """Return a record of a dead letter topic as a row. `lane` names the topic in the row's id."""
    value = record.value or b""
    errors = tuple(
        (name.removeprefix(ERRORS_PREFIX), text.decode(errors="replace"))
        for name, text in record.headers
        if name.startswith(ERRORS_PREFIX)
    )
    letter = _letter(record)
    return DeadLetterRow(
        id=f"{lane}:{record.partition}:{record.offset}",
        topic=record.topic,
        dead_at_ms=record.appended_at_ms,
        reason=letter.reason if letter else dict(errors).get("message", ""),
        key=(record.key or b"").decode(errors="replace"),
        letter=letter,
        original=letter.original if letter else value,
        errors=errors,
    )


def _letter(record: Stored) -> DeadLetter | None:
    try:
        found = decode(record.value, record)
    except UnreadableRecord:
        return None
    return found if isinstance(found, DeadLetter) else None
