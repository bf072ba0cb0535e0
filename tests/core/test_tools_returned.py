"""A tool that returns a typed error has not succeeded; one whose words sound like an error has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amends.tools.returned import reported_error


@dataclass
class Message:
    status: Any = "success"
    is_error: bool = False


@dataclass
class CallToolResult:
    isError: bool  # noqa: N815 - MCP's name


class Status(StrEnum):
    ERROR = "error"


class Raising:
    @property
    def is_error(self) -> bool:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        ValueError("x"),
        {"is_error": True, "content": "ok"},
        {"isError": True},
        {"status": "error"},
        {"status": "ERROR"},
        Message(status="error"),
        Message(status=Status.ERROR),
        Message(is_error=True),
        CallToolResult(isError=True),
    ],
)
def test_a_typed_error_is_no_success(value: Any) -> None:
    assert reported_error(value) is not None


@pytest.mark.parametrize(
    "value",
    [
        "failover done, no errors, unavailable items: 0",
        "error",
        b"error",
        {"message": "error", "errors": [], "error": None},
        {"is_error": False, "status": "ok"},
        {"is_error": "no"},
        {"status": "errors: 0"},
        {"status": 500},
        {"result": {"is_error": True}},
        [{"is_error": True}],
        Message(),
        CallToolResult(isError=False),
        Raising(),
        None,
        0,
        False,
        ValueError,
    ],
)
def test_words_that_sound_like_an_error_are_none(value: Any) -> None:
    assert reported_error(value) is None


@given(st.recursive(st.none() | st.text() | st.integers() | st.binary(), st.lists, max_leaves=10))
def test_plain_values_are_never_errors(value: Any) -> None:
    assert reported_error(value) is None
