"""The writer that is made once writes what the standard library does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amends.schemas.json_text import json_writer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize("sort_keys", [True, False])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_writer_made_once_writes_what_the_library_writes(sort_keys: bool, ascii_only: bool) -> None:
    write = json_writer(sort_keys=sort_keys, ascii_only=ascii_only)

    @given(VALUES)
    def same(value: Any) -> None:
        assert write(value) == json.dumps(value, separators=(",", ":"), sort_keys=sort_keys, ensure_ascii=ascii_only)

    same()


def test_what_contains_itself_is_refused_and_what_is_no_json_too() -> None:
    around: list[Any] = []
    around.append(around)
    for value, error in ((around, RecursionError), (object(), TypeError)):
        with pytest.raises(error):
            json_writer()(value)
