"""Changelog records: the state as bytes, a header per workflow and a record per step.

JSON arrays by position: a field is only ever added at the end, with a default, so that an older record still reads. The
first element of a step's record says whether it has something open, which lets a restore skip decoding the others.

What a newer version added is not left out by an older one, which would then write the state without it: the record of
the partition says the `LAYOUT`, and a version that knows less refuses the state of the whole partition.
"""

from __future__ import annotations

import json
from dataclasses import astuple, fields
from operator import attrgetter
from typing import Any

from amends.processors.parked import Parked
from amends.processors.state import (
    NOWHERE,
    TURNED_PHASES,
    Ask,
    Attempt,
    AttemptState,
    Child,
    DataFlow,
    Family,
    Header,
    Savepoint,
    Step,
    Trouble,
    Turn,
    Undo,
    UndoState,
    has_open_attempt,
)
from amends.processors.timers import Silences
from amends.schemas.approvals import Approval, ApprovalState
from amends.schemas.commands import Phase
from amends.schemas.contract import Effect
from amends.schemas.json_text import json_writer

LAYOUT = 2
"""Raised with whatever is added to a row below, or to the kinds of keys. 1: before there was a number."""

SEPARATOR = b"\x00"
CONTRACT_PREFIX = b"\x00contract\x00"
PARTITION_KEY = b"\x00partition"
BREAKER_PREFIX = b"\x00breaker\x00"
_LIVE = b"[1,"

_encode = json_writer(ascii_only=False)
_HEADER_NAMES = tuple(f.name for f in fields(Header))
_header_row = attrgetter(*_HEADER_NAMES)
_TROUBLES = _HEADER_NAMES.index("troubles")
_FLOW = 19
_APPROVAL = 21
_CHILD = 22
_UNDO_NAMES = tuple(f.name for f in fields(Undo))
_undo_row = attrgetter(*_UNDO_NAMES)


def header_key(workflow_key: bytes, started: int) -> bytes:
    """Return the changelog key of an instance: workflow id, two NULs (which no workflow id holds), `@` and where its
    STARTED stands. Version 0.1.0 had one instance of an id, under the bare id."""
    return b"%b%b@%d" % (workflow_key, SEPARATOR * 2, started)


def split_header_key(key: bytes) -> tuple[bytes, int]:
    """Return the workflow's key and where the instance began; NOWHERE for a key of 0.1.0: its header knows."""
    workflow_key, found, started = key.rpartition(SEPARATOR + SEPARATOR)
    return (workflow_key, int(started[1:])) if found else (key, NOWHERE)


def step_key(header_key: bytes, number: int) -> bytes:
    """Return the changelog key of a step: that of its instance, two NULs, number."""
    return header_key + SEPARATOR + SEPARATOR + str(number).encode()


def split_key(key: bytes) -> tuple[bytes, int | None]:
    """Return the instance's key and the step's number, None for the header."""
    instance_key, found, number = key.rpartition(SEPARATOR + SEPARATOR)
    return (key, None) if not found or number.startswith(b"@") else (instance_key, int(number))


def is_header_key(key: bytes) -> bool:
    """Whether a key of the changelog is that of an instance."""
    _, found, last = key.rpartition(SEPARATOR + SEPARATOR)
    return not key.startswith(SEPARATOR) and (not found or last.startswith(b"@"))


def encode_parked(parked: Parked) -> bytes:
    """Return the record that stands in a header's place while an instance is being folded again."""
    row = [parked.workflow_offset, parked.since_offset, parked.was_gone, parked.from_ms]
    return _encode({"parked": row}).encode()


def decode_parked(data: bytes) -> Parked | None:
    """Return what `encode_parked` was given; None if this is a header."""
    if not data.startswith(b"{"):
        return None
    return Parked(*json.loads(data)["parked"])


def encode_header(header: Header) -> bytes:
    row: list[Any] = list(_header_row(header))
    if header.troubles:
        row[_TROUBLES] = [astuple(t) for t in header.troubles]
    return _encode(row).encode()


def decode_header(data: bytes) -> Header:
    values = dict(zip(_HEADER_NAMES, json.loads(data), strict=False))
    values["phase"] = Phase(values["phase"])
    values["unread"] = tuple(values["unread"])
    values["troubles"] = _troubles(values["troubles"])
    values["turns"] = tuple(Turn(*row) for row in values.get("turns", ()))
    values["savepoints"] = tuple(Savepoint(*row) for row in values.get("savepoints", ()))
    values["family"] = _family(values.get("family"))
    values["failed_calls"] = tuple((tool, count) for tool, count in values.get("failed_calls", ()))
    if not values["turns"] and values["phase"] in TURNED_PHASES:  # written before turns were kept: there was one
        whole = Turn(values["epoch"] - 1, NOWHERE, values["turned_at_ms"], values["turned_reason"])
        values["turns"] = (whole,)
    return Header(**values)


def encode_step(step: Step) -> bytes:
    undo = step.undo
    live = has_open_attempt(step) or (undo is not None and undo.state is UndoState.OPEN)
    row: list[Any] = [
        1 if live else 0,
        step.number,
        step.step_id,
        step.tool_name,
        step.epoch,
        step.first_offset,
        step.first_at_ms,
        step.tool_version,
        step.call_id,
        step.contract,
        step.effect,
        [_attempt_row(a) for a in step.attempts],
        step.present,
        step.outcome_offset,
        None if step.undo_arguments is None else step.undo_arguments.decode(),
        step.probes,
        step.probed_at_ms,
        step.resends,
        None if undo is None else _undo_row(undo),
        [astuple(t) for t in step.troubles] if step.troubles else (),
        step.flow,
        step.call_digest,
    ]
    if step.approval is not None or step.child is not None:
        row.append(step.approval)
    if step.child is not None:
        row.append(step.child)
    return _encode(row).encode()


def decode_step(data: bytes) -> Step:
    row = json.loads(data)[1:]
    row[9] = Effect(row[9])
    row[10] = tuple(Attempt(a[0], AttemptState(a[1]), *a[2:]) for a in row[10])
    row[13] = None if row[13] is None else row[13].encode()
    row[17] = None if row[17] is None else _undo(row[17])
    row[18] = _troubles(row[18])
    if len(row) > _FLOW and row[_FLOW] is not None:
        uses, touches, makes, after = row[_FLOW]
        row[_FLOW] = DataFlow(tuple(uses), tuple(touches), None if makes is None else tuple(makes), tuple(after))
    if len(row) > _APPROVAL and row[_APPROVAL] is not None:
        row[_APPROVAL] = Approval(ApprovalState(row[_APPROVAL][0]), *row[_APPROVAL][1:])
    if len(row) > _CHILD:
        row[_CHILD] = Child(*row[_CHILD])
    return Step(*row)


def is_live(data: bytes) -> bool:
    """Whether a step's record says that an attempt of it, or of its undo, is open."""
    return data.startswith(_LIVE)


def encode_partition(silences: Silences, lanes_missing: set[tuple[str, str]]) -> bytes:
    """Return what is kept of the partition as a whole."""
    return _encode([silences.last_at_ms, silences.gaps, sorted(lanes_missing), LAYOUT]).encode()


def decode_partition(data: bytes) -> tuple[Silences, set[tuple[str, str]]]:
    """Return what `encode_partition` was given.

    Raises:
        ValueError: a version wrote it whose layout this one does not know.
    """
    last_at_ms, gaps, *more = json.loads(data)
    layout = more[1] if len(more) > 1 else 1
    if layout > LAYOUT:
        raise ValueError(f"it is of layout {layout}, and this version of amends knows layouts up to {LAYOUT}")
    lanes_missing = {(workflow_id, lane) for workflow_id, lane in (more[0] if more else [])}
    return Silences(last_at_ms, [(at, gap) for at, gap in gaps]), lanes_missing


def _attempt_row(a: Attempt) -> list[Any]:
    return [
        a.name,
        a.state,
        a.epoch,
        a.started_offset,
        a.armed_offset,
        a.armed_at_ms,
        a.lease_ms,
        a.ended_offset,
        a.ended_at_ms,
        a.absent,
        *((a.accepted, *((True,) if a.repeats else ())) if a.accepted or a.repeats else ()),
    ]


def _undo(row: list[Any]) -> Undo:
    values = dict(zip(_UNDO_NAMES, row, strict=False))
    values["state"] = UndoState(values["state"])
    values["started"] = tuple((attempt, offset) for attempt, offset in values["started"])
    return Undo(**values)


def _family(row: list[Any] | None) -> Family | None:
    if row is None:
        return None
    parent_id, parent_offset, announced, asks, unborn = row
    return Family(parent_id, parent_offset, tuple(announced), tuple(Ask(*ask) for ask in asks), unborn)


def _troubles(rows: list[list[Any]]) -> tuple[Trouble, ...]:
    return tuple(Trouble(*row) for row in rows)
