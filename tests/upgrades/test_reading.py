"""The code of earlier releases reads what this version writes for it. Asked of that very code, out of the history."""

from __future__ import annotations

import dataclasses
import enum
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.core.golden_records import samples
from tests.core.record_samples import full, least
from tests.upgrades import previous, read_records
from tests.upgrades.previous import NoSuchVersion, path_of, take_out

from amends.schemas import commands, contract, facts
from amends.schemas.codec import RECORDS, Record, encode
from amends.schemas.contract import Contract, Effect
from amends.schemas.facts import StepEvent
from amends.schemas.older import NEW_WORDS, NewerThanRelease, older
from amends.schemas.releases import released_versions

VERSIONS = released_versions()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("releases")
    try:
        return {version: take_out(version, folder) for version in VERSIONS}
    except NoSuchVersion as missing:
        pytest.skip(str(missing))


def told(place: Path, records: list[bytes]) -> tuple[list[str], dict[str, list[str]]]:
    """Return what the version in `place` makes of records, and its words."""
    asked = subprocess.run(
        [sys.executable, "-S", str(read_records.__file__)],
        input="".join(f"{data.hex()}\n" for data in records),
        env={"PYTHONPATH": path_of(place)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    *lines, words = asked.stdout.splitlines()
    return lines, json.loads(words)


@cache
def words_now() -> dict[str, set[enum.Enum]]:
    found: dict[str, set[enum.Enum]] = {}
    for module in (facts, commands, contract):
        for name, thing in vars(module).items():
            if isinstance(thing, type) and issubclass(thing, enum.Enum) and thing.__module__ == module.__name__:
                found[name] = set(thing)
    return found


def sayable(version: str) -> list[tuple[Record, bytes]]:
    """Return records of every kind, as many as can be said to the release, and as it would have written them."""
    plain = dataclasses.replace(
        full(StepEvent), approval=None, contract=encode(Contract("shop.pay", Effect.COMPENSABLE))
    )
    asked: list[Record] = [*(record for _, record in samples()), *map(least, RECORDS), *map(full, RECORDS), plain]
    found = list[tuple[Record, bytes]]()
    for record in asked:
        try:
            found.append((record, older(version)(encode(record))))
        except NewerThanRelease:
            continue
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_release_reads_what_is_written_for_it(version: str, places: dict[str, Path]) -> None:
    written = sayable(version)
    assert {type(record) for record, _ in written} == set(RECORDS)
    answers, _ = told(places[version], [data for _, data in written])
    assert answers == [type(record).__name__ for record, _ in written]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_word_that_a_release_does_not_know_is_listed(version: str, places: dict[str, Path]) -> None:
    _, words = told(places[version], [])
    new = {
        member
        for name, members in words_now().items()
        if name in words
        for member in members
        if member.value not in words[name]
    }
    assert new == NEW_WORDS.get(version, frozenset())


def test_without_it_a_release_can_not_read_what_has_a_newer_schema(places: dict[str, Path]) -> None:
    """Why any of this is needed."""
    data: Any = encode(least(StepEvent))
    answers, _ = told(places["0.1.0"], [data])
    assert "unknown schema fingerprint" in answers[0]


def test_a_commit_that_is_not_there_is_said() -> None:
    with pytest.raises(NoSuchVersion, match=r"the commit of 9\.9\.9 is not in this clone"):
        previous.commit_of("9.9.9")
