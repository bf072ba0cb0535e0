"""Records as an older release writes them: what is left out, what is refused, and that the release can read them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from tests.core.record_samples import any_record, full, least

from amends.kafka.publisher import NEWER, NotWritten, Publisher
from amends.kafka.settings import KafkaSettings
from amends.schemas import older as older_module
from amends.schemas.codec import (
    RECORDS,
    Record,
    decode,
    encode,
    encode_value,
    fingerprint_of,
    schema_of,
    use_framing,
)
from amends.schemas.commands import DeadLetter, UndoCommand, WorkflowEcho
from amends.schemas.contract import Contract, Effect, UndoTerms
from amends.schemas.facts import StepEvent, StepStatus, Timeout, TimeoutKind, WorkflowEvent
from amends.schemas.framing import Framing, frame, framed_id
from amends.schemas.older import NewerThanRelease, older
from amends.schemas.releases import released, released_versions

OLDEST = "0.1.0"


def fields_of(schema: Any) -> set[tuple[str, str]]:
    return {(name, field) for name, fields in older_module._records_of(schema) for field in fields}


def since(version: str) -> set[tuple[str, str]]:
    """Return the fields, by record, that came after a release, without those of records that came whole."""
    then = {pair for schema in released(version).values() for pair in fields_of(schema)}
    now = {pair for record in RECORDS for pair in fields_of(schema_of(record))}
    known = {name for name, _ in then}
    return {(name, field) for name, field in now - then if name in known}


def test_of_every_field_that_came_after_a_release_it_is_said_whether_it_may_be_left_out() -> None:
    for version in released_versions():
        undecided = [
            pair
            for pair in since(version)
            if pair[0] not in older_module.DECLARED and pair not in older_module.ASKED_FOR | older_module.LEFT_OUT
        ]
        assert undecided == [], f"since {version}: name each in amends.schemas.older, ASKED_FOR or LEFT_OUT"
    named = older_module.ASKED_FOR | older_module.LEFT_OUT
    assert named <= since(released_versions()[0]), "fields that are in no need of it, or are no fields"


@given(any_record())
def test_what_is_written_as_a_release_bears_its_fingerprint_and_says_the_same(record: Record) -> None:
    name, schemas = type(record).__name__, released(OLDEST)
    try:
        data = older(OLDEST)(encode(record))
    except NewerThanRelease:
        return
    assert data[2:10] == fingerprint_of(schemas[name])
    found = decode(data)
    lost = {field for holder, field in since(OLDEST) if holder == name}
    for field in dataclasses.fields(record):
        kept = getattr(record, field.name)
        if field.name not in lost and not _holds_records(kept):
            assert getattr(found, field.name) == kept, field.name


def _holds_records(value: Any) -> bool:
    return dataclasses.is_dataclass(value) or (isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)))


def test_the_contract_inside_a_fact_and_the_command_inside_a_dead_letter_are_the_releases_too() -> None:
    contract = Contract("shop.pay", Effect.COMPENSABLE)
    fact = dataclasses.replace(least(StepEvent), contract=encode(contract))
    inner = decode(older(OLDEST)(encode(fact)))
    assert isinstance(inner, StepEvent)
    assert inner.contract is not None
    assert inner.contract[2:10] == fingerprint_of(released(OLDEST)["Contract"])
    letter = dataclasses.replace(least(DeadLetter), original=encode(least(UndoCommand)))
    found = decode(older(OLDEST)(encode(letter)))
    assert isinstance(found, DeadLetter)
    assert found.original[2:10] == fingerprint_of(released(OLDEST)["UndoCommand"])


@pytest.mark.parametrize(
    "declared",
    [
        {"approval_ms": 60_000},
        {"fence": "strict"},
        {"accepted_when": "output.status == 'accepted'"},
        {"undo": UndoTerms("undo", "lane", covers=("shop.item",))},
    ],
    ids=lambda declared: next(iter(declared)),
)
def test_a_tool_that_declares_what_the_release_knows_nothing_of_is_refused(declared: dict[str, Any]) -> None:
    contract = dataclasses.replace(Contract("shop.pay", Effect.COMPENSABLE), **declared)
    fact = dataclasses.replace(least(StepEvent), status=StepStatus.STARTED, contract=encode(contract))
    with pytest.raises(NewerThanRelease, match=r"Contract\..*RECORDS_OF"):
        older(OLDEST)(encode(fact))


def test_a_policy_an_approval_and_a_new_word_are_refused() -> None:
    for record in (
        dataclasses.replace(least(WorkflowEvent), policy=b"{}"),
        full(StepEvent),
        dataclasses.replace(least(Timeout), kind=TimeoutKind.WINDOW),
    ):
        with pytest.raises(NewerThanRelease):
            older(OLDEST)(encode(record))


def test_an_echo_is_told_shorter() -> None:
    echo = dataclasses.replace(full(WorkflowEcho), epoch=3)
    found = decode(older(OLDEST)(encode(echo)))
    assert isinstance(found, WorkflowEcho)
    assert (found.epoch, found.story, found.steps) == (3, echo.story, ())


def test_where_there_is_a_schema_registry_the_older_release_is_still_written_for() -> None:
    framing = Framing({7: schema_of(WorkflowEcho)}.get)
    framing.frames = {WorkflowEcho: frame(7)}
    before = use_framing(framing)
    try:
        framed = encode_value(least(WorkflowEcho))
        assert framed_id(framed) == 7
        written = older(OLDEST)(framed)
    finally:
        use_framing(before)
    assert written[2:10] == fingerprint_of(released(OLDEST)["WorkflowEcho"])
    assert decode(written) == least(WorkflowEcho)


@pytest.mark.parametrize("data", [b"", b"[1,2]", b"\xc3\x01", b"\xc3\x01" + bytes(20), b"\x00\x00\x00\x00\x07body"])
def test_what_is_no_record_of_this_version_is_left_as_it_is(data: bytes) -> None:
    assert older(OLDEST)(data) == data


def test_bytes_that_only_begin_like_a_record_are_left_as_they_are() -> None:
    cut = encode(full(StepEvent))[:40]
    assert older(OLDEST)(cut) == cut


def test_an_unknown_release_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"no release '9\.9\.9': known are 0\.1\.0"):
        older("9.9.9")
    with pytest.raises(ValueError, match=r"no release '9\.9\.9': those whose records can be written are 0\.1\.0"):
        KafkaSettings(records_of="9.9.9")


def test_a_publisher_refuses_at_once_what_the_release_can_not_say() -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1", records_of=OLDEST)
    answers: list[Any] = []
    record = encode(dataclasses.replace(least(WorkflowEvent), policy=b"{}"))
    with Publisher(settings) as publisher:
        publisher.send("t", key=b"k", value=record, on_done=answers.append)
    (answer,) = answers
    assert isinstance(answer, NotWritten)
    assert answer.code == NEWER
    assert "WorkflowEvent.policy is set, of which release 0.1.0 knows nothing" in str(answer)
