"""The servers amends needs on one machine: a Kafka and a Redis, taken as given or started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from amends.local.errors import ServerUnavailable
from amends.local.kafka_server import KafkaServer, Preference, start_kafka
from amends.local.redis_server import RedisServer, start_redis

__all__ = ["KafkaServer", "RedisServer", "ServerUnavailable", "Servers", "servers", "start_kafka", "start_redis"]


@dataclass(frozen=True, slots=True)
class Servers:
    """One Kafka, one Redis."""

    kafka: KafkaServer
    redis: RedisServer

    def __str__(self) -> str:
        return (
            f"Kafka: {self.kafka.kind} at {self.kafka.bootstrap_servers} · Redis: {self.redis.kind} at {self.redis.url}"
        )


@contextlib.contextmanager
def servers(
    *,
    kafka: str | None = None,
    redis: str | None = None,
    embedded: bool = False,
    quick_start: bool = True,
    data_dir: Path | None = None,
) -> Iterator[Servers]:
    """Have both servers for the length of a block: given ones are used, others started and stopped with their data.

    `embedded` forces the wheels for what was not given. `data_dir` keeps Apache Kafka's data. Raises ServerUnavailable.
    """
    with contextlib.ExitStack() as stack:
        registry = start_redis(redis, preference="embedded" if embedded else "any")
        stack.callback(registry.stop)
        preference: Preference = "embedded" if embedded else "any"
        broker = start_kafka(kafka, preference=preference, data_dir=data_dir, quick_start=quick_start)
        stack.callback(broker.stop)
        yield Servers(broker, registry)
