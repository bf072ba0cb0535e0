"""Identity: every client agrees on the partition of a key, and no two things share an id."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from amends.schemas import keys

KAFKAS_OWN = {  # org.apache.kafka.common.utils.UtilsTest.testMurmur2
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "expected"), KAFKAS_OWN.items())
def test_murmur2_is_the_one_of_the_java_client(data: bytes, expected: int) -> None:
    assert keys.murmur2(data) == expected & 0xFFFFFFFF


def test_partitions_are_those_that_librdkafka_picks() -> None:
    # librdkafka's own in-process mock broker: its partitioner is asked without a server.
    placed: dict[bytes, int] = {}

    def on_done(error: Any, message: Any) -> None:
        assert error is None, error
        placed[message.key()] = message.partition()

    producer = Producer({"test.mock.num.brokers": 1, "partitioner": "murmur2_random", "log_level": 2})
    partitions = len(producer.list_topics("t", timeout=10).topics["t"].partitions)
    sent = [f"order-{n}-{'ü' * (n % 5)}".encode() for n in range(300)]
    for key in sent:
        producer.produce("t", key=key, value=b"v", on_delivery=on_done)
    assert producer.flush(20) == 0
    assert placed == {key: keys.partition_for(key, partitions) for key in sent}
    assert len(set(placed.values())) == partitions > 1


@given(st.binary(max_size=200), st.integers(1, 1000))
def test_a_partition_is_one_of_those_there_are(key: bytes, partitions: int) -> None:
    assert 0 <= keys.partition_for(key, partitions) < partitions


PARTS = st.tuples(st.text(max_size=6), st.integers(-1, 9), st.text(max_size=6), st.integers(0, 3), st.text(max_size=3))


@given(PARTS, PARTS)
def test_two_steps_share_an_id_only_if_they_are_the_same(one: Any, other: Any) -> None:
    assert (keys.step_id(*one) == keys.step_id(*other)) == (one == other)


def test_keys_of_a_call_of_its_undo_and_of_each_generation_differ() -> None:
    step = keys.step_id("order-1", 0, "call", 0)
    assert len({keys.forward_key(step), *(keys.undo_key(step, generation) for generation in range(5))}) == 6


def test_a_new_instance_of_a_workflow_has_new_steps() -> None:
    assert keys.step_id("order-1", 0, "call", 0) != keys.step_id("order-1", 17, "call", 0)


def test_ids_are_the_same_in_every_version() -> None:
    step = keys.step_id("order-4711", 12, "call-1", 0)
    assert step == "c2c716b0a9282e7aa1e64ed5333f7ace"
    assert keys.forward_key(step) == "amends-do-302bac44f78b53d4758995887b43a7b7"
    assert keys.undo_key(step, 1) == "amends-undo-c642f57b253f14eb6f6a54d7a2ee4b96"
    assert keys.incident_id("order-4711", 12, "dead", step) == "1b00f42ba7da9a9f3e2f8440f15a93e8"
