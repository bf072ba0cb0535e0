"""Which handlers this process has, and which the commands ask for that it doesn't have.

A record names a handler by its tool's name. What is missing is told at start, with what to change: at run time it can
only be tried until its budget is spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from amends.schemas.commands import Command, ProbeCommand, ResendCommand, UndoCommand
from amends.tools.errors import NoHandler
from amends.tools.handlers import Role
from amends.tools.registry import HandlerRegistry

EXAMPLES_MAX = 3
"""Workflows that are named for each missing handler."""
LINES_MAX = 20
"""Missing handlers that are named; the rest is counted."""


@dataclass(frozen=True, slots=True, order=True)
class HandlerName:
    """How a record and a process of the pool name a handler. FORWARD is the tool's own call, sent again."""

    tool_name: str
    role: Role

    def __str__(self) -> str:
        return f"the {'call' if self.role is Role.FORWARD else self.role} of {self.tool_name}"


@dataclass(slots=True)
class MissingHandler:
    """A handler that waiting commands ask for. `steps` are (workflow id, step id), each once, however often told."""

    name: HandlerName
    lane: str
    why: str
    steps: dict[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])

    def __str__(self) -> str:
        workflows = list(dict.fromkeys(workflow_id for workflow_id, _ in self.steps))
        more = len(workflows) - EXAMPLES_MAX
        named = ", ".join(workflows[:EXAMPLES_MAX]) + (f" and {more} more" if more > 0 else "")
        count = f"{len(self.steps)} step{'s' if len(self.steps) > 1 else ''}"
        return f"{self.name}, lane {self.lane}: {count} of {named}. {self.why}"


def plain_handlers(tools: HandlerRegistry) -> dict[HandlerName, str]:
    """Return the handlers, and the calls that may be sent again, that are no coroutines, and where each stands."""
    found: dict[HandlerName, str] = {}
    for tool in tools:
        for role in (Role.UNDO, Role.PROBE, Role.VERIFY, Role.CAPTURE):
            handler = tools.find(role, tool.name)
            if handler is not None and not handler.asynchronous:
                found[HandlerName(tool.name, role)] = handler.location
        if tool.undo is not None and not tool.asynchronous:
            found[HandlerName(tool.name, Role.FORWARD)] = tool.location
    return found


def asked_by(command: Command) -> Iterator[tuple[HandlerName, str]]:
    """Yield the handlers that a command may call, each with the id of its step."""
    match command:
        case UndoCommand():
            for entry in command.entries:
                yield HandlerName(entry.handler, Role.UNDO), entry.step_id
                if entry.verify is not None:
                    yield HandlerName(entry.verify, Role.VERIFY), entry.step_id
                if entry.compares:
                    yield HandlerName(entry.tool_name, Role.CAPTURE), entry.step_id
        case ProbeCommand():
            yield HandlerName(command.handler, Role.PROBE), command.step_id
        case ResendCommand():
            yield HandlerName(command.tool_name, Role.FORWARD), command.step_id


def missing_handlers(commands: Iterable[Command], tools: HandlerRegistry) -> list[MissingHandler]:
    """Return the handlers that commands ask for and `tools` doesn't have, by name."""
    found: dict[tuple[HandlerName, str], MissingHandler] = {}
    for command in commands:
        for name, step_id in asked_by(command):
            why = _why_missing(name, tools)
            if why is not None:
                missing = found.setdefault((name, command.lane), MissingHandler(name, command.lane, why))
                missing.steps[command.workflow_id, step_id] = None
    return [found[name] for name in sorted(found)]


def listed(missing: list[MissingHandler]) -> str:
    """Return them for people, a line each."""
    lines = [f"- {handler}" for handler in missing[:LINES_MAX]]
    if len(missing) > LINES_MAX:
        lines.append(f"- and {len(missing) - LINES_MAX} handlers more")
    return "\n".join(lines)


def _why_missing(name: HandlerName, tools: HandlerRegistry) -> str | None:
    if name.role is Role.FORWARD:
        return None if tools.forward(name.tool_name) is not None else "No loaded module declares the tool."
    try:
        tools.handler(name.role, name.tool_name)
    except NoHandler as error:
        loaded = tools.tool(name.tool_name) is not None
        return error.message if loaded else "No loaded module declares the tool."
    return None
