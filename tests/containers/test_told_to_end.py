"""`python -m tests.containers` told to end while containers are being brought up; programs stand for Docker's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.architecture.parts import ROOT
from tests.processes import left_running, new_mark

DOCKER = """#!/bin/sh
case "$*" in
  "compose version") exit 1;;  # then it is docker-compose
  *--format*) echo 1;;
  "build --help") echo --secret;;
esac
echo "$*" >> "$DID"
case "$*" in *" up "*) exec sleep 600;; esac
"""
WITHIN_S = 60


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_was_started_is_taken_down_when_it_is_told_to_end(tmp_path: Path, ending: signal.Signals) -> None:
    did, mark = tmp_path / "did", new_mark()
    did.touch()
    for name in ("docker", "docker-compose"):
        (tmp_path / name).write_text(DOCKER, "utf-8")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, **mark, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "DID": str(did)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.containers"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as run:
        deadline = time.monotonic() + WITHIN_S
        while " up " not in did.read_text("utf-8"):
            assert run.poll() is None, did.read_text("utf-8")
            assert time.monotonic() < deadline, did.read_text("utf-8")
            time.sleep(0.02)
        run.send_signal(ending)
        said, _ = run.communicate(timeout=WITHIN_S)
    assert run.returncode == 130
    assert "told to end: all is taken down" in said
    _, *then = did.read_text("utf-8").partition(" up ")[2].splitlines()
    assert "down --volumes --remove-orphans" in then[0]
    assert [line for line in then if line.startswith("image rm --force")]
    assert not left_running(mark)
