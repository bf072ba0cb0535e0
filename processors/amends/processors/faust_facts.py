"""Facts as Faust read them, as folds want them."""

from __future__ import annotations

from typing import Any

from faust.types import EventT

from amends.processors.emission import Headers


class LedgerMessage:
    """A `LedgerRecord`."""

    __slots__ = ("_headers", "appended_at_ms", "key", "offset", "value")

    def __init__(self, event: EventT[Any]) -> None:
        message = event.message
        self.offset: int = message.offset
        self.appended_at_ms = round(message.timestamp * 1000)
        self.key: bytes | None = message.key
        self.value: bytes | None = message.value
        self._headers: Any = message.headers

    @property
    def headers(self) -> Headers:
        found = self._headers or ()
        pairs = found.items() if isinstance(found, dict) else found
        return tuple((name, value or b"") for name, value in pairs)
