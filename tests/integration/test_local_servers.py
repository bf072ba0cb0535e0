"""Servers on this machine: they start, come back on the same port and data, and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from amends.local.children import Child, make_folder
from amends.local.errors import ServerUnavailable
from amends.local.kafka_server import KafkaServer, start_kafka, why_no_apache_kafka
from amends.local.redis_server import RedisServer, start_redis
from amends.local.servers import servers


def make_topic(server: KafkaServer, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)


def write(server: KafkaServer, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "acks": "all"})
    producer.produce(topic, value)
    assert producer.flush(20) == 0


def read_first(server: KafkaServer, topic: str) -> bytes | None:
    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None, message.error()
        return message.value()
    finally:
        consumer.close()


def is_gone(pid: int, deadline_s: float = 10) -> bool:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":  # dead; its adoptive parent has not looked yet
            return True
        time.sleep(0.02)
    return False


@pytest.mark.kafka
def test_apache_kafka_keeps_acknowledged_records_over_a_kill_and_a_restart(own_kafka: KafkaServer) -> None:
    address = own_kafka.bootstrap_servers
    make_topic(own_kafka, "kept")
    write(own_kafka, "kept", b"acknowledged")
    own_kafka.kill()
    own_kafka.restart()
    assert own_kafka.bootstrap_servers == address
    assert own_kafka.kind.startswith("apache-kafka 4.")
    assert read_first(own_kafka, "kept") == b"acknowledged"


def test_the_embedded_broker_takes_and_gives_records(embedded_kafka: KafkaServer, topic_prefix: str) -> None:
    make_topic(embedded_kafka, topic_prefix)
    write(embedded_kafka, topic_prefix, b"here")
    assert read_first(embedded_kafka, topic_prefix) == b"here"


@pytest.mark.redis
def test_a_redis_server_appends_and_never_evicts_and_keeps_its_data_over_a_restart(own_redis: RedisServer) -> None:
    with redis.Redis.from_url(own_redis.url, decode_responses=True) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        client.set("kept", "yes")
    own_redis.restart()
    with redis.Redis.from_url(own_redis.url, decode_responses=True) as client:
        assert client.get("kept") == "yes"


def test_the_embedded_redis_is_as_strict_as_the_real_one(embedded_redis_url: str) -> None:
    with redis.Redis.from_url(embedded_redis_url, decode_responses=True) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}


@pytest.mark.usefixtures("embedded_kafka", "embedded_redis_url")  # skips where there are no wheels
def test_embedded_servers_stop_with_the_block_and_leave_no_process_and_no_folder() -> None:
    with servers(embedded=True) as both:
        assert (both.kafka.kind, both.redis.kind) == ("embedded", "embedded")
        pids = [both.kafka.pid, both.redis.pid]
        folders = [both.kafka.folder, both.redis.folder]
        assert all(folder is not None and folder.exists() for folder in folders)
    assert all(is_gone(pid) for pid in pids)
    assert not any(folder is not None and folder.exists() for folder in folders)


def test_given_servers_are_taken_as_they_are_and_never_stopped() -> None:
    with servers(kafka="127.0.0.1:1", redis="redis://127.0.0.1:2/0") as both:
        assert both.kafka.bootstrap_servers == "127.0.0.1:1"
        assert both.redis.url == "redis://127.0.0.1:2/0"
        with pytest.raises(ServerUnavailable, match="was given"):
            both.kafka.restart()
        with pytest.raises(ServerUnavailable, match="no process of ours"):
            both.redis.kill()


def test_without_java_and_without_the_wheel_the_error_says_to_give_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("amends.local.kafka_server.embedded_broker_binary", lambda: None)
    monkeypatch.setattr("amends.local.redis_server.embedded_redis_binary", lambda: None)
    with pytest.raises(ServerUnavailable, match="--kafka HOST:PORT"):
        start_kafka()
    with pytest.raises(ServerUnavailable, match="install Java 17 and Maven"):
        start_kafka(preference="apache")
    with pytest.raises(ServerUnavailable, match="--redis redis://HOST:PORT/0"):
        start_redis()


@pytest.mark.kafka
@pytest.mark.slow
def test_two_processes_that_fetch_the_jars_at_once_both_get_them_whole(tmp_path: Path) -> None:
    if (reason := why_no_apache_kafka()) is not None:
        pytest.skip(f"no Apache Kafka: {reason}")
    program = (
        "from amends.local import jars; found = jars.resolve(); print(found.version, len(list(found.jars.iterdir())))"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=200)[0] for process in both]
    assert said[0] == said[1]
    assert re.fullmatch(r"4\.\d+\.\d+ \d\d\n", said[0])
    assert sorted(entry.suffix for entry in (tmp_path / "amends").iterdir()) == [
        "",
        ".lock",
    ]  # nothing half done is left


PARENT = """
import sys, time
from amends.local.children import Child, make_folder
folder = make_folder("orphan")
child = Child([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, folder, flush=True)
time.sleep(60)
"""


def test_children_and_folders_of_a_killed_parent_are_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        assert Path(folder).is_dir()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert is_gone(int(pid))
    end = time.monotonic() + 10
    while Path(folder).exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_frozen_child_is_stopped_too() -> None:
    folder = make_folder("frozen")
    child = Child([sys.executable, "-c", "import time; time.sleep(60)"], folder=folder)
    os.kill(child.pid, signal.SIGSTOP)
    assert child.stop() == -signal.SIGTERM
    folder.rmdir()
