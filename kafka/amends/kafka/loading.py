"""Typed settings from the environment and a file, with unknown names refused.

pydantic-settings ignores variables it does not know, so a typing error would silently leave a default in force. Here
the prefix is scanned by hand: a name is a field of a section, or it is an error that names the nearest known one.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from amends.kafka.errors import SettingsWrong
from amends.kafka.secrets import from_files

PREFIX = "AMENDS_"
SECTIONS = frozenset({"kafka", "producer", "processor", "compensator", "callbacks", "schema_registry"})
"""The sections there are, each read by somebody; a part reads its own and leaves the others to theirs."""

SHARED = frozenset({"mode"})
"""Names without a section: AMENDS_MODE. They fill the field of that name in every section that has one."""

FILE_VARIABLE = "AMENDS_CONFIG_FILE"

_INJECTED = re.compile(
    r"^AMENDS_(PORT(_.+)?|SERVICE_(HOST|PORT(_.+)?)|[A-Z0-9_]+_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_.+)?))$"
)
"""What Kubernetes injects into every pod for a service named `amends` or `amends-…`. Such names have no `__`."""

_OURS = re.compile(r"^AMENDS_(TEST|BENCH|DEMO)_")

Model = TypeVar("Model", bound=BaseModel)


def load_settings(
    model: type[Model],
    section: str,
    env: Mapping[str, str] | None = None,
    file: Path | str | None = None,
    **explicit: object,
) -> Model:
    """Return the settings of `section`: explicit arguments, else `AMENDS_<SECTION>__<NAME>`, else file, else defaults.

    A secret may stand in a file of its own, as containers are given theirs: `AMENDS_<SECTION>__<NAME>_FILE` names it.
    A deeper `__` goes into a nested model or mapping. Lists may be written with commas or as JSON. The file is TOML
    with a table per section; None means the one named by AMENDS_CONFIG_FILE, if any.

    Raises:
        SettingsWrong: a name is unknown or a value does not fit; all of them are listed, secrets are not shown.
    """
    env = os.environ if env is None else env
    section = section.lower()
    file = file or env.get(FILE_VARIABLE)
    table, variables = from_file(file, section), from_environment(model, section, env)

    def spelt(*path: str) -> str:
        """A setting as a person finds it: in the file if that is where it stands, else as a variable."""
        if _holds(table, path) and not _holds(variables, path):
            return f"{'.'.join(path)} of [{section}] in {file}"
        return PREFIX + "__".join((section, *path)).upper().replace(".", "_")

    given = merged(merged(table, variables), {name: value for name, value in explicit.items() if value is not None})
    given = from_files(model, given, lambda name, text: _read(model, [name], text), spelt)
    _refuse_unknown(model, given, spelt)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise SettingsWrong(_words(error, section, spelt)) from None


def from_environment(model: type[BaseModel], section: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the nested values of `section` in `env`. Raises SettingsWrong for a name of no section."""
    values: dict[str, Any] = {}
    for variable in sorted(env):
        path = _path_of(variable)
        if path is None:
            continue
        if len(path) == 1 and path[0] in model.model_fields:
            values = merged(values, {path[0]: _read(model, path, env[variable])})
        elif len(path) > 1 and path[0] == section:
            values = merged(values, _nested(path[1:], _read(model, path[1:], env[variable])))
    return values


def from_file(file: Path | str | None, section: str) -> dict[str, Any]:
    """Return the table of `section` in a TOML file, or nothing without a file."""
    if file is None:
        return {}
    try:
        tables = tomllib.loads(Path(file).read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsWrong(f"the settings file {file} can't be read: {error}") from None
    for name in tables:
        if name not in SECTIONS | SHARED:
            raise SettingsWrong(f"the settings file {file} has an unknown table [{name}]{_nearest(name, SECTIONS)}")
    table = tables.get(section, {})
    if not isinstance(table, dict):
        raise SettingsWrong(f"[{section}] in {file} must be a table")
    return table


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return `lower` overlaid with `upper`, mappings inside included."""
    result = dict(lower)
    for name, value in upper.items():
        below = result.get(name)
        result[name] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def _path_of(variable: str) -> list[str] | None:
    """Return the lower-case path of one of our variables, or None for one that is not a setting."""
    if not variable.startswith(PREFIX) or variable == FILE_VARIABLE or _OURS.match(variable):
        return None
    path = variable[len(PREFIX) :].lower().split("__")
    if len(path) > 1 and path[0] in SECTIONS and all(path):
        return path
    if len(path) == 1 and path[0] in SHARED:
        return path
    if _INJECTED.match(variable):
        return None
    known = [f"{PREFIX}{name.upper()}" for name in SHARED] + [f"{PREFIX}{name.upper()}__" for name in SECTIONS]
    raise SettingsWrong(
        f"unknown setting {variable} in the environment{_nearest(variable, known)}; "
        f"settings are named {PREFIX}<SECTION>__<NAME>, sections are {', '.join(sorted(SECTIONS))}"
    )


def _read(model: type[BaseModel], path: list[str], text: str) -> Any:
    """Return text as pydantic wants it: JSON where it is JSON, commas where the field is a sequence."""
    field = model.model_fields.get(path[0])
    if text[:1] in "[{" and text:
        try:
            return json.loads(text)
        except ValueError:
            return text
    wants_many = (
        field is not None and len(path) == 1 and re.match(r"(tuple|list|set|frozenset)\b", str(field.annotation))
    )
    return [item.strip() for item in text.split(",") if item.strip()] if wants_many else text


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    return {path[0]: value if len(path) == 1 else _nested(path[1:], value)}


def _holds(values: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    below = values.get(path[0])
    return path[0] in values and (len(path) == 1 or (isinstance(below, Mapping) and _holds(below, path[1:])))


def _refuse_unknown(model: type[BaseModel], given: Mapping[str, Any], spelt: Callable[..., str]) -> None:
    # A model that makes something of further names (KafkaSettings: client options) refuses the bad ones itself.
    if "options" in model.model_fields:
        return
    unknown = [name for name in given if name not in model.model_fields]
    if unknown:
        names = [f"unknown setting {spelt(name)}{_nearest(name, model.model_fields)}" for name in unknown]
        raise SettingsWrong("; ".join(names))


def _nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _words(error: ValidationError, section: str, spelt: Callable[..., str]) -> str:
    # The value itself is left out: it may be a secret.
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{_place(p['loc'], section, spelt)}: {p['msg'].removeprefix('Value error, ')}" for p in problems)


def _place(location: tuple[int | str, ...], section: str, spelt: Callable[..., str]) -> str:
    """Name what a problem is about: a setting, an item of one, or the section where several don't go together."""
    path = tuple(takewhile(lambda part: isinstance(part, str), location))
    if not path:
        return f"{PREFIX}{section.upper()}__…"
    items = "".join(f", item {part + 1}" for part in location[len(path) :] if isinstance(part, int))
    return spelt(*path) + items
