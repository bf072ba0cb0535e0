"""Makes the door for callbacks on the Kafka of the environment, and settles without one."""

from __future__ import annotations

import asyncio

from amends.kafka.errors import SettingsWrong
from amends.kafka.schema_registry_opening import open_schema_registry
from amends.kafka.settings import KafkaSettings, load_settings
from amends.producers.callback_settings import CallbackSettings
from amends.producers.callbacks import CallbackDoor, Reading, read_own
from amends.producers.kafka_ledger import KafkaLedger
from amends.producers.settling import CallbackAnswer


def door_from_environment(read: Reading = read_own) -> CallbackDoor:
    """Return the door. Kafka is not asked before the first callback.

    Raises:
        SettingsWrong: a setting is unknown, missing or does not fit.
    """
    settings = load_settings(CallbackSettings, "callbacks")
    for name in ("token_secrets", "signing_secrets"):
        if not getattr(settings, name):
            raise SettingsWrong(f"callbacks.{name} is missing: set AMENDS_CALLBACKS__{name.upper()}")
    return CallbackDoor(_ledger(settings), settings, read)


def settle_callback(token: str, answer: CallbackAnswer, by: str = "a callback") -> None:
    """Settle the attempt that `token` names, from where a remote's word came in by other ways than a webhook.

    On return it is on the ledger. Makes a Kafka client for this one answer; who has many keeps a `CallbackDoor`.

    Raises:
        SettingsWrong: a setting is unknown or does not fit.
        UnknownToken, AnswerUnfit: nothing was written.
        LedgerUnavailable: it may not have been written; do it again.
    """
    settings = load_settings(CallbackSettings, "callbacks")
    ledger = _ledger(settings)
    try:
        asyncio.run(CallbackDoor(ledger, settings).settle(token, answer, by))
    finally:
        ledger.close()


def _ledger(settings: CallbackSettings) -> KafkaLedger:
    kafka = load_settings(KafkaSettings, "kafka")
    open_schema_registry()
    return KafkaLedger(kafka, write_within_ms=settings.write_within_ms)
