"""Signatures of webhooks as Standard Webhooks has them (standardwebhooks.com, 1.0): HMAC-SHA256 over id, time and body.

    webhook-id: msg_…    webhook-timestamp: 1614265330    webhook-signature: v1,<base64> v1,<base64>

Several signatures, and several secrets, are there to rotate secrets. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

TOLERANCE_MS = 300_000
ID_CHARACTERS_MAX = 200
_PREFIX = "whsec_"
_SIGNATURES_MAX = 16


class SignatureWrong(Exception):  # noqa: N818 - what it is
    """The message is not the remote's, or not from now. Says which header, never a value."""


class SecretWrong(ValueError):  # noqa: N818 - what it is
    """It is no secret of a webhook."""


def signing_key(secret: str) -> bytes:
    """Return the key of `whsec_<base64>`. Raises SecretWrong."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SecretWrong(f"a signing secret is {_PREFIX} and base64 behind it") from error
    if not 24 <= len(key) <= 64:
        raise SecretWrong(f"a signing secret has 24 to 64 bytes, and one has {len(key)}")
    return key


def sign(message_id: str, timestamp_s: int, body: bytes, secret: str) -> str:
    """Return the value of webhook-signature."""
    digest = hmac.new(signing_key(secret), f"{message_id}.{timestamp_s}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def verify(
    headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now_ms: int, tolerance_ms: int = TOLERANCE_MS
) -> str:
    """Return the message's id, the same each time the remote sends it.

    Raises:
        SignatureWrong: it was not signed with one of `secrets`, or too long ago, or it is from the future.
    """
    message_id = headers.get("webhook-id", "")
    if not message_id or len(message_id) > ID_CHARACTERS_MAX:
        raise SignatureWrong("webhook-id is missing or too long")
    stamp = headers.get("webhook-timestamp", "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        raise SignatureWrong("webhook-timestamp is missing or no number of seconds")
    if abs(now_ms - int(stamp) * 1_000) > tolerance_ms:
        raise SignatureWrong("webhook-timestamp is too far from now")
    given = headers.get("webhook-signature", "").split()[:_SIGNATURES_MAX]
    wanted = [sign(message_id, int(stamp), body, secret).encode() for secret in secrets]
    # All are compared, so that the time tells nothing of which one fits.
    fits = [hmac.compare_digest(one, other.encode()) for one in wanted for other in given]
    if not any(fits):
        raise SignatureWrong("webhook-signature fits none of the secrets")
    return message_id
