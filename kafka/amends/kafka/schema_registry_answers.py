"""What a schema registry answers, read as what was asked for. Pure.

Whatever else comes, of any shape, is an error of ours that says what to change: the page of a gateway, another
program's JSON, a number that no record can carry.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeGuard

from amends.kafka.errors import KafkaFault
from amends.schemas.framing import FRAME_BYTES

NOT_FOUND = 404
REFUSALS = frozenset({401, 403, 407})
LATER = frozenset({408, 429})
"""Answers that another try may change, as every 5xx."""

IDS_MAX = 1 << 8 * (FRAME_BYTES - 1)
WORDS_MAX = 200
AVRO = "AVRO"
WHERE = "look at AMENDS_SCHEMA_REGISTRY__URL (Apicurio's ends with /apis/ccompat/v7), and at what stands before it"
NO_REGISTRY = f"there seems to be no registry at this path: {WHERE}"


class SchemaRegistryFault(KafkaFault):
    """The schema registry did not do what it was asked for."""


class SchemaRegistryAway(SchemaRegistryFault):
    """It did not answer, or said that it can't now: later it may."""


class SchemaRegistryRefused(SchemaRegistryFault):
    """It let us not in, or is not the one we trust: settings must be changed, here or there."""


class NoSchemaRegistry(SchemaRegistryFault):
    """What answers does not speak as a schema registry does: a wrong address, or a gateway that answers for it."""


class SchemaRegistryAnswered(SchemaRegistryFault):
    """It answered with an error about what was asked."""

    def __init__(self, words: str, status: int, code: int) -> None:
        super().__init__(words)
        self.status = status
        self.code = code

    @property
    def is_absence(self) -> bool:
        """It has no such subject, version, schema or level (40401 and the like): none but a registry says so."""
        return self.status == NOT_FOUND and self.code // 100 == NOT_FOUND


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema under a subject."""

    subject: str
    version: int
    id: int
    schema: str
    is_avro: bool = True


def answer_of(url: str, status: int, text: bytes) -> Any:
    """Return what the registry said. Raises SchemaRegistryFault, by what is to be done about it."""
    try:
        said: Any = json.loads(text) if text else {}
    except (ValueError, RecursionError):  # was said by somebody else, such as a proxy
        said = None
    if status < 300 and said is not None:
        return said
    detail = said if isinstance(said, dict) else {}
    words = str(detail.get("message") or text.decode(errors="replace") or "no words")[:WORDS_MAX]
    if status in REFUSALS:
        raise SchemaRegistryRefused(
            f"{url} refuses us (HTTP {status}): look at AMENDS_SCHEMA_REGISTRY__USER and "
            "AMENDS_SCHEMA_REGISTRY__PASSWORD, and at what that user may do there"
        )
    if status >= 500 or status in LATER:
        raise SchemaRegistryAway(f"{url} can't answer now (HTTP {status}): {words}")
    if status < 300:
        raise NoSchemaRegistry(f"{url} is no schema registry: it answered HTTP {status} and no JSON; {WHERE}")
    if status < 400:
        raise NoSchemaRegistry(f"{url} is no schema registry: it sends elsewhere (HTTP {status}); {WHERE}")
    code = detail.get("error_code")
    raise SchemaRegistryAnswered(f"{url} answered HTTP {status}: {words}", status, code if _is_number(code) else 0)


def schema_in(url: str, said: Any) -> dict[str, Any]:
    """Return what stands under an id. Raises NoSchemaRegistry."""
    if not isinstance(said, dict) or not isinstance(said.get("schema"), str):
        raise _shapeless(url, "a schema", said)
    return said


def registered_in(url: str, said: Any) -> Registered:
    """Raises NoSchemaRegistry."""
    if isinstance(said, dict):
        subject, version, schema = said.get("subject"), said.get("version"), said.get("schema")
        if isinstance(subject, str) and isinstance(schema, str) and _is_number(version):
            return Registered(subject, version, id_in(url, said), schema, said.get("schemaType", AVRO) == AVRO)
    raise _shapeless(url, "a registered schema", said)


def id_in(url: str, said: Any) -> int:
    """Raises NoSchemaRegistry."""
    number = said.get("id") if isinstance(said, dict) else None
    if not _is_number(number):
        raise _shapeless(url, "an id", said)
    if not 0 <= number < IDS_MAX:
        raise NoSchemaRegistry(
            f"{url} gave the id {number}, and a record has {FRAME_BYTES - 1} bytes for it: have the registry give its "
            f"4-byte ids (Apicurio's are at /apis/ccompat/v7), or {WHERE}"
        )
    return number


def versions_in(url: str, said: Any) -> list[int]:
    """Raises NoSchemaRegistry."""
    if not isinstance(said, list) or not all(_is_number(number) for number in said):
        raise _shapeless(url, "the versions of a subject", said)
    return sorted(said)


def level_in(url: str, said: Any) -> str:
    """Return the compatibility that is set, "" for none. Raises NoSchemaRegistry."""
    if isinstance(said, dict):
        level = said.get("compatibilityLevel") or said.get("compatibility") or ""
        if isinstance(level, str):
            return level
    raise _shapeless(url, "a compatibility level", said)


def are_types(said: Any) -> bool:
    """Return whether it is what a registry says of the kinds of schema that it takes."""
    return isinstance(said, list) and AVRO in said


def _is_number(said: object) -> TypeGuard[int]:
    return type(said) is int  # no bool, which is an int, and no 1e999


def _shapeless(url: str, wanted: str, said: Any) -> NoSchemaRegistry:
    try:
        shown = json.dumps(said)[:WORDS_MAX]
    except RecursionError:
        shown = "something deep"
    return NoSchemaRegistry(
        f"{url} does not speak as a schema registry does: asked for {wanted}, it answered {shown}; {WHERE}"
    )
