"""Where the commands come from: the entry-point group `amends.commands`. None is imported before it is wanted.

A part registers `name = "module:app"`, a `typer.Typer`. One whose extra is not installed stands in the list all the
same, and says what to install when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import typer
import typer.core
import typer.main

from amends.console.exits import Stop

GROUP = "amends.commands"

OWN = {
    "acls": "amends.console.acls:app",
    "approvals": "amends.console.approvals:app",
    "config": "amends.console.configuration:app",
    "contain": "amends.console.contain:app",
    "dead-letters": "amends.console.dead_letters:app",
    "incidents": "amends.console.incidents:app",
    "ledger": "amends.console.ledger:app",
    "schemas": "amends.console.schemas:app",
    "topics": "amends.console.topics:app",
    "workflows": "amends.console.workflows:app",
}

_EXTRAS = frozenset({"compensators", "console", "local", "processors"})


def commands() -> dict[str, str]:
    """Return every command's `module:attribute` by its name."""
    return {**{point.name: point.value for point in entry_points(group=GROUP)}, **OWN}


def loaded(name: str, target: str) -> Any:
    """Return the command at `target`, or one that says which extra it needs."""
    module, _, attribute = target.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except ModuleNotFoundError as missing:
        return _unavailable(name, *_words(name, module, str(missing.name)))
    except Exception as error:  # one part that is broken must not take the others' commands away
        return _unavailable(name, "Can't be loaded.", f"`amends {name}` can't be loaded: {error!r}")
    command = typer.main.get_command(found) if isinstance(found, typer.Typer) else found
    command.name = name
    _make_plain(command)
    return command


def _make_plain(command: Any) -> None:
    """Let every part's help look alike: plain text, and no options that install shell completion for a part alone."""
    command.rich_markup_mode = None
    command.params = [p for p in command.params if p.name not in ("install_completion", "show_completion")]
    for inner in getattr(command, "commands", {}).values():
        _make_plain(inner)


def _words(name: str, module: str, missing: str) -> tuple[str, str]:
    """Return the help and the error of a command of which module `missing` is not there."""
    if missing.startswith("amends."):
        return "Can't be loaded.", f"`amends {name}` can't be loaded: no module {missing}"
    part = module.split(".")[1] if module.startswith("amends.") else ""
    extra = part if part in _EXTRAS else "all"
    words = f"`amends {name}` needs amends[{extra}] ({missing} is not installed): pip install 'amends[{extra}]'"
    return f"Not installed: it needs amends[{extra}].", words


def _unavailable(name: str, help_words: str, words: str) -> Any:
    app = typer.Typer(add_completion=False)
    options = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(help=help_words, context_settings=options)(_stopping(words))
    command = typer.main.get_command(app)
    command.name = name
    return command


def _stopping(words: str) -> Callable[[], None]:
    def stop() -> None:
        raise Stop(words)

    return stop


class PartsGroup(typer.core.TyperGroup):
    """A group whose commands are looked up, and imported one by one."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        target = commands().get(cmd_name)
        return None if target is None else loaded(cmd_name, target)
