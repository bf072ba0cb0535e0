"""A Docker for the length of a run: the one that answers, or one started here and stopped again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.told_to_end import started

from amends.local.children import make_folder, remove_folder

START_DEADLINE_S = 60
PACKAGES = ("docker.io", "docker-compose", "debootstrap", "iptables")
BRIDGE = Path("/sys/class/net/docker0")


class DockerMissing(Exception):  # noqa: N818 - what is so
    """There is no Docker, and none can be started. The text says what to install."""


@dataclass(frozen=True, slots=True)
class Docker:
    """A Docker that answers. `compose` is the command of whichever compose is there."""

    program: str
    compose: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables, "DOCKER_BUILDKIT": "1"}

    def run(self, *arguments: str, check: bool = True, timeout_s: float = 900) -> subprocess.CompletedProcess[str]:
        """Run `docker ARGUMENTS…`. Raises RuntimeError with its last words if it fails and `check` is set."""
        return ran([self.program, *arguments], self.environment, check=check, timeout_s=timeout_s)

    def has_image(self, name: str) -> bool:
        return self.run("image", "inspect", name, check=False).returncode == 0

    def inspect(self, *names: str) -> list[dict[str, Any]]:
        """Return what is known of each container."""
        found: list[dict[str, Any]] = json.loads(self.run("inspect", *names).stdout)
        return found


def ran(
    command: Sequence[str], environment: Mapping[str, str], *, check: bool = True, timeout_s: float = 900
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises RuntimeError with its last words if it fails and `check` is set."""
    with started(command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        said, complained = process.communicate(timeout=timeout_s)
    done = subprocess.CompletedProcess(list(command), process.returncode, said, complained)
    if check and done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n" + "\n".join(lines[-30:]))
    return done


@contextlib.contextmanager
def docker() -> Iterator[Docker]:
    """Have a Docker for the length of a block. Raises DockerMissing."""
    if _answers({}):
        yield _found({})
        return
    _install()
    folder = make_folder("docker")
    socket = folder / "docker.sock"
    had_bridge = BRIDGE.exists()
    process = _started(folder, socket)
    try:
        variables = {"DOCKER_HOST": f"unix://{socket}"}
        end = time.monotonic() + START_DEADLINE_S
        while not _answers(variables):
            if process.poll() is not None or time.monotonic() > end:
                last = "\n".join((folder / "log").read_text("utf-8").splitlines()[-8:])
                raise DockerMissing(f"dockerd did not start:\n{last}")
            time.sleep(0.2)
        yield _found(variables)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if not had_bridge and BRIDGE.exists():
            subprocess.run(["ip", "link", "delete", BRIDGE.name], check=False)
        remove_folder(folder)


def _started(folder: Path, socket: Path) -> subprocess.Popen[bytes]:
    program = shutil.which("dockerd")
    if program is None or os.geteuid() != 0:
        raise DockerMissing("no Docker answers, and one can be started only by root where `dockerd` is (docker.io)")
    # What it keeps, images and what was built of them, makes the next run quick.
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "amends" / "docker"
    kept.mkdir(parents=True, exist_ok=True)
    places = ["--data-root", str(kept), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid")]
    with (folder / "log").open("wb") as log:
        # A session of its own: what ends us from a terminal must leave it there, to take down what runs in it.
        command = [program, *places, "--host", f"unix://{socket}"]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _install() -> None:
    """Install Debian's Docker where there is none and that can be done, as CI does with what it lacks."""
    there = shutil.which("dockerd") and (shutil.which("docker-compose") or _plugin({}))
    if there or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    sys.stdout.write(f"installing {', '.join(PACKAGES)}\n")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    ran(["apt-get", "update", "-qq"], environment)
    ran(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], environment)


def _found(variables: Mapping[str, str]) -> Docker:
    program = next((path for path in _programs() if _builds_with_secrets(path)), None)
    if program is None:
        raise DockerMissing("no `docker` here can build with secrets: install the plugin buildx, or Debian's docker.io")
    if _plugin(variables):
        return Docker(program, ("docker", "compose"), variables)
    if shutil.which("docker-compose") is None:
        raise DockerMissing("there is neither `docker compose` nor `docker-compose`")
    return Docker(program, ("docker-compose",), variables)


def _programs() -> list[str]:
    places = [Path(folder) / "docker" for folder in os.environ.get("PATH", "").split(os.pathsep)]
    return [str(place) for place in places if os.access(place, os.X_OK)]


def _builds_with_secrets(program: str) -> bool:
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    return "--secret" in ran([program, "build", "--help"], environment, check=False).stdout


def _plugin(variables: Mapping[str, str]) -> bool:
    return (
        bool(shutil.which("docker"))
        and ran(["docker", "compose", "version"], {**os.environ, **variables}, check=False).returncode == 0
    )


def _answers(variables: Mapping[str, str]) -> bool:
    environment = {**os.environ, **variables}
    return any(ran([path, "info"], environment, check=False).returncode == 0 for path in _programs()[:1])
