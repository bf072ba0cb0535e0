"""Where the servers of tests come from: containers, where a Docker answers and has the images; else the next choice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.architecture.parts import ROOT
from tests.containers.servers import image_of, why_no_container

look = why_no_container.__wrapped__  # without what was found before


REMOVED: list[str] = []
"""What was to be removed."""


class DockerWithoutRegistry(BaseHTTPRequestHandler):
    """As much of a Docker's API as is asked: one that has no image and reaches no registry."""

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self._answer(200, {"ApiVersion": "1.41", "Version": "20.10.24"})
        else:
            self._answer(404, {"message": "No such image"})

    def do_POST(self) -> None:
        self._answer(500, {"message": "dial tcp: lookup of the registry: no such host"})

    def do_DELETE(self) -> None:
        REMOVED.append(self.path)
        self._answer(204, None)

    def _answer(self, status: int, body: object) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def without_registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), DockerWithoutRegistry)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    yield f"tcp://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_where_no_docker_runs_there_is_no_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    assert look("kafka") == "no Docker runs here"


def test_a_docker_that_does_not_answer_is_waited_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as silent:
        silent.bind(f"{tmp_path}/docker.sock")
        silent.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        assert str(look("redis")).startswith("no Docker answers: ")


def test_a_docker_that_neither_has_nor_gets_an_image_is_a_reason_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, without_registry: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", without_registry)
    monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
    reason = look("kafka")
    assert reason is not None
    assert reason.startswith(f"Docker can't fetch {image_of('kafka')}: ")


STARTS_TWO_AND_FORGETS_ONE = """
import sys
from tests.containers.remover import Remover
remover = Remover()
remover.keep_in_mind("one")
remover.keep_in_mind("two")
remover.forget("one")
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_containers_of_a_run_that_ends_by_a_signal_are_removed(without_registry: str, ending: signal.Signals) -> None:
    REMOVED.clear()
    environment = {**os.environ, "DOCKER_HOST": without_registry, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_TWO_AND_FORGETS_ONE],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        assert run.stdout.readline() == "started\n"
        run.send_signal(ending)
    deadline = time.monotonic() + 30
    while not REMOVED:
        assert time.monotonic() < deadline, "nothing was removed"
        time.sleep(0.02)
    assert len(REMOVED) == 1
    assert "/containers/two?" in REMOVED[0]
    assert "force=True" in REMOVED[0]
