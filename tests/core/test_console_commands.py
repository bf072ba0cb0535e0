"""The command line finds the parts' commands, and one that is missing or broken takes none of the others away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from amends.console import discovery
from amends.console.application import run
from amends.console.exits import FAILED, OK, USAGE
from amends.console.output import moment


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that brings four commands, of which one works."""
    (tmp_path / "others.dist-info").mkdir()
    (tmp_path / "others.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1\n")
    (tmp_path / "others.dist-info" / "entry_points.txt").write_text(
        "[amends.commands]\ngreet = others_greet:app\nlacking = others_lacking:app\nbroken = others_broken:app\n"
        "gone = amends.gone:app\n"
    )
    (tmp_path / "others_greet.py").write_text(
        "import typer\napp = typer.Typer(help='Says hello.')\n@app.command()\ndef greet(name: str) -> None:\n"
        "    print('hello', name)\n"
    )
    (tmp_path / "others_lacking.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "others_broken.py").write_text("raise RuntimeError('oh no')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("others_greet", "others_lacking", "others_broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("parts")
def test_commands_of_other_parts_are_found_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["greet", "ann"]) == OK
    assert capsys.readouterr().out == "hello ann\n"


@pytest.mark.usefixtures("parts")
def test_help_lists_every_command_whatever_state_it_is_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == OK
    out = capsys.readouterr().out
    for name in (*discovery.OWN, "greet", "lacking", "broken", "gone"):
        assert name in out


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("lacking", "pip install 'amends[all]'"),
        ("broken", "oh no"),
        ("gone", "no module amends.gone"),
    ],
)
def test_a_command_that_cannot_be_loaded_says_why(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--whatever", "x"]) == FAILED
    assert words in capsys.readouterr().err


def test_an_unknown_command_is_a_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nope"]) == USAGE
    assert "nope" in capsys.readouterr().err


def test_the_console_imports_no_part_by_name() -> None:
    folder = Path(discovery.__file__).parent
    for path in folder.glob("*.py"):
        text = path.read_text("utf-8")
        for part in ("producers", "processors", "compensators", "local", "testing"):
            assert f"amends.{part}" not in text, path.name


@pytest.mark.parametrize("at_ms", [10**15, 2**63 - 1])
def test_a_time_beyond_the_calendar_is_shown_as_it_is(at_ms: int) -> None:
    assert moment(at_ms) == f"{at_ms} ms"
