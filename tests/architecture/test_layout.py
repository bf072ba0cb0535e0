"""Folder X is the source root of amends.X, and nothing hides another part."""

from __future__ import annotations

import tomllib

import pytest
from tests.architecture.parts import PARTS, ROOT, portion

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.mark.parametrize("part", PARTS)
def test_no_part_hides_the_others(part: str) -> None:
    assert not (ROOT / part / "amends" / "__init__.py").exists(), "amends is a namespace: its __init__.py hides parts"
    assert {path.name for path in (ROOT / part / "amends").iterdir() if path.name != "__pycache__"} == {part}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_a_typed_package(part: str) -> None:
    assert (portion(part) / "py.typed").is_file()
    assert (portion(part) / "__init__.py").is_file()


def test_every_part_is_built_checked_and_installed() -> None:
    tools = PROJECT["tool"]
    assert set(tools["hatch"]["build"]["dev-mode-dirs"]) == set(PARTS)
    assert set(tools["hatch"]["build"]["targets"]["wheel"]["packages"]) == {f"{part}/amends" for part in PARTS}
    assert set(tools["mypy"]["mypy_path"].split(":")) == set(PARTS)
    assert set(tools["pyright"]["extraPaths"]) == set(PARTS)
    assert set(tools["importlinter"]["root_packages"]) == {f"amends.{part}" for part in PARTS}


def test_every_source_root_is_a_part() -> None:
    roots = {path.parent.name for path in ROOT.glob("*/amends") if not path.parent.name.startswith(".")}
    assert roots == set(PARTS)


def test_no_file_names_the_host_of_a_package_registry() -> None:
    hosts = ["pypi." + "org", "pythonhosted." + "org", "repo." + "maven", "repo1." + "maven", "registry." + "npmjs"]
    suffixes = {".py", ".toml", ".txt", ".xml", ".yml", ".yaml", ".md", ".sh", ""}
    for folder in (*PARTS, "tests", "docs", "examples", "bench", ".ci"):
        for path in (*(ROOT / folder).rglob("*"), *ROOT.glob("*")):
            if path.is_file() and path.suffix in suffixes and "__pycache__" not in path.parts:
                text = path.read_text("utf-8", errors="ignore")
                assert not any(host in text for host in hosts), path


def test_every_dependency_of_ours_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text("utf-8").lower().replace("_", "-").splitlines()
    pinned = {line.split("==")[0] for line in pins if "==" in line}
    groups = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    for requirement in [item for group in groups for item in group]:
        name = requirement.lower().replace("_", "-")
        for end in "[;<>=! ~":
            name = name.split(end)[0]
        assert name == "amends" or name in pinned, f"{name} has no line in constraints.txt"
