"""A registry's framing at the codec: what is written in it, what is read, with and without knowing an id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.core.record_samples import full, least

from amends.schemas.codec import (
    ON_TOPICS,
    RECORDS,
    Record,
    UnreadableRecord,
    decode,
    decode_as,
    encode,
    encode_value,
    schema_of,
    use_framing,
)
from amends.schemas.contract import Contract
from amends.schemas.envelope import Headers, headers_of
from amends.schemas.facts import StepEvent, Timeout
from amends.schemas.framing import FRAME_BYTES, SCHEMA_HEADER, Framing, frame, framed_id


@dataclass
class FakeRegistry:
    """Schemas by id, and each id it was asked for."""

    schemas: dict[int, Any] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def __call__(self, number: int) -> Any:
        self.asked.append(number)
        return self.schemas.get(number)


@dataclass
class Stored:
    headers: Headers


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()
    before = use_framing(Framing(registry))
    yield registry
    use_framing(before)


def known(registry: FakeRegistry) -> Framing:
    """Make the ids of all records known, 101 and on."""
    framing = Framing(registry)
    numbers = {record: 101 + n for n, record in enumerate(ON_TOPICS)}
    registry.schemas |= {number: schema_of(record) for record, number in numbers.items()}
    framing.frames = {record: frame(number) for record, number in numbers.items()}
    use_framing(framing)
    return framing


@pytest.mark.parametrize("record", ON_TOPICS, ids=lambda kind: kind.__name__)
def test_both_framings_are_read_side_by_side(registry: FakeRegistry, record: type[Record]) -> None:
    plain = encode_value(full(record))
    framing = known(registry)
    framed = encode_value(full(record))
    assert framed_id(plain) is None
    assert frame(framed_id(framed) or 0) == framing.frames[record]
    assert framed[FRAME_BYTES:] == plain[10:]
    assert decode(plain) == decode(framed) == full(record)


def test_an_id_is_looked_up_once(registry: FakeRegistry) -> None:
    known(registry)
    for _ in range(3):
        decode(encode_value(full(StepEvent)))
    assert len(registry.asked) == 1


def test_without_ids_records_are_written_as_without_a_registry(registry: FakeRegistry) -> None:
    assert encode_value(full(StepEvent)) == encode(full(StepEvent))
    assert encode_value(full(StepEvent), 7) == encode(full(StepEvent), 7)
    assert registry.asked == []


def test_a_contract_within_a_record_is_never_framed(registry: FakeRegistry) -> None:
    known(registry)
    assert set(RECORDS) - set(ON_TOPICS) == {Contract}
    assert decode_as(Contract, encode(full(Contract))) == full(Contract)
    assert framed_id(encode(full(Contract))) is None


def test_our_own_record_is_read_by_its_header_where_nobody_can_be_asked(registry: FakeRegistry) -> None:
    known(registry)
    fact = least(Timeout)
    value, headers = encode_value(fact), headers_of(fact, source="/s", event_id="1")
    use_framing(None)
    assert decode(value, Stored(headers)) == fact
    with pytest.raises(UnreadableRecord, match="AMENDS_SCHEMA_REGISTRY__URL"):
        decode(value)


def test_an_id_that_is_known_beats_the_header(registry: FakeRegistry) -> None:
    known(registry)
    value = encode_value(least(Timeout))
    decode(value)
    wrong: Headers = [(SCHEMA_HEADER, headers_of(full(StepEvent), source="/s", event_id="1")[-2][1])]
    assert decode(value, Stored(wrong)) == least(Timeout)


@pytest.mark.parametrize("text", [b"", b"\xff", b"nonsense", b"00" * 8, b"00"])
def test_a_header_that_names_no_schema_leaves_the_registry_to_be_asked(registry: FakeRegistry, text: bytes) -> None:
    known(registry)
    assert decode(encode_value(least(Timeout)), Stored([(SCHEMA_HEADER, text)])) == least(Timeout)
    assert len(registry.asked) == 1


def test_the_schema_is_named_in_a_header_only_where_there_is_a_registry(registry: FakeRegistry) -> None:
    names = [name for name, _ in headers_of(least(Timeout), source="/s", event_id="1")]
    assert SCHEMA_HEADER in names
    use_framing(None)
    names = [name for name, _ in headers_of(least(Timeout), source="/s", event_id="1")]
    assert SCHEMA_HEADER not in names


def test_an_id_that_nobody_knows_makes_the_record_unreadable_with_its_number(registry: FakeRegistry) -> None:
    with pytest.raises(UnreadableRecord, match="schema 77 is none that the registry knows"):
        decode(frame(77) + b"\x02a")


@pytest.mark.parametrize("data", [b"\x00", b"\x00\x00\x00\x00\x01", b"\x01\x00\x00\x00\x01a"])
def test_what_is_too_short_for_a_record_or_of_another_magic_is_unreadable(registry: FakeRegistry, data: bytes) -> None:
    with pytest.raises(UnreadableRecord, match="neither"):
        decode(data)
    assert registry.asked == []
