"""Floors of the same run: what the broker alone costs, with the same bytes and no amends."""

from __future__ import annotations

import asyncio
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from amends.kafka.options import EMBEDDED_FETCH_WAIT_MS
from amends.kafka.publisher import Publisher
from amends.kafka.settings import KafkaSettings

VALUE = b"x" * 1_200


async def confirmed_produce(settings: KafkaSettings, in_flight: int, seconds: float) -> list[int]:
    """Return how long bare confirmed writes of a fact's size take, in microseconds, `in_flight` at a time."""
    publisher = Publisher(settings)
    took_us: list[int] = []
    # The first write of a client fetches its producer id: no cost of a write.
    await publisher.publish(settings.topics.ledger_dead_letters, key=b"floor", value=VALUE)
    until = time.monotonic() + seconds

    async def worker(name: int) -> None:
        while time.monotonic() < until:
            began = time.perf_counter_ns()
            await publisher.publish(settings.topics.ledger_dead_letters, key=f"floor-{name}".encode(), value=VALUE)
            took_us.append((time.perf_counter_ns() - began) // 1_000)

    await asyncio.gather(*(worker(n) for n in range(in_flight)))
    publisher.close()
    return took_us


def hop(settings: KafkaSettings, seconds: float) -> list[int]:
    """Return how long produce -> consume -> produce takes with bare clients, in microseconds, one at a time."""
    topic = settings.topics.ledger_dead_letters
    common = {"bootstrap.servers": settings.bootstrap_servers}
    wait_ms = EMBEDDED_FETCH_WAIT_MS if settings.embedded else 100
    reading = {**common, "group.id": "bench-hop", "enable.auto.commit": False, "fetch.wait.max.ms": wait_ms}
    writing = {**common, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
    stop = threading.Event()
    arrived = threading.Event()

    def relay() -> None:
        consumer, producer = Consumer(reading), Producer(writing)
        consumer.assign([tail(consumer, topic, 0)])
        arrived.set()
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and not message.error() and message.key() == b"go":
                producer.produce(topic, key=b"back", value=VALUE, partition=1)
                producer.flush(5)
        consumer.close()

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    arrived.wait(20)
    consumer, producer = Consumer(reading), Producer(writing)
    consumer.assign([tail(consumer, topic, 1)])
    consumer.poll(0.5)
    took_us: list[int] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter_ns()
        producer.produce(topic, key=b"go", value=VALUE, partition=0)
        producer.poll(0)
        while (message := consumer.poll(1.0)) is None or message.error() or message.key() != b"back":
            pass
        took_us.append((time.perf_counter_ns() - began) // 1_000)
    stop.set()
    thread.join(5)
    consumer.close()
    return took_us


def tail(consumer: Consumer, topic: str, partition: int) -> TopicPartition:
    """Return the end of a partition; of a topic that was just made, once it has a leader."""
    for _ in range(50):
        try:
            _, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        except KafkaException:
            time.sleep(0.1)
        else:
            return TopicPartition(topic, partition, high)
    raise SystemExit(f"{topic}/{partition} has no leader")
