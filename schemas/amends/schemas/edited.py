"""Arguments that a person gives to an undo in place of those of its call: what they may be."""

from __future__ import annotations

from amends.schemas.payload import UnreadablePayload, decode_payload

EDITED_BYTES_MAX = 4_096
"""As many as a call's own may have."""


def why_unfit(arguments: bytes | None) -> str | None:
    """Return why these can't be the arguments of an undo, None if they can."""
    if arguments is None:
        return "there are none"
    if len(arguments) > EDITED_BYTES_MAX:
        return f"they are {len(arguments)} bytes, more than {EDITED_BYTES_MAX}"
    try:
        found = decode_payload(arguments)
    except UnreadablePayload:
        return "they are not JSON"
    return None if isinstance(found, dict) else "they are no JSON object"
