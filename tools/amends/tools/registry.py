"""Where a worker finds handlers: by a tool's name, after importing the modules that declare them.

A record names a tool, never a module or a class; what is imported is what the worker was told at start.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, cast

from amends.schemas.contract import lane_of
from amends.tools.declaration import Tool
from amends.tools.errors import ContractError, NoHandler
from amends.tools.handlers import Handler, Role


class HandlerRegistry:
    """Tools by name, with their handlers."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    def load(self, modules: Iterable[str]) -> None:
        """Import modules and take every tool declared in them (or below them, for packages) or imported into them.

        Raises:
            ContractError: a tool can't be kept, or two have one name.
            ImportError: a module can't be imported; its own exceptions pass through.
        """
        for name in modules:
            importlib.import_module(name)
            for tool in _tools_of(name):
                self.add(tool)

    def add(self, *declared: Any) -> None:
        """Take tools: declared functions, or `Tool`s.

        Raises:
            ContractError: one is no tool, can't be kept, or has the name of another.
        """
        for given in declared:
            tool = given if isinstance(given, Tool) else getattr(given, "tool", None)
            if not isinstance(tool, Tool):
                raise ContractError(f"{given!r} is no tool of amends: declare it with compensable, reversible, ...")
            before = self._tools.get(tool.name)
            if before is not None and before is not tool and not _is_reloaded(before, tool):
                raise ContractError(
                    f"{tool.location}: the name {tool.name!r} is taken by {before.location}. A record knows its tool "
                    "by name alone; rename one of them."
                )
            _ = tool.contract  # sealed and checked here, at start, and not at the first undo
            self._tools[tool.name] = tool

    def __iter__(self) -> Iterator[Tool]:
        return iter(sorted(self._tools.values(), key=lambda tool: tool.name))

    def __len__(self) -> int:
        return len(self._tools)

    def tool(self, tool_name: str) -> Tool | None:
        """Return the tool, or None if no loaded module declares it."""
        return self._tools.get(tool_name)

    def find(self, role: Role, tool_name: str) -> Handler | None:
        """Return a tool's handler for a role, or None. A tool's call itself is `tool(...).call_again`."""
        tool = self._tools.get(tool_name)
        if tool is None or role is Role.FORWARD:
            return None
        if role is Role.UNDO:
            return tool.undo
        if role is Role.PROBE:
            return tool.probe
        return tool.verify if role is Role.VERIFY else tool.capture

    def handler(self, role: Role, tool_name: str) -> Handler:
        """Return a handler that must be there.

        Raises:
            NoHandler: it is not; the message says what is loaded.
        """
        found = self.find(role, tool_name)
        if found is not None:
            return found
        if tool_name in self._tools:
            raise NoHandler(f"The tool {tool_name!r} is loaded ({self._tools[tool_name].location}), without {role}.")
        raise NoHandler(
            f"No loaded module declares the tool {tool_name!r}; loaded are {', '.join(sorted(self._tools)) or 'none'}."
        )

    def undo(self, tool_name: str) -> Handler | None:
        return self.find(Role.UNDO, tool_name)

    def probe(self, tool_name: str) -> Handler | None:
        return self.find(Role.PROBE, tool_name)

    def verify(self, tool_name: str) -> Handler | None:
        return self.find(Role.VERIFY, tool_name)

    def forward(self, tool_name: str) -> Tool | None:
        """Return the tool whose call may be sent again (`Tool.call_again`)."""
        return self._tools.get(tool_name)

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that the loaded tools' undos and probes come by."""
        contracts = [tool.contract for tool in self]
        return tuple(sorted({lane_of(c) for c in contracts if c.undo is not None or c.probe is not None}))

    def problems(self) -> list[str]:
        """Return what leaves work to people, tool by tool, in words."""
        return [problem for tool in self for problem in tool.problems()]


def needs_step(handler: Handler) -> bool:
    """Tell whether a handler asks for the whole step."""
    return handler.needs_step


def _is_reloaded(before: Tool, after: Tool) -> bool:
    return (before.module, before.qualname) == (after.module, after.qualname) and "<locals>" not in after.qualname


def _tools_of(name: str) -> list[Tool]:
    """Tools in the namespace of a module, and of the modules below it that are imported."""
    below = sorted(n for n in sys.modules if n.startswith(f"{name}."))
    found: dict[Tool, None] = {}
    for module_name in (name, *below):
        found.update(dict.fromkeys(_named(vars(sys.modules[module_name]), set())))
    return list(found)


def _named(names: Mapping[str, object], seen: set[type]) -> Iterator[Tool]:
    # Types are asked for by `type`, not by attributes: a module may hold proxies that answer for something else.
    for value in list(names.values()):
        plain = value.__func__ if type(value) in (staticmethod, classmethod) else value  # type: ignore[attr-defined]
        if type(plain) is FunctionType:
            tool = plain.__dict__.get("tool")
            if isinstance(tool, Tool):
                yield tool
        elif issubclass(type(value), type) and value not in seen:
            kind = cast("type", value)
            seen.add(kind)
            yield from _named(vars(kind), seen)
