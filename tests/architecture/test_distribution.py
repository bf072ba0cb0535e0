"""What users install: wheel and sdist are built, and every entry point of the wheel runs outside the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from tests.architecture.parts import PARTS, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
COMMANDS = sorted(PROJECT["entry-points"]["amends.commands"])
OWN = [
    "acls",
    "approvals",
    "config",
    "contain",
    "dead-letters",
    "incidents",
    "ledger",
    "schemas",
    "topics",
    "workflows",
]


def run(command: list[str], folder: Path, *, status: int | None = 0) -> str:
    """Return what a command said. The tree, the developer's settings and packages are out of its sight."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AMENDS_", "PYTHON"))}
    env |= {"NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=200)
    said = done.stdout + done.stderr
    assert status is None or done.returncode == status, f"{' '.join(command)} ended with {done.returncode}:\n{said}"
    return said


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree's files as a fresh clone has them, built: sdist from the tree, wheel from the sdist."""
    clone = tmp_path_factory.mktemp("clone")
    for name in _files():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(clone)], clone)
    return out


def _files() -> list[str]:
    """Return what is under version control; in an unpacked sdist, which knows of none, what it brought."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [name for name in listed.stdout.split("\0") if name]
    hidden = {".venv", ".amends", "dist", "build", "__pycache__"}
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [str(path) for path in found if not hidden & set(path.parts)]


def environment(folder: Path, wheel: Path, extras: str) -> Path:
    """Return the bin folder of a new environment with the wheel in it."""
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    options = ["--quiet", "--no-compile", "--constraint", str(ROOT / "constraints.txt")]
    run([*pip, "install", *options, f"amends{extras} @ {wheel.as_uri()}"], folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("base"), wheel, "")


@pytest.fixture(scope="module")
def whole(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("whole"), wheel, "[all]")


def test_the_wheel_holds_every_part_its_types_and_schemas(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "amends/__init__.py" not in names
    assert {f"amends/{part}/py.typed" for part in PARTS} <= names
    schemas = {path.name for path in (ROOT / "schemas/amends/schemas/avro").glob("*.avsc")}
    assert {f"amends/schemas/avro/{name}" for name in schemas} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"amends"}, "only our namespace is installed"


def test_the_sdist_can_be_built_and_tested_by_others(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {"/".join(name.split("/")[1:]) for name in archive.getnames()}
    assert {"pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE"} <= names
    assert any(name.startswith("tests/core/golden/") for name in names)
    assert not any(name.startswith((".venv", ".amends")) for name in names)


def test_agents_import_tools_and_producers_with_base_dependencies_alone(base: Path, tmp_path: Path) -> None:
    said = run(
        [str(base / "python"), "-c", "import amends.tools, amends.producers, amends.kafka; print('in')"], tmp_path
    )
    assert said == "in\n"
    missing = "import importlib.util as u; print([n for n in ('redis', 'typer', 'rich', 'faust') if u.find_spec(n)])"
    assert run([str(base / "python"), "-c", missing], tmp_path) == "[]\n"


def test_the_command_without_its_extra_says_what_to_install(base: Path, tmp_path: Path) -> None:
    said = run([str(base / "amends"), "--help"], tmp_path, status=1)
    assert "pip install 'amends[console]'" in said
    assert "Traceback" not in said


def test_every_command_of_the_whole_installation_helps(whole: Path, tmp_path: Path) -> None:
    said = run([str(whole / "amends"), "--help"], tmp_path)
    assert "needs amends[" not in said, said
    assert "Can't be loaded" not in said, said
    for command in {*OWN, *COMMANDS}:
        assert command in said
        assert "Usage: amends" in run([str(whole / "amends"), command, "--help"], tmp_path)


def test_the_version_is_that_of_the_distribution(whole: Path, tmp_path: Path) -> None:
    assert run([str(whole / "amends"), "--version"], tmp_path).strip() == f"amends {PROJECT['version']}"


def test_dependencies_of_the_whole_installation_agree(whole: Path, tmp_path: Path) -> None:
    run([sys.executable, "-m", "pip", "--python", str(whole / "python"), "check"], tmp_path)
