"""Every tool of both domains, made a tool of amends by one rule: what writes captures and restores, what reads reads.

Nothing is known of any single tool. `case` names the database. All writes of a case are undone one after another: the
refund of one order changes the gift card that the next one is paid with.
"""

from __future__ import annotations

import inspect
from typing import Any

from amends.tools import DeclaredTool, Step, read_only, reversible
from proof.databases import Refused, ask
from proof.domains import KITS, tools_of, writes


def _declared(domain: str, name: str, function: Any) -> DeclaredTool[..., Any]:
    async def call(*, case: str, **arguments: Any) -> Any:
        return await ask(case, "call", tool=name, arguments=arguments)

    given = [parameter for key, parameter in inspect.signature(function).parameters.items() if key != "self"]
    keyword_only = [
        inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, default=parameter.default)
        for parameter in (inspect.Parameter("case", inspect.Parameter.KEYWORD_ONLY), *given)
    ]
    call.__dict__["__signature__"] = inspect.Signature(keyword_only)
    call.__name__, call.__doc__ = name, function.__doc__
    if not writes(domain, name):
        return read_only(f"{domain}.{name}")(call)
    tool = reversible(
        f"{domain}.{name}", refused_by=(Refused,), resources=("input.case",), lease="15s", settles_in="1s"
    )(call)

    @tool.capture
    async def image(case: str, **arguments: Any) -> dict[str, Any]:
        found: dict[str, Any] = await ask(case, "image", arguments=arguments)
        return found

    @tool.restore(settles_in="1s")
    async def put_back(step: Step) -> None:
        await ask(step.input["case"], "restore", image=step.captured)

    return tool


TOOLS = {(domain, name): _declared(domain, name, f) for domain in KITS for name, f in tools_of(domain).items()}
globals().update({f"{domain}_{name}": tool for (domain, name), tool in TOOLS.items()})  # where a registry finds them
