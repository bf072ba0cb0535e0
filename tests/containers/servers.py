"""Servers for tests in containers, by testcontainers, where a Docker answers and has, or can fetch, their images.

Where it has not, nothing fails: the fixtures take the next choice. To look costs a second at most where no Docker is.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from tests.containers.remover import Remover

from amends.local.children import free_port
from amends.local.errors import ServerUnavailable
from amends.local.jars import server_properties
from amends.local.kafka_server import KafkaServer
from amends.local.redis_server import DURABLE, RedisServer
from amends.local.wire import kafka_answers, redis_answers, wait_for

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"
REAPER_DISABLED = "TESTCONTAINERS_RYUK_DISABLED"
ANSWERS_WITHIN_S = 1
FIRST_BYTES_WITHIN_S = 20
START_DEADLINE_MS = 120_000
CONTROLLER_PORT = 9093
REDIS_PORT = 6379

remover = Remover()
"""Of this process: a run that is told to end, or killed, leaves no container."""


def image_of(service: str) -> str:
    """Return the image of a service in docker-compose.yml: tests run what it names."""
    return str(yaml.safe_load(COMPOSE.read_text("utf-8"))["services"][service]["image"])


@functools.cache
def why_no_container(service: str) -> str | None:
    """Return why there can be no container of a service of docker-compose.yml here, or None."""
    if not _has_socket():
        return "no Docker runs here"
    try:
        import docker
        import testcontainers  # noqa: F401 - it is what starts them
    except ModuleNotFoundError as missing:
        return f"{missing.name} is not installed"
    try:
        client = docker.from_env(timeout=ANSWERS_WITHIN_S)
    except docker.errors.DockerException as silent:
        return f"no Docker answers: {silent}"
    try:
        client.api.timeout = FIRST_BYTES_WITHIN_S
        _without_a_reaper_that_is_not_there(client)
        return _fetched(client, image_of(service))
    finally:
        client.close()


def _has_socket() -> bool:
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    return not host.startswith("unix://") or Path(host.removeprefix("unix://")).exists()


def _fetched(client: Any, image: str) -> str | None:
    import docker
    import requests

    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        try:
            client.images.pull(image)
        except (docker.errors.DockerException, requests.RequestException) as failed:
            return f"Docker can't fetch {image}: {failed}"
    return None


def _without_a_reaper_that_is_not_there(client: Any) -> None:
    """Have testcontainers do without its reaper where that can't be had: what fixtures start they stop themselves."""
    import docker
    from testcontainers.core.config import testcontainers_config

    try:
        client.images.get(testcontainers_config.ryuk_image)
    except docker.errors.ImageNotFound:
        os.environ.setdefault(REAPER_DISABLED, "true")


class _Container:
    """One container with one port, the same on this machine's loopback. Its data stays until it is stopped."""

    def __init__(self, image: str, *, port: int, inner_port: int, env: Mapping[str, str], command: list[str]) -> None:
        from testcontainers.core.container import DockerContainer

        self.port = port
        ports = {f"{inner_port}/tcp": ("127.0.0.1", port)}
        self._container = DockerContainer(image, env=dict(env), command=command or None, ports=None)  # type: ignore[arg-type]
        self._container.ports = ports  # type: ignore[assignment]
        self._started = False

    @property
    def _id(self) -> str:
        return str(self._container.get_wrapped_container().id)

    @property
    def pid(self) -> int:
        """Return the process id of its process 1, as this machine counts."""
        found = self._container.get_wrapped_container()
        found.reload()
        return int(found.attrs["State"]["Pid"])

    def start(self) -> None:
        if self._started:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._started = True
            remover.keep_in_mind(self._id)

    def alive(self) -> bool:
        found = self._container.get_wrapped_container()
        found.reload()
        return str(found.status) in {"created", "running", "restarting"}

    def kill(self) -> None:
        self._container.get_wrapped_container().kill("SIGKILL")

    def end(self) -> None:
        self._container.get_wrapped_container().stop(timeout=30)

    def remove(self) -> None:
        named = self._id if self._started else None
        self._container.stop()
        if named is not None:
            remover.forget(named)

    def last_words(self) -> str:
        said: bytes = self._container.get_wrapped_container().logs(tail=8)
        return said.decode(errors="replace")


class _Boxed:
    """A server in a container: what `KafkaServer` and `RedisServer` promise alike."""

    kind: str
    _box: _Container
    _answers: Callable[[str, int], bool]

    @property
    def pid(self) -> int:
        return self._box.pid

    def kill(self) -> None:
        self._box.kill()

    def restart(self) -> None:
        self._box.end()
        self.start()

    def stop(self) -> None:
        self._box.remove()

    def start(self) -> None:
        """Start it and block until it answers. Raises ServerUnavailable."""
        self._box.start()
        if not wait_for(
            lambda: self._answers("127.0.0.1", self._box.port),
            alive=self._box.alive, deadline_ms=START_DEADLINE_MS, every_ms=100,
        ):  # fmt: skip
            raise ServerUnavailable(f"{self.kind} did not start on port {self._box.port}:\n{self._box.last_words()}")


Boxed = TypeVar("Boxed", bound=_Boxed)


class ContainerKafka(_Boxed, KafkaServer):
    """Apache Kafka in a container."""

    _answers = staticmethod(kafka_answers)

    def __init__(self, image: str) -> None:
        port = free_port()
        super().__init__(f"127.0.0.1:{port}", f"apache-kafka {_tag(image)} in a container")
        env = {**_as_variables(port), "KAFKA_HEAP_OPTS": "-Xmx512m -Xms128m"}
        self._box = _Container(image, port=port, inner_port=port, env=env, command=[])


class ContainerRedis(_Boxed, RedisServer):
    """Redis in a container."""

    _answers = staticmethod(redis_answers)

    def __init__(self, image: str) -> None:
        port = free_port()
        super().__init__(f"redis://127.0.0.1:{port}/0", f"redis {_tag(image)} in a container")
        # It is this machine's loopback that the port is open on; from inside all callers come from elsewhere.
        command = ["redis-server", "--protected-mode", "no", *DURABLE]
        self._box = _Container(image, port=port, inner_port=REDIS_PORT, env={}, command=command)


def _tag(image: str) -> str:
    return image.rpartition(":")[2]


def _as_variables(port: int) -> dict[str, str]:
    """Return the settings of a broker without a container, as the image takes them."""
    text = server_properties(broker_port=port, controller_port=CONTROLLER_PORT, data=Path("/var/lib/kafka/data"))
    settings = dict(line.split("=", 1) for line in text.splitlines())
    # Known at this machine's loopback, and listening where that leads to.
    settings["listeners"] = f"PLAINTEXT://:{port},CONTROLLER://127.0.0.1:{CONTROLLER_PORT}"
    return {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in settings.items()}


def start_kafka_container() -> KafkaServer:
    """Return a started Apache Kafka. Raises ServerUnavailable."""
    return _started(ContainerKafka(image_of("kafka")))


def start_redis_container() -> RedisServer:
    """Return a started Redis. Raises ServerUnavailable."""
    return _started(ContainerRedis(image_of("redis")))


def _started(server: Boxed) -> Boxed:
    try:
        server.start()
    except BaseException:
        server.stop()
        raise
    return server
