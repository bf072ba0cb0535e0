"""Another version's code, taken out of the history of this repository, and its parts as processes beside today's.

What is shared is the interpreter and the libraries. Everything else is the version's own: its source roots stand first
on the path, with entry points made of its own `pyproject.toml`, and the hooks of today's editable install are left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path

from amends.local.parts import Part, Parts

REPOSITORY = Path(__file__).resolve().parents[2]
RELEASES = {"0.1.0": "fc33052995a430928684e51c6aa2ac4033038331"}
"""Where a release stands in the history; a tag `v0.1.0` goes first, where there is one."""


class NoSuchVersion(Exception):  # noqa: N818 - what it is
    """The history at hand does not reach back to it, or there is none."""


def commit_of(version: str) -> str:
    """Return the commit of a release, or of whatever else git knows by that name.

    Raises:
        NoSuchVersion: git, or the commit, is not there: an sdist, a shallow clone.
    """
    for name in (f"v{version}", RELEASES.get(version, version)):
        asked = ["git", "-C", str(REPOSITORY), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
        try:
            found = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30)
        except OSError as error:
            raise NoSuchVersion(f"no git: {error}") from error
        if found.returncode == 0:
            return found.stdout.strip()
    raise NoSuchVersion(f"the commit of {version} is not in this clone (shallow, or no clone)")


def take_out(version: str, folder: Path) -> Path:
    """Put the code of a version into a new folder inside `folder`, and return that. Raises NoSuchVersion."""
    commit = commit_of(version)
    place = folder / f"amends-{version}"
    archive = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", "--format=tar", commit], capture_output=True, check=True, timeout=120
    )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(place, filter="data")
    _write_distribution(place)
    return place


def _project(place: Path) -> dict[str, object]:
    project: dict[str, object] = tomllib.loads((place / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def _write_distribution(place: Path) -> None:
    """Write what an installer would: name, version and entry points."""
    project = _project(place)
    groups = project.get("entry-points")
    assert isinstance(groups, Mapping)
    folder = place / f"amends-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: amends\nVersion: {project['version']}\n")
    lines = list[str]()
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def path_of(place: Path) -> str:
    """Return the PYTHONPATH on which the version in `place` stands before everything else."""
    roots = sorted(folder.parent for folder in place.glob("*/amends") if folder.is_dir())
    # Without `site` the libraries have to be named; with it, today's editable install would be found first.
    return os.pathsep.join([*map(str, roots), str(place), sysconfig.get_path("purelib")])


class PreviousParts(Parts):
    """As `Parts`, of the version in `place`."""

    def __init__(self, place: Path, environment: Mapping[str, str], folder: Path) -> None:
        super().__init__(environment, folder)
        self.environment["PYTHONPATH"] = path_of(place)

    def _start(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str],
        on_line: Callable[[str], None] | None = None,
    ) -> Part:
        interpreter, *arguments = command
        assert interpreter == sys.executable
        return super()._start(name, [interpreter, "-S", *arguments], environment, on_line)
