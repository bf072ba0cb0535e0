"""Durations as people write them: "90d", "1h30m", "500ms", or a timedelta. A bare number has no unit and is refused."""

from __future__ import annotations

import re
from datetime import timedelta

Duration = str | timedelta

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
DURATION_MAX_MS = 100 * 366 * 86_400_000


def duration_ms(value: Duration) -> int:
    """Return `value` in whole milliseconds, at least 1 and at most a hundred years.

    Raises:
        ValueError: it is no duration; the message says how to write one.
    """
    if isinstance(value, timedelta):
        milliseconds = value / timedelta(milliseconds=1)
    else:
        text = str(value).replace(" ", "")
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(
                f'{value!r} is no duration: write a number and its unit (ms, s, m, h, d or w), such as "30s" or "90d"'
            )
        milliseconds = sum(float(number) * _UNITS_MS[unit] for number, unit in parts)
    if not 1 <= milliseconds <= DURATION_MAX_MS:
        raise ValueError(f"{value!r} is not between a millisecond and a hundred years")
    return round(milliseconds)
