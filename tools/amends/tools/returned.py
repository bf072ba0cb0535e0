"""Errors that are returned and not raised.

A tool may say "it failed" by a typed value: an exception, `is_error` or `isError` (MCP), `status="error"` (LangChain).
Such a call is no success. Words are never read: a text that holds "failover" or "0 errors" is a result like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

_FLAGS = ("is_error", "isError")
_ABSENT = object()
_NO_ERROR = frozenset({str, int, float, bool, bytes, list, tuple, type(None)})


def reported_error(value: object) -> str | None:
    """Return how `value` says that the call failed, or None if it does not. Looks at the value itself, not into it.

    Whether the effect happened is open then, as with an exception that is no declared refusal: UNKNOWN.
    """
    if type(value) in _NO_ERROR:
        return None
    if isinstance(value, BaseException):
        return f"it returned a {type(value).__name__}"
    for flag in _FLAGS:
        if _field(value, flag) is True:
            return f"it returned {flag} = true"
    status = _field(value, "status")
    if isinstance(status, str) and str.__str__(status).lower() == "error":
        return 'it returned status = "error"'
    return None


def _field(value: object, name: str) -> Any:
    if type(value) is dict or isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).get(name, _ABSENT)
    try:
        return getattr(value, name, _ABSENT)
    except Exception:  # a property of the tool's own class that raises says nothing
        return _ABSENT
