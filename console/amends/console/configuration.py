"""`amends config show`: the settings in force, where each came from, with secrets hidden.

Parts bring their settings by the entry-point group `amends.settings` (section = "module:Model").
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from pydantic import BaseModel, SecretBytes, SecretStr

from amends.console.exits import USAGE, Stop
from amends.console.options import AsJson
from amends.console.output import show_json, show_table
from amends.kafka.loading import FILE_VARIABLE, PREFIX, from_environment, from_file, load_settings
from amends.kafka.schema_registry_settings import SECTION as SCHEMA_REGISTRY
from amends.kafka.schema_registry_settings import SchemaRegistrySettings
from amends.kafka.secrets import ENDING, is_named_by_file, is_secret
from amends.kafka.settings import KafkaSettings

GROUP = "amends.settings"
HIDDEN = "********"

app = typer.Typer(no_args_is_help=True, help="The settings in force, and where each came from.")


@app.callback()
def config() -> None:
    """The settings in force, and where each came from."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting in force. `value` is fit to be shown."""

    section: str
    name: str
    value: str
    origin: str  # the variable, the file, or "default"


@app.command("show")
def show(
    section: Annotated[str | None, typer.Argument(help="Only this section, such as kafka.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the settings in force. What is wrong or unknown is refused, as the parts would refuse it."""
    models = sections()
    if section is not None and section not in models:
        raise Stop(f"there is no section {section!r}; there are {', '.join(sorted(models))}", USAGE)
    found = [
        setting
        for name, model in sorted(models.items())
        if section in (None, name)
        for setting in in_force(model, name, os.environ)
        if not changed or setting.origin != "default"
    ]
    if as_json:
        show_json(found)
    else:
        rows = [(f"{row.section}.{row.name}", row.value, row.origin) for row in found]
        show_table(["setting", "value", "from"], rows, none="everything is as it comes")


def sections() -> dict[str, type[BaseModel]]:
    """Return the settings models of the parts that are installed, by section."""
    found: dict[str, type[BaseModel]] = {"kafka": KafkaSettings, SCHEMA_REGISTRY: SchemaRegistrySettings}
    for point in entry_points(group=GROUP):
        try:
            found[point.name] = point.load()
        except ModuleNotFoundError:  # its extra is not installed, so its settings are in nobody's force
            continue
    return found


def in_force(model: type[BaseModel], section: str, env: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the settings of a section. Raises SettingsWrong."""
    file = env.get(FILE_VARIABLE)
    variables = _named(model, from_environment(model, section, env))
    tables = _named(model, from_file(file, section))
    for name, value in _flat(load_settings(model, section, env).model_dump()).items():
        spelt = _spelt(name)
        origin = _variable(section, name, env) if spelt in variables else str(file) if spelt in tables else "default"
        yield Setting(section, name, _shown(name, value), origin)


def _named(model: type[BaseModel], given: Mapping[str, Any]) -> set[str]:
    """Return what is given, a secret in a file of its own under the secret's name."""
    return {_spelt(name).removesuffix(".file" if is_named_by_file(model, name) else "") for name in _flat(given)}


def _spelt(name: str) -> str:
    """Return a name as it compares: options of the Kafka client may be written bare, and with `_` for `.`."""
    return name.removeprefix("options.").replace("_", ".")


def _variable(section: str, name: str, env: Mapping[str, str]) -> str:
    spellings = [
        f"{section}__{name.removeprefix('options.').replace('.', '_')}",
        f"{section}__{name.replace('.', '__')}",
        name,  # without a section: AMENDS_MODE
    ]
    spellings += [f"{spelling}{ENDING}" for spelling in spellings]  # of a secret that stands in a file
    return next((f"{PREFIX}{known}".upper() for known in spellings if f"{PREFIX}{known}".upper() in env), "environment")


def _flat(value: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            found |= _flat(item, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = item
    return found


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, SecretStr):
        # Of a secret that is an address people need the host; a secret of any other form is not shown.
        address = value.get_secret_value()
        return _without_password(address) if _ADDRESS.match(address) else HIDDEN
    if is_secret(name) or isinstance(value, SecretBytes):
        return HIDDEN
    if isinstance(value, tuple | list | set | frozenset):
        return ", ".join(_without_password(str(item)) for item in value)
    return _without_password(str(value))


_ADDRESS = re.compile(r"^[a-z][a-z0-9+.-]*://")
_USER = re.compile(r"(?<=://)[^/?#]*@")
_QUERY = re.compile(r"(?<=[?&])([^=&#]*)=[^&#]*")


def _without_password(text: str) -> str:
    """Return an address without user, password and the values of its query; any other text as it is."""
    return _QUERY.sub(rf"\1={HIDDEN}", _USER.sub(f"{HIDDEN}@", text)) if _ADDRESS.match(text) else text
