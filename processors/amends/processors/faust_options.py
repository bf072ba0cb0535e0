"""Settings of amends as settings of Faust. What a promise rests on is set here and nowhere else."""

from __future__ import annotations

from typing import Any

from amends.kafka.settings import KafkaSettings
from amends.processors.faust_credentials import credentials_of, refuse_unknown
from amends.processors.faust_table import StateTable
from amends.processors.settings import ProcessorSettings

RECORD_BYTES_MAX = 1_048_588
"""What the changelog takes (its max.message.bytes). Faust's default is less, and a worker that meets a larger value
ends, starts, and meets it again."""
BATCH_BYTES = 262_144
LINGER_MS = 5
"""Only the changelog is written by Faust's client; it sends a request for nearly every record unless it waits a little.
Commands and echo, on which somebody waits, go by our own."""
COMMIT_MS = 1_000


def heartbeat_ms(settings: ProcessorSettings) -> int:
    """Return how often a worker says that it lives. Faust's own values are for sessions of a minute."""
    return settings.session_timeout_ms // 3


def app_options(kafka: KafkaSettings, settings: ProcessorSettings) -> dict[str, Any]:
    """Return the arguments of `faust.App`, but for its id.

    Raises OptionRefusedError for an option of the client that Faust's client has nothing for.
    """
    refuse_unknown(kafka.options)
    return {
        "broker": ";".join(f"kafka://{server.strip()}" for server in kafka.bootstrap_servers.split(",")),
        "broker_client_id": kafka.options.get("client.id", "amends"),
        "broker_credentials": credentials_of(kafka.options),
        "broker_session_timeout": settings.session_timeout_ms / 1000,
        "broker_heartbeat_interval": heartbeat_ms(settings) / 1000,
        "broker_commit_interval": COMMIT_MS / 1000,
        "broker_max_poll_records": settings.facts_max,
        "consumer_auto_offset_reset": "earliest",
        "consumer_group_instance_id": settings.instance_id,
        # State is read by us, and offsets count only behind it. Exactly-once would end both workers when one wakes.
        "processing_guarantee": "at_least_once",
        "stream_wait_empty": False,
        "store": "memory://",
        "Table": StateTable,
        # Standbys were no faster, and had the only facts that were lost or out of order.
        "table_standby_replicas": 0,
        # Topics are made by `amends topics create` alone; Faust's own are of other layouts.
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "topic_partitions": kafka.partitions,
        "topic_replication_factor": kafka.replication_factor,
        "producer_acks": -1,
        "producer_linger": LINGER_MS / 1000,
        "producer_max_batch_size": BATCH_BYTES,
        "producer_max_request_size": RECORD_BYTES_MAX,
        # Faust's default of 20 minutes is also how long a record may be on its way.
        "producer_request_timeout": settings.emission_deadline_ms / 1000,
        # Its web server has no password, and would show the state to everybody. `faust worker` starts it unless told
        # --without-web: then on loopback, and without tables.
        "web_enabled": False,
        "web_bind": "127.0.0.1",
        "web_host": "127.0.0.1",
        "web_tables_enabled": False,
        "worker_redirect_stdouts": False,
    }
