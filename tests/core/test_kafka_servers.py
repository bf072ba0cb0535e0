"""Which Kafka a part takes where nobody named one: an image started without settings says what to set, at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from amends.kafka.errors import SettingsWrong
from amends.kafka.servers import kafka_of_settings

DEFAULT = ("127.0.0.1", 9092)
WORDS = "AMENDS_KAFKA__BOOTSTRAP_SERVERS is not set, and no broker is at its default, 127.0.0.1:9092"


def someone_listens() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(DEFAULT) == 0


needs_nobody_there = pytest.mark.skipif(someone_listens(), reason="somebody listens at 127.0.0.1:9092")


@needs_nobody_there
def test_servers_that_nobody_named_and_nobody_runs_are_an_error_that_names_the_setting() -> None:
    with pytest.raises(SettingsWrong) as raised:
        kafka_of_settings(env={})
    assert WORDS in str(raised.value)


def test_servers_that_somebody_runs_at_the_default_are_taken() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(DEFAULT)
        except OSError:
            pass  # somebody else listens there, which serves as well
        else:
            server.listen()
        assert kafka_of_settings(env={}).bootstrap_servers == "127.0.0.1:9092"


def test_servers_that_somebody_named_are_not_asked_here(tmp_path: Path) -> None:
    named = kafka_of_settings(env={"AMENDS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9092"})
    assert named.bootstrap_servers == "127.0.0.1:9092"
    assert kafka_of_settings("127.0.0.1:1", env={}).bootstrap_servers == "127.0.0.1:1"
    file = tmp_path / "amends.toml"
    file.write_text('[kafka]\nbootstrap_servers = "127.0.0.1:2"\n', "utf-8")
    assert kafka_of_settings(env={"AMENDS_CONFIG_FILE": str(file)}).bootstrap_servers == "127.0.0.1:2"


@needs_nobody_there
@pytest.mark.parametrize("command", [["processor"], ["compensator", "shop"], ["topics", "create"]])
def test_each_part_says_so_before_it_waits_for_anything(command: list[str], tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")}
    run = subprocess.run(
        [sys.executable, "-m", "amends.console.main", *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (run.returncode, WORDS in run.stderr) == (2, True), run.stderr
