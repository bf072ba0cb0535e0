"""docker-compose.yml as what it says: variables with their defaults, one service after the other."""

from __future__ import annotations

import re
from typing import Any

import yaml
from tests.architecture.parts import ROOT

FILE = ROOT / "docker-compose.yml"
_VARIABLE = re.compile(r"\$\{(?P<name>\w+):-(?P<default>[^}]*)\}")


def compose() -> dict[str, Any]:
    """Return the file as compose reads it where no variable is set. A variable without a default is an error."""
    text = _VARIABLE.sub(lambda found: found["default"], FILE.read_text("utf-8"))
    assert "${" not in text, "a variable without a default: `docker compose up` would not do"
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def services() -> dict[str, dict[str, Any]]:
    """Return the services by name."""
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def is_ours(service: dict[str, Any]) -> bool:
    """Whether a service runs an image that is built here."""
    return "build" in service


def runs_on(service: dict[str, Any]) -> bool:
    """Whether a service is to run until it is stopped."""
    return str(service.get("restart")) == "unless-stopped"
