"""What a compensator refuses before it opens anything."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from amends.compensators import command
from amends.compensators.processes import ModulesBroken
from amends.compensators.settings import CompensatorSettings
from amends.compensators.starting import loaded_tools, opened_registry, started_processes
from amends.kafka.errors import ReadTimedOut, SettingsWrong, TopicsWrong
from amends.tools import HandlerRegistry, compensable


@pytest.mark.parametrize("url", ["http://redis:6379/0", "redis:6379", "redis://:ge/heim@redis:6379/0"])
async def test_what_is_no_url_of_a_redis_is_refused_and_its_password_is_not_shown(url: str) -> None:
    settings = CompensatorSettings.model_validate({"redis_url": url})
    with pytest.raises(SettingsWrong, match="AMENDS_COMPENSATOR__REDIS_URL") as raised:
        async with opened_registry(settings, lambda: None):
            pass
    assert "heim" not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("module", ["amends_test_nowhere", "./shop.py", ".shop"])
def test_a_module_that_is_not_there_is_an_error_that_says_where_it_was_looked_for(module: str) -> None:
    with pytest.raises(ModulesBroken, match=r"can't be imported: .* PYTHONPATH") as raised:
        loaded_tools(CompensatorSettings(modules=(module,)))
    assert module in str(raised.value)


HALF_THERE = """
import sys
from amends.tools import compensable

@compensable("half.there")
def do(x: int): ...

if "pytest" in sys.modules:
    @do.undo(arguments={"x": "input.x"})
    def undo(x: int): ...
"""


async def test_a_handler_that_only_this_process_finds_is_an_error_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "amends_test_half.py").write_text(HALF_THERE)
    monkeypatch.syspath_prepend(tmp_path)
    settings = CompensatorSettings(modules=("amends_test_half",), processes=1)
    tools = loaded_tools(settings)
    with pytest.raises(ModulesBroken, match=r"- the undo of half\.there, at .*half\.py:\d+\n") as raised:
        async with started_processes(settings, tools):
            pass
    assert "top level of a module" in str(raised.value)
    del sys.modules["amends_test_half"]


async def test_a_handler_of_the_main_script_is_an_error_at_start() -> None:
    settings = CompensatorSettings(modules=("__main__",), processes=1)
    tools = HandlerRegistry()
    tools.add(charge_here)
    with pytest.raises(ModulesBroken, match=r"the undo of starting\.charge"):
        async with started_processes(settings, tools):
            pass


@compensable("starting.charge")
def charge_here(x: int) -> None: ...


@charge_here.undo(arguments={"x": "input.x"})
def refund_here(x: int) -> None: ...


@pytest.mark.parametrize(
    ("error", "code"), [(ReadTimedOut("the broker doesn't answer"), 75), (TopicsWrong(["there is none"]), 2)]
)
def test_only_where_no_broker_answers_is_starting_again_all_there_is_to_do(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(command, "serve", fails)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert CliRunner().invoke(command.app, ["shop", "--kafka", "127.0.0.1:1"]).exit_code == code
