"""Which runtime this process uses, and what a tool does outside a workflow."""

from __future__ import annotations

import uuid
from typing import Any

from amends.producers.runtime import Runtime, set_default_runtime
from amends.producers.workflow import workflow
from amends.tools.runner import BoundCall, Runner, active_runner, set_outside


class SingleStepRunner:
    """The setting `outside = "single-step"`: a call outside a workflow is a workflow of one step, with its own id.
    A call that raises fails it, so that an effect nobody heard of is undone."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def call(self, bound: BoundCall) -> Any:
        with self._scope(bound):
            return _active().call(bound)

    async def call_async(self, bound: BoundCall) -> Any:
        async with self._scope(bound):
            return await _active().call_async(bound)

    def _scope(self, bound: BoundCall) -> workflow:
        return workflow(f"single-{bound.tool.name}-{uuid.uuid4().hex}", runtime=self._runtime)


def use(runtime: Runtime | None) -> Runtime | None:
    """Make `runtime` the one of this process, with its setting `outside`; return the one before. Closes neither."""
    if runtime is not None and runtime.settings.outside == "single-step":
        set_outside("single-step", SingleStepRunner(runtime))
    else:
        set_outside("refuse")
    return set_default_runtime(runtime)


def _active() -> Runner:
    runner = active_runner.get()
    assert runner is not None, "inside a scope there is one"
    return runner
