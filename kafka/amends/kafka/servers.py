"""Which Kafka, where nobody said: the default is good for a broker on this machine, and for nothing else."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from amends.kafka.errors import SettingsWrong
from amends.kafka.loading import load_settings
from amends.kafka.settings import KafkaSettings

CONNECT_S = 1.0


def kafka_of_settings(bootstrap_servers: str | None = None, env: Mapping[str, str] | None = None) -> KafkaSettings:
    """Return the settings of environment and file, with other servers if given.

    Where nobody named servers and nothing listens at the default, that is said at once: a part started without
    settings, in a container most of all, would else wait for its deadline and name a broker nobody meant.

    Raises:
        SettingsWrong: a setting is wrong, or the one of the servers is missing.
    """
    settings = load_settings(KafkaSettings, "kafka", env, bootstrap_servers=bootstrap_servers)
    if "bootstrap_servers" not in settings.model_fields_set and not _listens(settings.bootstrap_servers):
        raise SettingsWrong(
            "AMENDS_KAFKA__BOOTSTRAP_SERVERS is not set, and no broker is at its default, "
            f"{settings.bootstrap_servers}: set it to HOST:PORT of your Kafka"
        )
    return settings


def _listens(server: str) -> bool:
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True
