"""Bytes are read for ever: older and newer schemas, a registry's framing, releases, golden records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.core import golden_records
from tests.core.compatibility import RELEASED, against_releases, incompatibilities, load
from tests.core.record_samples import avro_body, full, least

from amends.schemas import releases
from amends.schemas.codec import (
    RECORDS,
    Record,
    UnreadableRecord,
    decode,
    encode,
    fingerprint_of,
    schema_of,
    use_framing,
)
from amends.schemas.commands import UndoCommand
from amends.schemas.contract import Contract
from amends.schemas.facts import StepEvent, Timeout, WorkflowEvent
from amends.schemas.framing import Framing


@pytest.fixture
def registry() -> Iterator[dict[int, Any]]:
    """A schema registry of this process: schemas by id."""
    schemas: dict[int, Any] = {}
    before = use_framing(Framing(schemas.get))
    yield schemas
    use_framing(before)


def framed(number: int, body: bytes) -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + body


def without_last_field(record: type[Record]) -> tuple[dict[str, Any], str]:
    older = json.loads(json.dumps(schema_of(record)))
    return older, older["fields"].pop()["name"]


@pytest.mark.parametrize("record", [StepEvent, WorkflowEvent, UndoCommand, Contract], ids=lambda kind: kind.__name__)
def test_a_record_of_an_older_schema_gets_the_defaults_of_new_fields(
    record: type[Record], registry: dict[int, Any]
) -> None:
    older, field = without_last_field(record)
    registry[7] = older
    data = framed(7, avro_body(full(record), older))
    found = decode(data)
    assert found == dataclasses.replace(full(record), **{field: getattr(least(record), field)})


def test_a_record_of_a_newer_schema_is_read_without_its_new_fields(registry: dict[int, Any]) -> None:
    newer = json.loads(json.dumps(schema_of(StepEvent)))
    newer["fields"].append({"name": "mood", "type": ["null", "string"], "default": None})
    registry[8] = newer
    data = framed(8, avro_body(full(StepEvent), newer, mood="blue"))
    assert decode(data) == full(StepEvent)


def test_a_registrys_schema_that_is_none_of_ours_is_unreadable(registry: dict[int, Any]) -> None:
    foreign = {"type": "record", "name": "shop.Order", "fields": [{"name": "id", "type": "string"}]}
    looked_up: list[dict[str, Any]] = [foreign, {"type": "record", "name": "amends.Timeout", "fields": 3}, {}]
    for registry[9] in looked_up:
        with pytest.raises(UnreadableRecord, match="schema 9"):
            decode(framed(9, b"\x02a"))


def test_a_registry_that_fails_makes_the_record_unreadable_not_the_reader_dead() -> None:
    def down(_: int) -> None:
        raise ConnectionError("registry down")

    before = use_framing(Framing(down))
    with pytest.raises(UnreadableRecord, match="registry down"):
        decode(framed(9, b"\x02a"))
    use_framing(before)


# --- releases --------------------------------------------------------------------------------------------------------


def test_every_schema_is_full_transitive_with_every_release() -> None:
    assert list(against_releases()) == []


def _renamed(s: dict[str, Any]) -> None:
    s["fields"][0]["name"] = "workflow"


def _without_default(s: dict[str, Any]) -> None:
    s["fields"].append({"name": "mood", "type": "string"})


def _retyped(s: dict[str, Any]) -> None:
    s["fields"][2]["type"] = "string"


def _widened(s: dict[str, Any]) -> None:
    s["fields"][2]["type"] = ["null", "long"]


def _removed(s: dict[str, Any]) -> None:
    del s["fields"][0]


@pytest.mark.parametrize("change", [_renamed, _without_default, _retyped, _widened, _removed])
def test_the_gate_refuses_a_change_that_breaks_readers(change: Any) -> None:
    older = schema_of(Timeout)
    newer = json.loads(json.dumps(older))
    change(newer)
    assert incompatibilities(older, newer)
    assert releases.incompatibilities(older, newer), "`amends schemas check` has the same verdict without Apache Avro"


@pytest.mark.parametrize("record", RECORDS, ids=lambda kind: kind.__name__)
def test_the_gate_lets_a_field_with_a_default_through(record: type[Record]) -> None:
    newer = json.loads(json.dumps(schema_of(record)))
    newer["fields"].append({"name": "since_then", "type": "string", "default": ""})
    assert incompatibilities(schema_of(record), newer) == []
    assert releases.incompatibilities(schema_of(record), newer) == []


def test_a_change_in_a_nested_record_is_found() -> None:
    newer = json.loads(json.dumps(schema_of(UndoCommand)))
    entries = next(field for field in newer["fields"] if field["name"] == "entries")
    entries["type"]["items"]["fields"][0]["type"] = "bytes"
    assert releases.incompatibilities(schema_of(UndoCommand), newer)
    entries["type"]["items"]["fields"][0]["name"] = "other"
    assert len(releases.incompatibilities(schema_of(UndoCommand), newer)) == 2


def test_releases_are_listed_in_their_order() -> None:
    versions = releases.released_versions()
    assert versions == sorted(versions, key=lambda version: [int(part) for part in version.split(".")])
    assert all(releases.released(version) for version in versions)


def test_the_gate_finds_a_record_that_is_gone(tmp_path: Path) -> None:
    released, current = tmp_path / "released" / "0.0.1", tmp_path / "current"
    released.mkdir(parents=True)
    current.mkdir()
    (released / "Timeout.avsc").write_text(json.dumps(schema_of(Timeout)))
    assert "is gone" in next(against_releases(current, tmp_path / "released"))


def test_bytes_of_every_release_are_read() -> None:
    for path in RELEASED.glob("*/*.avsc"):
        record = next(kind for kind in RECORDS if kind.__name__ == path.stem)
        released = load(path)
        data = b"\xc3\x01" + fingerprint_of(released) + avro_body(full(record), released)
        assert isinstance(decode(data), record), path


# --- golden records --------------------------------------------------------------------------------------------------

GOLDEN = sorted(golden_records.GOLDEN.glob("*/*.bin"))


def _covers(told: Any, found: Any, at: str = "") -> None:
    """Assert that all that was told is found; what was added since has its default, as the next test sees."""
    if isinstance(told, dict) and isinstance(found, dict):
        for name, value in told.items():
            _covers(value, found[name], f"{at}.{name}")
    elif isinstance(told, list):
        assert len(told) == len(found), at
        for index, value in enumerate(told):
            _covers(value, found[index], f"{at}[{index}]")
    else:
        assert told == found, at


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_golden_bytes_are_read_as_they_were_meant(path: Path) -> None:
    told = json.loads(path.with_suffix(".json").read_text("utf-8"))
    _covers(told, golden_records.as_json(decode(path.read_bytes())))


def test_this_version_writes_the_golden_bytes_of_its_schema() -> None:
    told = "a schema grew: run .venv/bin/python -m tests.core.golden_records (never touch a released folder)"
    for stem, record in golden_records.samples():
        assert (golden_records.NEXT / f"{stem}.bin").read_bytes() == encode(record), f"{stem}: {told}"


def test_there_are_golden_bytes_of_every_record_and_of_every_release() -> None:
    releases = [path.name for path in RELEASED.iterdir()] if RELEASED.is_dir() else []
    for version in ("next", *releases):
        stems = {path.name.split(".")[0] for path in (golden_records.GOLDEN / version).glob("*.bin")}
        known = (
            RECORDS
            if version == "next"
            else [r for r in RECORDS if (RELEASED / version / f"{r.__name__}.avsc").exists()]
        )
        assert stems == {record.__name__ for record in known}, version
