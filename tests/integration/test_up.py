"""`amends up`: what a developer starts once and leaves running."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from amends.local.parts import AMENDS
from amends.local.up import lanes_of

ROOT = Path(__file__).parents[2]
DEADLINE_S = 90


@contextmanager
def up(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], queue.Queue[str]]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")}
    command = [*AMENDS, "up", "--embedded", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    output = process.stdout

    def follow() -> None:
        for line in output:
            lines.put(line)
        lines.put("")

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        yield process, lines
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(30)
        reader.join(10)
        output.close()


def until(lines: queue.Queue[str], text: str) -> str:
    """Return all that was said up to the line that has `text`."""
    said, end = "", time.monotonic() + DEADLINE_S
    while text not in said:
        line = lines.get(timeout=max(0.1, end - time.monotonic()))
        assert line, f"it ended:\n{said}"
        said += line
    return said


def test_up_serves_the_lanes_that_the_modules_name_and_ends_cleanly() -> None:
    with up("--module", "examples.quickstart.travel") as (process, lines):
        said = until(lines, "AMENDS_COMPENSATOR__REDIS_URL")
        assert "Running: processor, compensator" in said
        assert "AMENDS_KAFKA__LANES=" + ",".join(lanes_of(["examples.quickstart.travel"])) in said
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_up_says_what_is_wrong_with_a_module_and_starts_nothing() -> None:
    command = [*AMENDS, "up", "--embedded", "--module", "no.such.module"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert ended.returncode == 2
    assert "no.such.module" in ended.stderr or "No module named 'no'" in ended.stderr


def test_up_has_its_parts_take_the_settings_that_are_not_of_servers_and_names_the_others() -> None:
    command = [*AMENDS, "up", "--embedded", "--lane", "bookings"]
    given = {"AMENDS_PROCESSOR__ENGINE": "foo", "AMENDS_KAFKA__PARTITIONS": "3"}
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **given}, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert ended.returncode == 1
    assert "Left aside, for it has servers of its own: AMENDS_KAFKA__PARTITIONS" in ended.stdout
    assert "processor ended with 2, so all of it was stopped" in ended.stderr
    kept = re.search(r"its logs: ([^)]+)\)", ended.stderr)
    assert kept is not None
    assert list(Path(kept[1]).iterdir()), "for somebody to look at"
    shutil.rmtree(kept[1])
    assert "'transactions' or 'faust'" in ended.stderr
