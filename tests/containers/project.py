"""docker-compose.yml brought up under a name of its own, seen, hurt, and taken down without a trace."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.containers.compose_file import FILE, is_ours, runs_on, services
from tests.containers.engine import Docker, ran
from tests.containers.images import OURS
from tests.told_to_end import started

from amends.local.children import free_port, make_folder, remove_folder

HEALTHY_WITHIN_S = 420
UP_AGAIN_S = 2.0
PORTS = ("KAFKA_PORT", "PAYMENTS_PORT", "WAREHOUSE_PORT", "SHIPPING_PORT")


class Project:
    """One project of compose."""

    def __init__(self, docker: Docker, name: str, override: Path, profiles: Sequence[str] = ()) -> None:
        self.docker = docker
        self.name = name
        self.profiles = tuple(profiles)
        ports = {variable: str(free_port()) for variable in PORTS}
        self.environment = {**docker.environment, **ports, "COMPOSE_PROJECT_NAME": name}
        self._files = ("-f", str(FILE), "-f", str(override))

    def compose(self, *arguments: str, check: bool = True, timeout_s: float = 900) -> str:
        """Run `docker compose ARGUMENTS…` and return what it wrote. Raises RuntimeError."""
        done = ran(self._command(*arguments), self.environment, check=check, timeout_s=timeout_s)
        return done.stdout + done.stderr

    def up(self) -> None:
        """Start everything. Compose gives up on who is not healthy in time; on a busy machine he is later."""
        end = time.monotonic() + HEALTHY_WITHIN_S
        while True:
            try:
                self.compose("up", "-d", "--no-build", timeout_s=HEALTHY_WITHIN_S)
                return
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(UP_AGAIN_S)

    def follow(self, service: str, *arguments: str, on_line: Callable[[str], None]) -> tuple[int, str]:
        """Run a service that is started by hand to its end; return its exit code and what it wrote."""
        command = self._command("run", "--rm", "-T", service, *arguments)
        lines = []
        with started(command, self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                on_line(line.rstrip())
        return process.returncode, "".join(lines)

    def running(self) -> list[str]:
        """Return the services that are to run until they are stopped."""
        return [
            name
            for name, service in services().items()
            if runs_on(service) and set(service.get("profiles", [])) <= set(self.profiles)
        ]

    def container(self, service: str) -> str:
        """Return the id of the container of a service."""
        (found,) = self._containers(f"label=com.docker.compose.service={service}")
        return found

    def state(self, service: str) -> dict[str, Any]:
        """Return Docker's word on the container of a service, `State` of its `inspect`."""
        (found,) = self.docker.inspect(self.container(service))
        return dict(found["State"], RestartCount=found["RestartCount"])

    def unhealthy(self) -> list[str]:
        """Return what is not well, in words."""
        states = {name: self.state(name) for name in self.running()}
        return [
            f"{name} is {state['Status']}, {state['Health']['Status']}"
            for name, state in states.items()
            if state["Status"] != "running" or state["Health"]["Status"] != "healthy"
        ]

    def wait_until_healthy(self) -> None:
        """Until everything that is to run is healthy. Raises RuntimeError."""
        end = time.monotonic() + HEALTHY_WITHIN_S
        while wrong := self.unhealthy():
            if time.monotonic() > end:
                words = [self.compose("logs", "--tail=15", line.split()[0]) for line in wrong]
                raise RuntimeError("\n".join([*wrong, *words]))
            time.sleep(1)

    def kill(self, service: str) -> None:
        """SIGKILL a service's process 1, as when it crashes: Docker starts it again (`docker kill` would not)."""
        state = self.state(service)
        try:
            os.kill(int(state["Pid"]), signal.SIGKILL)
        except (PermissionError, ProcessLookupError):  # a Docker of another machine or of another user
            self.docker.run("kill", self.container(service))
            self.docker.run("start", self.container(service))

    def service_at(self, address: str) -> str:
        """Return the service whose container has an address in the project's network."""
        for found in self.docker.inspect(*self._containers()):
            if any(network["IPAddress"] == address for network in found["NetworkSettings"]["Networks"].values()):
                return str(found["Config"]["Labels"]["com.docker.compose.service"])
        raise RuntimeError(f"no service of the project is at {address}")

    def _containers(self, *filters: str) -> list[str]:
        mine = (f"label=com.docker.compose.project={self.name}", "label=com.docker.compose.oneoff=False", *filters)
        words = [word for one in mine for word in ("--filter", one)]
        return self.docker.run("ps", "--all", "--quiet", *words).stdout.split()

    def left(self) -> list[str]:
        """Return what there still is of the project."""
        mine = f"label=com.docker.compose.project={self.name}"
        kinds = {
            "container": ("ps", "-a", "-q"),
            "network": ("network", "ls", "-q"),
            "volume": ("volume", "ls", "-q"),
        }
        found = {kind: self.docker.run(*words, "--filter", mine).stdout.split() for kind, words in kinds.items()}
        return [f"{kind} {name}" for kind, names in found.items() for name in names]

    def _command(self, *arguments: str) -> list[str]:
        profiles = [word for profile in self.profiles for word in ("--profile", profile)]
        return [*self.docker.compose, *self._files, "-p", self.name, *profiles, *arguments]


@contextlib.contextmanager
def project(docker: Docker, profiles: Sequence[str] = ()) -> Iterator[Project]:
    """Have the compose file up and healthy for the length of a block, with the images of this run."""
    folder = make_folder("compose")
    override = folder / "images.yml"
    tags = {name: {"image": OURS[s["build"]["target"]]} for name, s in services().items() if is_ours(s)}
    override.write_text(yaml.safe_dump({"services": tags}), "utf-8")
    made = Project(docker, f"amends-test-{os.getpid()}", override, profiles)
    try:
        made.up()
        made.wait_until_healthy()
        yield made
    finally:
        made.compose("down", "--volumes", "--remove-orphans", check=False)
        remove_folder(folder)
