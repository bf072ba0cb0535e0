"""Equal arguments have one digest, however a model spelt them; different ones have different digests."""

from __future__ import annotations

import unicodedata
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amends.schemas.payload import canonical, canonical_digest, decode_payload, encode_payload

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.decimals() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=15,
)


@given(VALUES)
def test_a_recorded_value_has_the_digest_of_the_live_one(value: Any) -> None:
    assert canonical(decode_payload(encode_payload(value))) == canonical(value)


@given(st.dictionaries(st.text(), VALUES, max_size=6))
def test_the_order_of_keys_does_not_matter(fields: dict[str, Any]) -> None:
    assert canonical(dict(reversed(list(fields.items())))) == canonical(fields)


@given(st.integers(min_value=-(2**53), max_value=2**53))
def test_a_whole_number_is_itself_in_every_type(number: int) -> None:
    assert (
        canonical(number)
        == canonical(float(number))
        == canonical(Decimal(number))
        == canonical(Decimal(f"{number}.00"))
    )


@given(st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer()))
def test_a_fraction_is_itself_in_every_type(number: float) -> None:
    assert canonical(number) == canonical(Decimal(repr(number)))


@given(st.text())
def test_text_is_itself_in_every_normal_form(text: str) -> None:
    assert canonical(unicodedata.normalize("NFD", text)) == canonical(unicodedata.normalize("NFC", text))


@given(st.integers() | st.floats(allow_nan=False), st.integers() | st.floats(allow_nan=False))
def test_different_numbers_differ(one: float, other: float) -> None:
    assert (canonical(one) == canonical(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (100, "100"),
        (1, True),
        (0, False),
        (None, "null"),
        ([1, 2], [2, 1]),
        ("a", "A"),
        ("a", " a"),
        (b"a", "a"),
        (Decimal("1.5"), Decimal("1.51")),
        ({"a": 1}, {"a": 1, "b": None}),
        ([[1], 2], [[1, 2]]),
        ({"$amends": "uuid"}, {"$amends": "text"}),
        (0.1, 0.1 + 2**-50),
    ],
)
def test_different_values_differ(one: Any, other: Any) -> None:
    assert canonical_digest(one) != canonical_digest(other)


@pytest.mark.parametrize(
    "value",
    [
        Decimal("1e999999"),
        Decimal("-1e-999999"),
        Decimal("0e9999"),
        pytest.param(10**6_000, id="huge"),
        Decimal("NaN"),
        Decimal("-Infinity"),
    ],
)
def test_numbers_out_of_all_bounds_have_short_digests_and_take_no_time(value: Any) -> None:
    assert len(canonical(value)) < 6_000


def test_zero_is_zero() -> None:
    assert len({canonical(value) for value in (0, 0.0, -0.0, Decimal(0), Decimal("-0.00"), Decimal("0e9999"))}) == 1
