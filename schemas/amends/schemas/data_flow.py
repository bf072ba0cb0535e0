"""Data flow between steps: what a call names and what it gives, as digests of the values that could be ids.

What was built on what is seen here by exact values only: an id that one step returned stands among another's
arguments. A value that is taken for an id and is none costs an undo its place beside another; one that is overlooked
can cost its order. So the rules below lean to taking values in.

An id is
- whatever a call declares as an external resource id;
- a UUID; a text of 6 to 200 characters without white space that has a digit (`pi_3Nk1`, `HAT001`);
- a text of 3 to 200 characters without white space whose parts are joined by one of `- _ / @ : . # ~ +`
  (`my-bucket`, `octo/hello`, `alice@example.com`): names that people give;
- a whole number, or the digits of one as text, of six digits or more: 1296269 and "1296269" are one id;
- an object that has no form in a record, by the digest of its repr;
- the name of a field, only if it is one by these rules and has three digits or more (`gift_card_7245904`).

No id is
- a truth value, null, a fraction, bytes, a number of up to five digits (also as text), a number with a point or a
  percent sign;
- a date, a time of day, a point in time, a duration in ISO 8601, a text of white space or of one plain word;
- what was kept from the record as secret.

What was cut off for its size may have named anything.

A digest is the first 12 hex digits of SHA-256. At most `IDS_MAX` stand in a fact, and of a value at most `VALUES_MAX`
parts are looked at; where there are more, `UNKNOWN_ID` stands among them: whoever orders undos takes the step for one
that may have named anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any
from uuid import UUID

from amends.schemas.keys import digest
from amends.schemas.payload import canonical_digest, decode_payload, decoded_form
from amends.schemas.payload_marks import Cut, Opaque, UnreadablePayload

RULES = 1
"""The version of the rules above. Digests of one version say nothing about those of another; 0: nobody looked."""
IDS_MAX = 32
VALUES_MAX = 2_000
UNKNOWN_ID = "*"
"""Stands for ids that nobody could name."""

_DIGITS, _CALL_DIGITS = 12, 16
_TEXT_MAX = 200
_NUMBER_MIN, _NUMBER_END = 100_000, 10**40
_FIELD_DIGITS_MIN = 3
_ID = re.compile(r"(?=\D*\d)\S{6,200}")
_NAME = re.compile(r"\w+(?:[-_/@:.#~+]+\w+)+")
_DIGIT = re.compile(r"\d")
_SPACE = re.compile(r"\s")
_NO_ID = re.compile(
    r"[+-]?\d{1,3}(?:[.,]\d*)+%?|[+-]?\d+[.,]\d+%?|[+-]?\d+%|[+-]\d{1,5}|[+-]?\d+(?:[.,]\d+)?[eE][+-]?\d+"  # numbers
    r"|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:T[\d:.,]+(?:Z|[+-][\d:]+)?)?"  # dates and points in time
    r"|\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-][\d:]+)?"  # times of day
    r"|P(?:\d+[YMWD])*(?:T(?:\d+(?:[.,]\d+)?[HMS])+)?"  # durations
)


def is_id(text: str) -> bool:
    """Tell whether a text could be an id."""
    if not 3 <= len(text) <= _TEXT_MAX:
        return False
    if text.isdecimal():
        return len(text) >= 6
    if _SPACE.search(text) is not None or _NO_ID.fullmatch(text) is not None:
        return False
    return _ID.fullmatch(text) is not None or _NAME.fullmatch(text) is not None


def id_digest(text: str) -> str:
    """Return the digest by which two steps see that they name one thing."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def ids_in(value: object) -> tuple[str, ...]:
    """Return the digests of everything in `value`, live or decoded, that could be an id. Never raises for what the
    value is."""
    return bounded(_ids(decoded_form(value)))


def ids_made(output: object, external_resource_ids: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the digests of what a call gave: the declared ids, whatever they look like, and those in its output."""
    declared = (id_digest(str(text)) for text in (external_resource_ids or {}).values())
    return bounded([*declared, *_ids(decoded_form(output))])


def ids_recorded(payload: bytes, external_resource_ids: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return what `ids_made` does, of an output as it was recorded."""
    try:
        output = decode_payload(payload)
    except UnreadablePayload:
        return (UNKNOWN_ID,)
    return ids_made(output, external_resource_ids)


def call_digest(canonical: str) -> str:
    """Return the digest of a call, by its canonical text (`canonical_call`)."""
    return digest(canonical.encode())[:_CALL_DIGITS]


def canonical_call(tool_name: str, arguments: Mapping[str, object]) -> str:
    """Return what is the same for equal calls: key order, form of numbers, Unicode form do not count."""
    return f"{tool_name}\n{canonical_digest(dict(arguments))}"


def bounded(ids: Iterable[str]) -> tuple[str, ...]:
    """Return each of `ids` once, at most `IDS_MAX`; UNKNOWN_ID is the last where there were more."""
    found = dict.fromkeys(ids)
    if len(found) <= IDS_MAX:
        return tuple(found)
    return (*(name for name in list(found)[: IDS_MAX - 1] if name != UNKNOWN_ID), UNKNOWN_ID)


def _ids(value: Any) -> Iterator[str]:
    """Walk a decoded value without recursion: it may be as deep as a record allows."""
    waiting: list[Any] = [value]
    seen = 0
    while waiting:
        seen += 1
        if seen > VALUES_MAX:
            yield UNKNOWN_ID
            return
        found = waiting.pop()
        if type(found) is list:
            waiting.extend(reversed(found[: VALUES_MAX + 1]))
        elif type(found) is dict:
            fields: dict[Any, Any] = found
            waiting.extend(reversed(list(fields.values())[: VALUES_MAX + 1]))
            yield from (id_digest(name) for name in fields if type(name) is str and _is_id_as_field(name))
        elif type(found) is str:
            # A longer one is none, and is not to be kept among those that were looked at.
            if len(found) <= _TEXT_MAX and (digest := _digest_if_id(found)) is not None:
                yield digest
        elif isinstance(found, Cut):
            yield UNKNOWN_ID
        elif (text := _as_text(found)) is not None:
            yield id_digest(text)


@lru_cache(maxsize=8_192)
def _digest_if_id(text: str) -> str | None:
    """What one step returns, others are given: most ids are met more than once."""
    return id_digest(text) if is_id(text) else None


def _as_text(value: object) -> str | None:
    """Return what stands for a value that is no text, if it could be an id."""
    if type(value) is int:
        return str(value) if _NUMBER_MIN <= abs(value) < _NUMBER_END else None
    if isinstance(value, UUID):
        return str(value)
    return value.digest if isinstance(value, Opaque) else None


@lru_cache(maxsize=1_024)
def _is_id_as_field(name: str) -> bool:
    """Names of fields are mostly words of a programmer; ids stand there with some digits in them."""
    return len(_DIGIT.findall(name)) >= _FIELD_DIGITS_MIN and is_id(name)
