"""The console's tables: the last word wins, by what the fold knew and not by when it was written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.core.record_samples import full, least

from amends.console.output import as_json, safe
from amends.console.read_model import (
    IncidentFilter,
    Latest,
    WorkflowFilter,
    by_prefix,
    dead_letter_row,
    with_open_incidents,
)
from amends.schemas.codec import Record, encode
from amends.schemas.commands import DeadLetter, Incident, IncidentState, Phase, WorkflowEcho


@dataclass(frozen=True)
class OnTopic:
    """A record as a topic gives it."""

    key: bytes | None
    value: bytes | None
    offset: int = 0
    topic: str = "t"
    partition: int = 0
    appended_at_ms: int = 1_000
    headers: Sequence[tuple[str, bytes]] = ()


def said(record: Record, key: str) -> OnTopic:
    return OnTopic(key.encode(), encode(record))


def echo(workflow_id: str, folded_to: int, phase: Phase = Phase.RUNNING, **more: Any) -> WorkflowEcho:
    return WorkflowEcho(workflow_id, 0, 0, phase, folded_to, **more)


def test_a_zombies_older_word_never_wins() -> None:
    table = Latest(WorkflowEcho)
    table.fold(said(echo("a", 10, Phase.COMPENSATED), "a"))
    table.fold(said(echo("a", 7, Phase.RUNNING), "a"))
    found = table.get("a")
    assert found is not None
    assert found.phase is Phase.COMPENSATED


def test_an_incident_of_a_later_version_wins_at_the_same_offset() -> None:
    table = Latest(Incident)
    opened = dataclasses.replace(least(Incident), incident_id="i", state=IncidentState.OPEN, version=1)
    table.fold(said(dataclasses.replace(opened, version=2, state=IncidentState.CLOSED), "i"))
    table.fold(said(opened, "i"))
    assert [row.state for row in table.rows()] == [IncidentState.CLOSED]


def test_a_tombstone_takes_the_row_away() -> None:
    table = Latest(WorkflowEcho)
    table.fold(said(echo("a", 1), "a"))
    table.fold(OnTopic(b"a", None))
    assert table.rows() == []


def test_a_record_nobody_can_read_hides_no_other() -> None:
    table = Latest(WorkflowEcho)
    table.fold(OnTopic(b"b", b"garbage", offset=4))
    table.fold(said(least(DeadLetter), "c"))
    table.fold(said(echo("a", 1), "a"))
    assert [row.workflow_id for row in table.rows()] == ["a"]
    assert [row.key for row in table.unreadable] == ["b", "c"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (WorkflowFilter(), {"a", "b", "c"}),
        (WorkflowFilter(phases=frozenset({Phase.TURNED})), {"b"}),
        (WorkflowFilter(open_only=True), {"a", "b"}),
        (WorkflowFilter(agent="x"), {"a"}),
        (WorkflowFilter(with_incidents=True), {"b"}),
        (WorkflowFilter(started_since_ms=50), {"c"}),
    ],
)
def test_workflows_are_filtered(wanted: WorkflowFilter, expected: set[str]) -> None:
    rows = [
        echo("a", 1, agent_id="x", started_at_ms=10),
        echo("b", 1, Phase.TURNED, incidents_open=1, started_at_ms=20),
        echo("c", 1, Phase.SUCCEEDED, started_at_ms=90),
    ]
    assert {row.workflow_id for row in rows if wanted.wants(row)} == expected


def test_incidents_of_a_workflow_are_counted_as_they_stand_now() -> None:
    opened = dataclasses.replace(least(Incident), workflow_id="a", workflow_offset=0, state=IncidentState.OPEN)
    of_an_older_instance = dataclasses.replace(opened, workflow_offset=7)
    closed = dataclasses.replace(opened, state=IncidentState.CLOSED)
    rows = with_open_incidents([echo("a", 1), echo("b", 1, incidents_open=3)], [opened, closed, of_an_older_instance])
    assert [row.incidents_open for row in rows] == [1, 0]


def test_closed_incidents_are_shown_only_when_asked_for() -> None:
    closed = dataclasses.replace(full(Incident), state=IncidentState.CLOSED)
    assert not IncidentFilter().wants(closed)
    assert IncidentFilter(closed_too=True).wants(closed)
    assert IncidentFilter(closed_too=True, lane=closed.lane, tool=closed.tool_name).wants(closed)
    assert not IncidentFilter(closed_too=True, lane="another").wants(closed)


def test_an_incident_is_found_by_how_its_id_begins_and_a_whole_id_is_never_ambiguous() -> None:
    rows = [dataclasses.replace(least(Incident), incident_id=name) for name in ("ab", "abc", "b")]
    assert [row.incident_id for row in by_prefix(rows, "ab")] == ["ab"]
    assert [row.incident_id for row in by_prefix(rows, "a")] == ["ab", "abc"]
    assert by_prefix(rows, "x") == []


def test_a_dead_undo_is_a_row_with_its_letter() -> None:
    letter = full(DeadLetter)
    row = dead_letter_row(dataclasses.replace(said(letter, "order-1"), partition=3, offset=9), "payments")
    assert (row.id, row.letter, row.reason, row.original) == ("payments:3:9", letter, letter.reason, letter.original)


def test_a_record_nobody_could_read_is_a_row_with_its_bytes_and_errors() -> None:
    headers = [("__dlq.errors.message", b"not Avro"), ("__dlq.errors.offset", b"17"), ("other", b"x")]
    row = dead_letter_row(OnTopic(b"\xff", b"junk", headers=headers), "ledger")
    assert (row.letter, row.original, row.reason) == (None, b"junk", "not Avro")
    assert row.errors == (("message", "not Avro"), ("offset", "17"))


def test_what_comes_from_a_record_cannot_move_the_cursor_of_the_reader() -> None:
    assert safe("a\x1b[2Jb\nc\r") == "a\\x1b[2Jb\nc\\x0d"


@pytest.mark.parametrize("record", [full(DeadLetter), least(WorkflowEcho), full(Incident)])
def test_every_row_is_json(record: Record) -> None:
    json.dumps(as_json(record))


def test_bytes_are_shown_as_what_they_say() -> None:
    assert as_json({"a": b'{"b": 1}', "c": b"text", "d": b"\xff"}) == {"a": {"b": 1}, "c": "text", "d": {"hex": "ff"}}
