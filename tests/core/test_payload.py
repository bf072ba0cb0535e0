"""Laws of payload bytes: whatever comes is recorded, and what has a form comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections import OrderedDict, deque, namedtuple
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, RootModel, SecretStr

from amends.schemas.payload import (
    Cut,
    Opaque,
    SecretDigest,
    UnreadablePayload,
    contains_not_kept,
    decode_payload,
    decoded_form,
    encode_bounded,
    encode_payload,
    snapshot,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))  # lone surrogates too
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=-5, minutes=-30))))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
)
KEYS = st.text(st.characters(exclude_categories=())) | st.integers() | st.uuids() | st.just("$amends") | st.none()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=15)


@given(VALUES)
def test_what_has_a_form_comes_back(value: Any) -> None:
    data = encode_payload(value)
    assert decode_payload(data) == value
    assert type(decode_payload(data)) is type(value)


@given(VALUES)
def test_the_bytes_are_json_in_utf8(value: Any) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(encode_payload(value).decode("utf-8"), parse_constant=refuse)


@given(VALUES)
def test_a_live_value_in_decoded_form_is_what_the_ledger_will_give(value: Any) -> None:
    recorded = decode_payload(encode_payload(value))
    assert decoded_form(value) == snapshot(value) == recorded
    assert encode_payload(recorded) == encode_payload(value)


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.recursive(st.none() | st.text(), st.lists, max_leaves=10).map(encode_payload)
)
def test_bytes_from_anywhere_are_read_or_refused_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(UnreadablePayload):
        decode_payload(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"{",
        b"NaN",
        b"[Infinity]",
        b'{"$amends":"os.system","value":"true"}',
        b'{"$amends":"uuid","value":"x"}',
        b'{"$amends":"uuid"}',
        b'{"$amends":["bytes"]}',
        b'{"$amends":"cut"}',
        b"[" * 100_000,
        b"9" * 10_000,
    ],
)
def test_bytes_that_are_no_payload_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadablePayload):
        decode_payload(data)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Line:
    sku: str
    price: Decimal


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")
    number: int
    lines: list[Line]


class Names(RootModel[list[str]]):
    pass


Point = namedtuple("Point", "x y")


class Text(str):
    pass


class Moment(datetime):
    def isoformat(self, *_: Any, **__: Any) -> str:
        return "tomorrow"


NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Line("a", Decimal("1.50")), {"sku": "a", "price": Decimal("1.50")}),
        (
            Order.model_validate({"number": 1, "lines": [Line("a", Decimal(2))], "note": "n"}),
            {"number": 1, "lines": [{"sku": "a", "price": Decimal(2)}], "note": "n"},
        ),
        (Names(["a"]), ["a"]),
        (Point(1, 2), {"x": 1, "y": 2}),
        ((1, (2,)), [1, [2]]),
        ({3, 1}, [1, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (deque([1]), [1]),
        (OrderedDict(a=1), {"a": 1}),
        ({"a": 1}.keys(), ["a"]),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        (Text("t"), "t"),
        (Moment(2026, 11, 30, 12, tzinfo=UTC), NOON),
        (PurePosixPath("/a/b"), "/a/b"),
        (math.inf, math.inf),
        ({(1, 2): "tuple"}, {(1, 2): "tuple"}),
        pytest.param(10**5_000, 10**5_000, id="huge"),
        ("\ud800", "\ud800"),
        ({"\udfff": 1}, {"\udfff": 1}),
    ],
)
def test_other_objects_come_back_as_what_they_hold(value: Any, decoded: Any) -> None:
    found = decode_payload(encode_payload(value))
    assert found == decoded
    assert type(found) is type(decoded)


def test_not_a_number_comes_back_as_not_a_number() -> None:
    assert math.isnan(decode_payload(encode_payload(math.nan)))
    assert decode_payload(encode_payload(Decimal("sNaN"))).is_snan()


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class HostileMapping(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


class Lying:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no")


def _generator() -> Iterator[int]:
    yield 1
    raise AssertionError("a generator must not be consumed")


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _circle() -> Any:
    circle: dict[str, Any] = {"name": "c"}
    circle["self"] = [circle]
    return circle


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Hostile(),
        HostileMapping(a=1),
        _generator(),
        _generator,
        ValueError("x"),
        type,
        ...,
        1j,
        range(3),
    ],
)
def test_what_has_no_form_is_recorded_as_text_with_a_digest(value: Any) -> None:
    found = decode_payload(encode_payload({"it": value}))["it"]
    assert isinstance(found, Opaque)
    assert len(found.digest) == 64
    assert contains_not_kept({"a": [found]})


def test_an_object_that_lies_about_its_class_is_recorded() -> None:
    assert type(decode_payload(encode_payload([Lying()]))[0]) is Opaque


def test_a_generator_is_left_alone() -> None:
    generator = _generator()
    encode_payload(generator)
    assert next(generator) == 1


def test_an_opaque_text_is_bounded_and_its_digest_is_of_the_whole() -> None:
    class Long:
        def __repr__(self) -> str:
            return "é" * 1_000_000

    data = encode_payload(Long())
    assert len(data) < 4_000
    assert decode_payload(data).digest == sha256(repr(Long()).encode()).hexdigest()


def test_an_object_that_refers_to_itself_is_recorded_up_to_there() -> None:
    found = decode_payload(encode_payload(_circle()))
    assert found["name"] == "c"
    assert "refers to itself" in found["self"][0].text


def test_the_same_object_twice_is_no_circle() -> None:
    shared = {"a": 1}
    assert decode_payload(encode_payload([shared, shared])) == [shared, shared]


@pytest.mark.parametrize("levels", [101, 900, 100_000])
def test_an_object_nested_too_deep_is_recorded_up_to_there(levels: int) -> None:
    found = decode_payload(encode_payload(_deep(levels)))
    assert contains_not_kept(found)


def test_a_masked_secret_of_pydantic_is_not_in_the_bytes() -> None:
    assert b"hunter2" not in encode_payload({"password": SecretStr("hunter2")})


def test_marks_survive_being_recorded_again() -> None:
    for mark in (Opaque("a.B", "text", "d"), Cut(9, "d", "head"), SecretDigest("d")):
        assert decode_payload(encode_payload({"it": mark})) == {"it": mark}


@pytest.mark.parametrize("value", [date(1, 1, 1), time(23, 59, 59, 999_999), timedelta.min, timedelta.max, UUID(int=0)])
def test_the_ends_of_ranges_come_back(value: Any) -> None:
    assert decode_payload(encode_payload(value)) == value


# --- bounded --------------------------------------------------------------------------------------------------------


@given(st.text() | VALUES, st.integers(min_value=256, max_value=600))
def test_a_bounded_payload_is_whole_or_cut_with_the_digest_of_the_whole(value: Any, limit: int) -> None:
    whole, bounded = encode_payload(value), encode_bounded(value, limit)
    assert len(bounded.data) <= limit
    if len(whole) <= limit:
        assert bounded.data == whole
        assert bounded.digest is None
    else:
        cut = decode_payload(bounded.data)
        assert isinstance(cut, Cut)
        assert bounded.digest == cut.digest == sha256(whole).hexdigest()
        assert cut.payload_bytes == len(whole)


@pytest.mark.parametrize("filler", ['"', "\\", "a", "é", "\x01", "\U0001f600", "\ud800"])
def test_five_megabytes_of_anything_are_cut(filler: str) -> None:
    for limit in (256, 1_000, 100_000):
        assert len(encode_bounded(filler * 1_000_000, limit).data) <= limit
