"""Tokens of callbacks: what a remote is given with a request, so that its webhook names the attempt it speaks of.

A token is signed, not secret: whoever has it may ask to settle that one attempt, and his answer has to be signed by the
remote besides (`amends.producers.callbacks`). The first secret signs, all of them verify, so that they can be rotated.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amends.schemas.facts import UNKNOWN_OFFSET
from amends.tools.errors import ContractError

SECRETS_VARIABLE = "AMENDS_CALLBACKS__TOKEN_SECRETS"
BASE_URL_VARIABLE = "AMENDS_CALLBACKS__BASE_URL"
PATH = "/callbacks/"
SECRET_CHARACTERS_MIN = 16
TOKEN_CHARACTERS_MAX = 4_096
_VERSION = 1


class UnknownToken(Exception):  # noqa: N818 - what it is
    """No token of ours: its signature is of no secret that is known here."""


@dataclass(frozen=True, slots=True)
class CallbackToken:
    """The attempt that a callback settles: of a call, or of an undo (`generation` is not None)."""

    workflow_id: str
    workflow_offset: int
    step_id: str
    attempt: str
    started_offset: int = UNKNOWN_OFFSET  # where the step's STARTED stands
    generation: int | None = None
    owner: str = ""  # of the attempt of the undo

    @property
    def is_undo(self) -> bool:
        return self.generation is not None


def write_token(token: CallbackToken, secret: str) -> str:
    """Return `token` as text that is fit for a URL."""
    row = [
        _VERSION,
        token.workflow_id,
        token.workflow_offset,
        token.step_id,
        token.attempt,
        token.started_offset,
        token.generation,
        token.owner,
    ]
    body = _text(json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode())
    return f"{body}.{_text(_signature(body, secret))}"


def read_token(text: str, secrets: Sequence[str]) -> CallbackToken:
    """Return what `write_token` was given. Raises UnknownToken."""
    body, _, signature = text.partition(".")
    if len(text) > TOKEN_CHARACTERS_MAX or not text.isascii():
        raise UnknownToken("it is no token of a callback")
    # All are compared, so that the time tells nothing of which one fits.
    fits = [hmac.compare_digest(_text(_signature(body, secret)), signature) for secret in secrets]
    if not any(fits):
        raise UnknownToken("the token was signed with no secret that is known here")
    try:
        version, *row = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        if version == _VERSION:
            return CallbackToken(*row)
    except (binascii.Error, ValueError, TypeError) as error:
        raise UnknownToken("it is no token of a callback") from error
    raise UnknownToken(f"the token is of version {version}, which is not known here")


def token_secrets(given: str | None = None) -> tuple[str, ...]:
    """Return the secrets for tokens: those of `given`, else of the environment, apart by commas.

    Raises:
        ContractError: there is none, or one is too short.
    """
    text = os.environ.get(SECRETS_VARIABLE, "") if given is None else given
    secrets = tuple(part.strip() for part in text.split(",") if part.strip())
    if not secrets:
        raise ContractError(
            f"There is no secret to sign tokens of callbacks with: set {SECRETS_VARIABLE} to a random text, the same "
            "for agents, compensators and the door that takes the callbacks."
        )
    check_secrets(secrets)
    return secrets


def check_secrets(secrets: Sequence[str]) -> None:
    """Raises ContractError: one is too short."""
    if any(len(secret) < SECRET_CHARACTERS_MIN for secret in secrets):
        raise ContractError(f"{SECRETS_VARIABLE} has a secret of fewer than {SECRET_CHARACTERS_MIN} characters.")


def callback_url(token: str, base: str | None = None) -> str:
    """Return where a callback with this token is to be sent.

    Args:
        base: where the door is reached from outside, such as https://amends.example.com; None: as the environment says.

    Raises:
        ContractError: nobody said where.
    """
    root: Any = os.environ.get(BASE_URL_VARIABLE, "") if base is None else base
    if not root:
        raise ContractError(f"Where do callbacks come in? Set {BASE_URL_VARIABLE}, or give callback_url(base=...).")
    return f"{str(root).rstrip('/')}{PATH}{token}"


def _signature(body: str, secret: str) -> bytes:
    return hmac.new(secret.encode(), b"amends callback\n" + body.encode(), hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
