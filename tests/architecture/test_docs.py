"""What the documents say is so: code compiles and runs, commands and options exist, links and modules are there."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.architecture import state_tables
from tests.architecture.parts import PARTS, ROOT, portion

from amends.console import discovery
from amends.schemas.decisions import ACKNOWLEDGED, DECISIONS, decisions_for, word_of

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(*infos: str) -> list[Any]:
    """Return fenced blocks whose info string is one of `infos`, each as a test parameter named by file and line."""
    cases: list[Any] = []
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        for found in FENCE.finditer(text):
            if found["info"].strip() in infos:
                line = text.count("\n", 0, found.start()) + 2
                cases.append(pytest.param(found["text"], id=f"{path.relative_to(ROOT)}:{line}"))
    return cases


@pytest.mark.parametrize("text", blocks("python", "python run"))
def test_code_in_the_documents_compiles_and_what_it_imports_of_amends_is_there(text: str) -> None:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("amends"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


@pytest.mark.parametrize("text", blocks("python run"))
def test_code_in_the_documents_that_says_it_runs_does(text: str, tmp_path: Path) -> None:
    program = tmp_path / "document.py"
    program.write_text(text, "utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")}
    command = [sys.executable, "-W", "error", str(program)]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr


def told_commands() -> list[Any]:
    cases: list[Any] = []
    for block in blocks("console"):
        for line in str(block.values[0]).splitlines():
            if line.startswith("$ amends "):
                words = shlex.split(line[2:], comments=True)[1:]
                cases.append(pytest.param(words, id=f"{block.id} {' '.join(words)}"))
    return cases


@pytest.mark.parametrize("words", told_commands())
def test_commands_in_the_documents_exist_with_their_options(words: list[str]) -> None:
    known = discovery.commands()
    name = words.pop(0)
    assert name in known, f"there is no command {name}"
    command = discovery.loaded(name, known[name])
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not getattr(command, "commands", {}) or not words, f"{name} has no {words}"
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in options, f"amends {name} has no option {word}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = FENCE.sub("", path.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_modules_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for part, module in re.findall(rf"`({'|'.join(PARTS)})/(\w+)`", text):
        assert (portion(part) / f"{module}.py").is_file(), f"{part}/{module}"
    for path in re.findall(r"`(\w+/\w+\.py)`", text):
        assert (ROOT / "tests" / path).is_file(), path
    for line in text.splitlines():
        row = re.match(rf"\| `({'|'.join(PARTS)})` \|[^|]*\|(.*)", line)
        for module in re.findall(r"`(\w+)`", row[2]) if row else ():
            assert (portion(row[1]) / f"{module}.py").is_file() if row else True, f"{line}: {module}"
    fold = text.split("## The fold")[1].split("## ")[0]
    for line in fold.splitlines():
        for module in re.findall(r"`(\w+)`", line.rpartition(" | ")[2]) if line.startswith("| ") else ():
            assert (portion("processors") / f"{module}.py").is_file(), f"{line}: {module}"


def test_every_promise_says_where_it_is_kept_what_shows_it_and_what_is_impossible() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    promises = dict(re.findall(r"^### (\d) .+?\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(promises) == [str(number) for number in range(1, 9)]
    for number, kept in promises.items():
        assert re.search(rf"`({'|'.join(PARTS)})/\w+`", kept), number
        assert "Shown by `" in kept, number
        assert number == "8" or "**Impossible**" in kept or "**Not promised**" in kept, number


def test_every_case_from_the_field_is_shown_by_tests_that_exist() -> None:
    text = (ROOT / "docs" / "cases.md").read_text("utf-8")
    rows = re.findall(r"^\| C(\d+) \| (.+?) \| (.+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 43))
    for number, _, shown in rows:
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", shown)
        assert named, f"C{number} is shown by nothing"
        assert shown.count("`") == 2 * len(named), f"C{number}: {shown}"
        for path, name in named:
            tree = ast.parse((ROOT / "tests" / path).read_text("utf-8"))
            found = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert name in found, f"C{number}: {path} has no {name}"


def test_the_state_tables_are_those_of_the_code() -> None:
    stale = "write it anew: .venv/bin/python -m tests.architecture.state_tables"
    assert state_tables.PAGE.read_text("utf-8") == state_tables.page(), stale


def test_the_guide_says_which_decisions_each_kind_of_incident_takes() -> None:
    text = (ROOT / "docs" / "running-on-your-kafka.md").read_text("utf-8").split("## Deciding an incident")[1]
    told: dict[str, set[str]] = {}
    for decisions, kinds in re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \|[^|]+\| (.+) \|$", text, re.MULTILINE):
        same = told["mark-undone"] if kinds == "as `mark-undone`" else set(re.findall(r"`(\w+)`", kinds))
        for decision in re.findall(r"`([\w-]+)`", decisions):
            told[decision] = told.get(decision, set()) | same
    takes = {kind: {word_of(decision) for decision in decisions_for(kind)} for kind in (*DECISIONS, *ACKNOWLEDGED)}
    assert {kind: {word for word, kinds in told.items() if kind in kinds} for kind in takes} == takes


def test_every_dependency_has_a_decision() -> None:
    pages = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs" / "decisions").glob("0*.md")).lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[\[;<>=! ~]", item)[0] for group in groups for item in group} - {"amends"}
    assert {name for name in names if name.lower() not in pages} == set()


def test_decisions_are_numbered_once_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text("utf-8")
    pages = sorted(path.name for path in folder.glob("0*.md"))
    assert [name for name in pages if f"({name})" not in listed] == []
    numbers = [name.split("-")[0] for name in pages]
    assert len(numbers) == len(set(numbers))


def test_the_glossary_has_one_line_per_word_in_order() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    plain = [word.lower().replace("_", " ") for word in words]
    assert plain == sorted(plain)
    assert len(set(plain)) == len(plain) > 40
