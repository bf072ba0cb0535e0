"""A worker finds handlers by a tool's name, in the modules it was told to import, and refuses to guess."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amends.tools import ContractError, HandlerRegistry, Role, Step, Undone, compensable, needs_step, read_only
from amends.tools.errors import NoHandler

TOOLS = """
from amends.tools import KEY, Absent, Step, Undone, compensable, irreversible

@compensable("pay.charge")
def charge(x: int, *, key: str = KEY): ...

@charge.undo(arguments={"x": "input.x"})
def refund(x: int, *, key: str = KEY): ...

@charge.probe
def find(step: Step): return Absent()

@charge.verify
def state(x: int): return Undone()

class Stock:
    @compensable("stock.take")
    def take(self, sku: str): ...

    @take.undo(arguments={"sku": "input.sku"}, lane="warehouse")
    @staticmethod
    def give_back(sku: str): ...

    @staticmethod
    @irreversible("stock.scrap")
    def scrap(sku: str): ...
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "amends_test_shop"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "tools.py").write_text(TOOLS)
    (folder / "agent.py").write_text("from amends_test_shop.tools import charge as pay\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield folder
    for name in [name for name in sys.modules if name.startswith("amends_test_shop")]:
        del sys.modules[name]


def test_handlers_are_found_by_the_tools_name(package: Path) -> None:
    registry = HandlerRegistry()
    registry.load(["amends_test_shop.tools"])
    assert [tool.name for tool in registry] == ["pay.charge", "stock.scrap", "stock.take"]
    assert len(registry) == 3
    assert registry.lanes == ("pay", "warehouse")
    undo, probe, verify = registry.undo("pay.charge"), registry.probe("pay.charge"), registry.verify("pay.charge")
    assert undo is not None
    assert probe is not None
    assert verify is not None
    assert [needs_step(handler) for handler in (undo, probe, verify)] == [False, True, False]
    assert undo.takes_key
    assert undo.location.endswith("tools.py:7")
    assert registry.forward("pay.charge") is registry.tool("pay.charge")
    assert registry.undo("stock.take") is not None


def test_a_module_brings_the_tools_it_imports(package: Path) -> None:
    registry = HandlerRegistry()
    registry.load(["amends_test_shop.agent"])
    assert [tool.name for tool in registry] == ["pay.charge"]


def test_a_package_brings_what_is_imported_below_it(package: Path) -> None:
    (package / "__init__.py").write_text("import amends_test_shop.agent\n")
    registry = HandlerRegistry()
    registry.load(["amends_test_shop"])
    assert len(registry) == 3


def test_loading_again_changes_nothing(package: Path) -> None:
    registry = HandlerRegistry()
    registry.load(["amends_test_shop.tools", "amends_test_shop.agent", "amends_test_shop.tools"])
    importlib.reload(sys.modules["amends_test_shop.tools"])
    registry.load(["amends_test_shop.tools"])
    assert len(registry) == 3
    assert registry.forward("pay.charge") is sys.modules["amends_test_shop.tools"].charge.tool


def test_two_tools_of_one_name_are_refused(package: Path) -> None:
    (package / "more.py").write_text(TOOLS)
    registry = HandlerRegistry()
    with pytest.raises(ContractError, match=r"more\.py:4: the name 'pay\.charge' is taken by .*tools\.py:4"):
        registry.load(["amends_test_shop.tools", "amends_test_shop.more"])


def test_a_declaration_that_cannot_be_kept_stops_the_start(package: Path) -> None:
    (package / "wrong.py").write_text(
        "from amends.tools import compensable, Undone\n"
        "@compensable('a')\ndef a(): ...\n"
        "@a.verify\ndef v(): return Undone()\n"
    )
    with pytest.raises(ContractError, match=r"wrong\.py:4"):
        HandlerRegistry().load(["amends_test_shop.wrong"])


def test_what_is_not_there_is_said_with_the_reason() -> None:
    registry = HandlerRegistry()

    @compensable("a.b")
    def call() -> None: ...

    registry.add(call)
    assert registry.undo("a.b") is None
    assert registry.probe("other") is None
    with pytest.raises(NoHandler, match="without undo"):
        registry.handler(Role.UNDO, "a.b")
    with pytest.raises(NoHandler, match=r"No loaded module declares the tool 'a\.c'; loaded are a\.b"):
        registry.handler(Role.UNDO, "a.c")
    with pytest.raises(ModuleNotFoundError):
        registry.load(["amends_test_nowhere"])
    with pytest.raises(ContractError, match="is no tool of amends"):
        registry.add(print)


def test_what_leaves_work_to_people_is_listed() -> None:
    @compensable("a.keyless")
    def keyless(x: int) -> None: ...

    @keyless.undo(arguments={"x": "input.x"})
    def undo(x: int) -> None: ...

    @compensable("a.sound", idempotency="natural")
    def sound(x: int) -> None: ...

    sound.undo(arguments={"x": "input.x"}, idempotency="natural")(undo)
    sound.verify(lambda step: Undone())  # an unannotated parameter is an argument's name
    registry = HandlerRegistry()
    registry.add(keyless, read_only("a.look")(lambda: None))
    assert len(registry.problems()) == 2
    assert all("a.keyless" in problem for problem in registry.problems())
    with pytest.raises(ContractError, match="'step' is none of those"):
        registry.add(sound)


def test_a_handler_may_ask_for_the_step_beside_arguments() -> None:
    seen: list[object] = []

    @compensable("a.b")
    def call(x: int) -> None: ...

    @call.undo(arguments={"x": "input.x"})
    def undo(x: int, step: "Step") -> None:  # noqa: UP037 - a name in quotes is found out too
        seen.append((x, step.step_id))

    step = Step("wf", "step-1", "a.b", "", "key", {"x": 1})
    assert call.tool.undo is not None
    call.tool.undo.call({"x": 1}, key="k", step=step)
    assert seen == [(1, "step-1")]
