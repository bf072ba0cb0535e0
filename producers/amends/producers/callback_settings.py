"""Settings of the door for callbacks: `AMENDS_CALLBACKS__<NAME>`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from amends.producers import webhooks
from amends.tools.callbacks import check_secrets
from amends.tools.errors import ContractError


class CallbackSettings(BaseModel):
    """How callbacks of remotes come in.

    Attributes:
        token_secrets: the first signs the tokens that remotes are given, all verify them; agents and compensators take
            them from the environment too.
        signing_secrets: `whsec_…` of the remotes' webhooks; several while they are rotated, or for several remotes.
        base_url: where the door is reached from outside, such as https://amends.example.com.
        tolerance_ms: how far a webhook's time may be from now.
        body_bytes_max: larger webhooks are refused.
        write_within_ms: how long the ledger may take; after it the remote is told to try again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    token_secrets: tuple[SecretStr, ...] = ()
    signing_secrets: tuple[SecretStr, ...] = ()
    base_url: str = ""
    tolerance_ms: Annotated[int, Field(ge=1_000)] = webhooks.TOLERANCE_MS
    body_bytes_max: Annotated[int, Field(ge=1_024, le=900_000)] = 256 * 1024
    write_within_ms: Annotated[int, Field(ge=100)] = 10_000

    @field_validator("signing_secrets")
    @classmethod
    def _are_keys(cls, secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for secret in secrets:
            webhooks.signing_key(secret.get_secret_value())
        return secrets

    @field_validator("token_secrets")
    @classmethod
    def _are_long(cls, secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        try:
            check_secrets([secret.get_secret_value() for secret in secrets])
        except ContractError as error:
            raise ValueError(str(error)) from None
        return secrets
