"""Records as an older release writes them, for the time in which processes of that release still run.

A record names its schema by a fingerprint, and a release knows those of its own time: what a newer one writes it can't
read, though the schemas are compatible. So a newer process can be told to write the records of the older release until
the last process of that is gone (`AMENDS_KAFKA__RECORDS_OF`, docs/upgrades.md).

Rules
- What the older schema has no field for is left out. The older release would have done without it: an order of undoing
  that knows less and so is stricter, an echo that tells less.
- What somebody asked for and would not get is never left out in silence: a tool that declares what the older release
  knows nothing of, a policy, an approval. Such a record is refused (`NewerThanRelease`), before the call it is about.
- So is a value that the older release has no word for: it would take the whole record for unreadable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from io import BytesIO
from typing import Any

import fastavro

from amends.schemas.codec import RECORDS, UnreadableRecord, decode, fingerprint_of, schema_of
from amends.schemas.facts import TimeoutKind
from amends.schemas.framing import framed_id
from amends.schemas.releases import released, released_versions

Older = Callable[[bytes], bytes]

DECLARED = frozenset({"Contract", "CallTerms", "UndoTerms", "ProbeTerms", "VerifyTerms"})
"""What a tool declares: all of it counts."""

ASKED_FOR = frozenset({
    ("StepEvent", "approval"),
    ("WorkflowEvent", "policy"),
    ("Resolution", "step_epoch"), ("Resolution", "argument_digest"), ("Resolution", "expires_at_ms"),
})  # fmt: skip
"""Fields that somebody asked for, by record. A new field is either here or in LEFT_OUT: a test wants it said."""

LEFT_OUT = frozenset({
    ("StepEvent", "written"), ("StepEvent", "call_digest"), ("StepEvent", "data_flow"), ("StepEvent", "uses"),
    ("StepEvent", "touches"), ("StepEvent", "makes"),
    ("Resolution", "data_flow"), ("Resolution", "makes"),
    ("UndoEntry", "compares"), ("UndoEntry", "polls"), ("UndoEntry", "not_after_ms"),
    ("UndoCommand", "whole"),
    ("ProbeCommand", "outcome_offset"), ("ResendCommand", "not_after_ms"),
    ("WorkflowEcho", "open_undos"), ("WorkflowEcho", "dead_undos"), ("WorkflowEcho", "savepoint"),
    ("WorkflowEcho", "turns"), ("WorkflowEcho", "steps"), ("WorkflowEcho", "approvals"), ("WorkflowEcho", "scope"),
})  # fmt: skip
"""Fields that the older release does without."""

NEW_WORDS: Mapping[str, frozenset[Enum]] = {"0.1.0": frozenset({TimeoutKind.WINDOW})}
"""Values that came after a release, by release."""

_SINGLE_OBJECT = b"\xc3\x01"
_HEADER_BYTES = 10
_RECORDS_IN = frozenset({("StepEvent", "contract"), ("DeadLetter", "original")})
"""Fields that hold the bytes of a record."""


class NewerThanRelease(ValueError):  # noqa: N818 - what the record is
    """A record says what the release whose records are to be written can't say."""


def older(version: str) -> Older:
    """Return what turns the bytes of a record into those that release `version` writes, which name their schema
    themselves, whatever registry there is. Bytes that are no record of this version (state, what others wrote) come
    back as they are.

    The function returned raises NewerThanRelease.

    Raises:
        ValueError: no such release is known.
    """
    if version not in released_versions():
        raise ValueError(f"no release {version!r}: known are {', '.join(released_versions())}")
    return _Translation(version)


class _Translation:
    """One release. See `older`."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._words = frozenset[Enum]().union(*(NEW_WORDS[v] for v in NEW_WORDS if _number(v) >= _number(version)))
        schemas = released(version)
        self._fields: dict[str, frozenset[str]] = {}
        for schema in schemas.values():
            self._fields |= {name: frozenset(fields) for name, fields in _records_of(schema)}
        self._schemas = {name: fastavro.parse_schema(dict(schema)) for name, schema in schemas.items()}
        self._headers = {name: _SINGLE_OBJECT + fingerprint_of(schema) for name, schema in schemas.items()}
        self._ours = frozenset(_SINGLE_OBJECT + fingerprint_of(schema_of(record)) for record in RECORDS)

    def __call__(self, data: bytes) -> bytes:
        if data[:_HEADER_BYTES] not in self._ours and framed_id(data) is None:
            return data
        try:
            record = decode(data)
        except UnreadableRecord:
            return data
        name = type(record).__name__
        if name not in self._schemas:
            raise NewerThanRelease(f"a {name} is a record that release {self._version} does not know")
        said = self._said(record, name)
        body = BytesIO()
        fastavro.schemaless_writer(body, self._schemas[name], said)
        return self._headers[name] + body.getvalue()

    def _said(self, value: Any, at: str) -> Any:
        """Return a value as fastavro takes it, without what the release has no field for."""
        if dataclasses.is_dataclass(value):
            return dict(self._fields_said(value, at))
        if isinstance(value, Enum):
            if value in self._words:
                raise NewerThanRelease(f"{at} {value.value!r} is a word that release {self._version} does not know")
            return value.value
        if isinstance(value, tuple):
            return [self._said(item, at) for item in value]
        return value

    def _fields_said(self, record: Any, at: str) -> Iterator[tuple[str, Any]]:
        name = type(record).__name__
        known = self._fields[name]
        for field in dataclasses.fields(record):
            value = getattr(record, field.name)
            if field.name in known:
                if (name, field.name) in _RECORDS_IN and value is not None:
                    value = self(value)
                yield field.name, self._said(value, f"{at}.{field.name}")
            elif (name in DECLARED or (name, field.name) in ASKED_FOR) and value != _default(field):
                raise NewerThanRelease(
                    f"{at}.{field.name} is set, of which release {self._version} knows nothing. Use it when no process "
                    "of that release runs any more and AMENDS_KAFKA__RECORDS_OF is gone"
                )


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _records_of(schema: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the fields of each record that is defined in a schema."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _records_of(branch)
    elif isinstance(schema, dict):
        if schema.get("type") == "record":
            yield str(schema["name"]).rpartition(".")[2], [field["name"] for field in schema["fields"]]
            for field in schema["fields"]:
                yield from _records_of(field["type"])
        else:
            for inner in ("type", "items", "values"):
                yield from _records_of(schema.get(inner))
