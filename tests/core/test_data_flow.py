"""What a call names and gives, as digests: the noise rules, exactness, bounds."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amends.schemas.contract import Contract, Effect
from amends.schemas.data_flow import (
    IDS_MAX,
    UNKNOWN_ID,
    VALUES_MAX,
    call_digest,
    canonical_call,
    id_digest,
    ids_in,
    ids_made,
    ids_recorded,
    is_id,
)
from amends.schemas.payload import Cut, SecretDigest, encode_payload
from amends.tools.touches import touches_of

IDS = [
    "pi_3Nk1",
    "HAT001",
    "W2611340",
    "#W123456",
    "1296269",
    "my-bucket",
    "octo/hello",
    "alice@example.com",
    "BK-12",
    "+491511234567",
    "v1.2.3a",
    "0f8fad5b-d9cb-469f-a165-70867728950e",
]
NOISE = [
    "",
    "a",
    "pending",
    "USD",
    "true",
    "hello world 123",
    "12345",
    "-5",
    "+5",
    "99%",
    "12.50",
    "1,000.00",
    "1.000.000,00",
    "3.14159",
    "4.5e3",
    "2024-01-01",
    "12/31/2024",
    "10:00",
    "10:00:00",
    "2024-01-01T10:00:00Z",
    "2024-05-15T10:00:00.123+02:00",
    "P1DT2H",
    "x1" * 101,
]


@pytest.mark.parametrize("text", IDS)
def test_what_could_be_an_id_is_taken_for_one(text: str) -> None:
    assert is_id(text)
    assert ids_in({"it": [text]}) == (id_digest(text),)


@pytest.mark.parametrize("text", NOISE)
def test_words_dates_amounts_and_small_numbers_are_no_ids(text: str) -> None:
    assert not is_id(text)
    assert ids_in([text]) == ()


@pytest.mark.parametrize(
    "value", [None, True, False, 0, 12, 99_999, -7, 1.5, 123456.5, Decimal("123456.7"), b"pi_3Nk1"]
)
def test_small_numbers_truth_fractions_and_bytes_are_no_ids(value: object) -> None:
    assert ids_in({"value": value}) == ()


def test_an_id_is_one_whether_it_comes_as_a_number_or_as_text() -> None:
    assert ids_in(1296269) == ids_in("1296269") == (id_digest("1296269"),)
    uuid = UUID("0f8fad5b-d9cb-469f-a165-70867728950e")
    assert ids_in(uuid) == ids_in(str(uuid))


def test_only_whole_values_count() -> None:
    assert set(ids_in("https://api.example.com/orders/W2611340")).isdisjoint(ids_in("W2611340"))


def test_a_field_name_counts_with_three_digits_or_more() -> None:
    assert ids_in({"gift_card_7245904": 1, "address1": 1, "line_item_12": 2}) == (id_digest("gift_card_7245904"),)


def test_a_declared_id_counts_whatever_it_looks_like() -> None:
    assert ids_made({"status": "ok"}, {"number": "7"}) == (id_digest("7"),)


def test_a_live_output_and_its_record_give_the_same_ids() -> None:
    output = {"id": "ch_1", "at": datetime.date(2024, 1, 2), "id2": "ch_2345", "n": 1296269, "of": UUID(int=7)}
    assert ids_made(output) == ids_recorded(encode_payload(output))


def test_what_was_cut_off_or_can_not_be_read_may_have_named_anything() -> None:
    assert ids_recorded(encode_payload(Cut(9_999, "d", "{"))) == (UNKNOWN_ID,)
    assert ids_recorded(b"{") == (UNKNOWN_ID,)


def test_a_secret_names_nothing() -> None:
    assert ids_in({"token": SecretDigest("abc123def")}) == ()


def test_more_ids_than_fit_say_so() -> None:
    many = ids_in([f"item-{n}" for n in range(IDS_MAX + 1)])
    assert len(many) == IDS_MAX
    assert many[-1] == UNKNOWN_ID
    assert UNKNOWN_ID not in ids_in([f"item-{n}" for n in range(IDS_MAX)])
    assert UNKNOWN_ID in ids_in(["word"] * (VALUES_MAX + 1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=40,
)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_ids_are_bounded_each_once_and_the_same_each_time(value: object) -> None:
    found = ids_in(value)
    assert found == ids_in(json.loads(json.dumps(value)))
    assert len(found) == len(set(found)) <= IDS_MAX


def test_equal_calls_have_equal_digests_however_they_were_spelt() -> None:
    one = canonical_call("pay", {"amount": 100, "to": "Ren\u00e9", "more": {"a": 1, "b": 2}})
    two = canonical_call("pay", {"more": {"b": 2.0, "a": 1}, "to": "Rene\u0301", "amount": Decimal("100.0")})
    assert call_digest(one) == call_digest(two)
    assert len(call_digest(one)) == 16
    assert call_digest(one) != call_digest(canonical_call("charge", {"amount": 100}))


def contract_with(*resources: str) -> Contract:
    return Contract("t", Effect.COMPENSABLE, resources=resources)


def test_a_call_touches_what_its_tool_declares() -> None:
    both = {"sku": "a", "lines": [{"sku": 1}, {"sku": "b"}]}
    assert touches_of(contract_with(), both) == ()
    assert len(touches_of(contract_with("input.sku", "input.lines[].sku"), both)) == 3
    assert touches_of(contract_with("input.sku"), {"sku": 1}) == touches_of(contract_with("input.id"), {"id": 1.0})


@pytest.mark.parametrize("value", [None, [], SecretDigest("x")])
def test_a_key_that_can_not_be_found_may_be_any(value: object) -> None:
    assert touches_of(contract_with("input.sku"), {"sku": value}) == (UNKNOWN_ID,)
