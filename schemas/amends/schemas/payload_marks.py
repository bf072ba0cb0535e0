"""What stands in a payload where a value could not, or must not, be kept."""

from __future__ import annotations

from dataclasses import dataclass


class UnreadablePayload(ValueError):  # noqa: N818 - what the payload is, not that an error occurred
    """Bytes that are no payload this version can read."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object that has no form: its type's name, the beginning of its repr, and the digest of the whole repr."""

    type: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class Cut:
    """A payload too large to keep: its size, the digest of all its bytes, and the beginning of its text."""

    payload_bytes: int
    digest: str
    head: str = ""


@dataclass(frozen=True, slots=True)
class SecretDigest:
    """An argument marked secret: a slow digest of it, bound to tool and parameter. The value is nowhere."""

    digest: str

    def __str__(self) -> str:
        return "(secret)"


NotKept = Opaque | Cut | SecretDigest
"""What stands where a value could not, or must not, be kept. An undo never runs with one as an argument."""
