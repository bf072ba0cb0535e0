"""The demo and `amends up`, as a user runs them: whole programs, judged by what they print, how they exit, what they
leave.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.processes import left_running, new_mark

from amends.local.kafka_server import KafkaServer

AMENDS = [sys.executable, "-c", "from amends.console.main import main; main()"]
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
LIMIT_S = 170
SCENES_HERE = ("killed", "remote-down", "irreversible", "clean")

Tellings = Mapping[str, "Future[Telling]"]


@dataclass(frozen=True, slots=True)
class Telling:
    """How one `amends demo` went."""

    exit_code: int
    told: str
    complaints: str
    left: list[str]

    def well(self) -> str:
        """Return what it told; it must have exited with 0 and left nothing running."""
        assert self.exit_code == 0, self.told + self.complaints
        assert "All is well" in self.told
        assert "still on the Kafka you gave" not in self.told
        assert self.left == []
        return self.told


def play(options: Sequence[str]) -> Telling:
    mark = new_mark()
    done = subprocess.run(
        [*AMENDS, "demo", *options],
        env={**os.environ, **mark},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Telling(done.returncode, done.stdout, done.stderr, left_running(mark))


@pytest.fixture(scope="module")
def tellings(kafka: KafkaServer, redis_url: str) -> Iterator[Mapping[str, Future[Telling]]]:
    """The scenes on given servers, two at a time: they wait for leases more than they compute."""
    given = ["--kafka", kafka.bootstrap_servers, "--redis", redis_url]
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(play, ["--scene", name, *given]) for name in SCENES_HERE}


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.slow
def test_an_agent_killed_in_a_call_is_undone_though_a_compensator_dies_in_the_refund(
    tellings: Tellings,
) -> None:
    told = tellings["killed"].result().well()
    assert "SIGKILL to the agent" in told
    assert "the charge is taken back, and the answer is held back" in told
    assert "SIGKILL to compensator-" in told
    assert "payments.charge is undone (verified)" in told
    assert "COMPENSATED" in told


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.slow
def test_nothing_is_undone_where_nothing_went_wrong(tellings: Tellings) -> None:
    told = tellings["clean"].result().well()
    assert "deleted the topics and groups of this run" in told
    assert "SUCCEEDED" in told
    assert "starts to undo" not in told


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.slow
def test_a_remote_that_stays_down_ends_in_a_dead_letter_and_holds_up_nothing_else(tellings: Tellings) -> None:
    told = tellings["remote-down"].result().well()
    assert "Dead letter: shipping.buy_label" in told
    assert "Incident, open" in told


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.slow
def test_what_cannot_be_undone_becomes_an_incident(tellings: Tellings) -> None:
    assert "Incident, open" in tellings["irreversible"].result().well()


@pytest.mark.slow
@pytest.mark.usefixtures("embedded_kafka", "embedded_redis_url")  # skips where there are no wheels
def test_the_demo_runs_on_the_embedded_servers_alone() -> None:
    told = play(["--embedded"]).well()
    assert "Kafka: embedded" in told
    assert "Redis: embedded" in told
    assert "SIGKILL to the agent" in told


@pytest.mark.slow
@pytest.mark.usefixtures("embedded_kafka", "embedded_redis_url")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_a_demo_that_is_ended_in_the_middle_leaves_nothing_running(name: str) -> None:
    mark = new_mark()
    demo = subprocess.Popen(
        [*AMENDS, "demo", "--embedded"],
        env={**os.environ, **mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    with demo.stdout as lines:
        assert any("intends payments.charge" in line for line in lines)
        demo.send_signal(signal.Signals[name])
        assert demo.wait(60) != 0
    assert left_running(mark) == []


def test_a_scene_that_is_not_there_is_refused_with_those_that_are() -> None:
    done = subprocess.run(
        [*AMENDS, "demo", "--scene", "no-such"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "killed" in done.stderr


def test_a_scene_and_a_seed_together_are_refused() -> None:
    command = [*AMENDS, "demo", "--scene", "clean", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "one of --scene and --seed" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("embedded_kafka", "embedded_redis_url")
def test_up_runs_a_users_own_tools_until_it_is_told_to_end(tmp_path: Path) -> None:
    mark = new_mark()
    shutil.copy(QUICKSTART / "travel.py", tmp_path)
    database = tmp_path / "bookings.sqlite"  # a path relative to where both commands are given, as the README has it
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AMENDS_", "BOOKINGS"))}
    environment = {**kept, **mark}
    up = subprocess.Popen(
        [*AMENDS, "up", "--embedded", "--module", "travel", "--lane", "bookings"],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    watchdog = threading.Timer(LIMIT_S, up.kill)
    watchdog.start()
    try:
        exports = read_exports(up)
        agent = subprocess.run(
            [sys.executable, "travel.py", "fail"],
            env={**environment, **exports}, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "RuntimeError: the guest changed her mind" in agent.stderr, agent.stderr
        assert wait_for_states(database) == [("AM 42", "cancelled"), ("Harbour Inn", "cancelled")]
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0
    finally:
        watchdog.cancel()
        up.kill()
        up.wait()
        assert up.stdout is not None
        up.stdout.close()
    assert left_running(mark) == []


def read_exports(up: subprocess.Popen[str]) -> dict[str, str]:
    """Read what `amends up` prints, up to the last of its `export` lines."""
    exports: dict[str, str] = {}
    assert up.stdout is not None
    for line in up.stdout:
        if line.strip().startswith("export "):
            name, _, value = line.strip().removeprefix("export ").partition("=")
            exports[name] = value
            if name == "AMENDS_COMPENSATOR__REDIS_URL":
                break
    return exports


def wait_for_states(database: Path) -> list[tuple[str, str]]:
    """Return what stands in the example's database once nothing is booked any more, or at the deadline."""
    waited = threading.Event()
    rows: list[tuple[str, str]] = []
    for _ in range(300):
        connection = sqlite3.connect(database)
        rows = [
            (str(what), str(state))
            for what, state in connection.execute("SELECT what, state FROM bookings ORDER BY what")
        ]
        connection.close()
        if rows and all(state == "cancelled" for _, state in rows):
            return rows
        waited.wait(0.1)
    return rows
