"""`python -m bench drain`: many workflows fail at once, with undos that do nothing, while new work goes on.

python -m bench drain [--workflows 10000] [--per-second 20] [--target 300] [--warm 20] [--json FILE]

The workflows that fail are written to the ledger as agents write them, three steps each; then FAILED of all of them, as
fast as the broker takes it. Drained is the last UNDONE; both times are the broker's. New work is job S, by an agent of
its own, so many workflows a second: how long its steps take before, and while the undos are owed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from amends.kafka.errors import WriteError
from amends.kafka.publisher import Ack, Publisher
from amends.kafka.settings import KafkaSettings
from amends.local.parts import Parts
from amends.schemas.codec import encode
from amends.schemas.facts import Fact, StepEvent, StepStatus, UndoEvent, UndoStatus, WorkflowEvent, WorkflowStatus
from bench import recovery
from bench.loads import Agent
from bench.place import measure, place
from bench.report import Figures, percentile
from bench.tools import LANE, RESULT, step

STEPS = 3
PREFIX = "mass-"
LEASE_MS = 600_000
"""Nobody says that these agents are alive."""
BEFORE_S = 8.0
WITHIN_S = 300


def begun(workflow_id: str) -> Iterable[Fact]:
    """Yield the facts of a workflow that has made its calls."""
    yield WorkflowEvent(workflow_id, 0, WorkflowStatus.STARTED, agent_id="bench", lease_ms=LEASE_MS)
    contract, tool = step.tool.contract_bytes, step.tool.contract.tool_name
    for number in range(STEPS):
        step_id, attempt = f"{workflow_id}-{number}".ljust(32, "0"), f"p-{number}"
        effect, arguments = step.tool.contract.effect, f'{{"id": "r-{number}"}}'.encode()
        yield StepEvent(
            workflow_id,
            step_id,
            attempt,
            0,
            StepStatus.STARTED,
            tool,
            side_effect_classification=effect,
            contract=contract,
        )
        output = json.dumps({"id": f"r-{number}", "data": RESULT}).encode()
        yield StepEvent(
            workflow_id,
            step_id,
            attempt,
            0,
            StepStatus.SUCCEEDED,
            tool,
            side_effect_classification=effect,
            output_payload=output,
            undo_arguments=arguments,
        )


def write(publisher: Publisher, topic: str, facts: Iterable[Fact]) -> None:
    """Write facts; return when all are acknowledged."""
    refused: list[WriteError] = []

    def done(answer: Ack | WriteError) -> None:
        if not isinstance(answer, Ack):
            refused.append(answer)

    for number, fact in enumerate(facts):
        publisher.send(topic, key=fact.workflow_id.encode(), value=encode(fact), on_done=done)
        if number % 5_000 == 4_999:
            publisher.flush(60_000)
    publisher.flush(60_000)
    if refused:
        raise SystemExit(f"{len(refused)} facts were not written: {refused[0]}")


@dataclass
class Drain:
    """What the ledger says of the workflows that failed."""

    failed_ms: list[int] = field(default_factory=list)
    undone: dict[str, int] = field(default_factory=dict)
    undone_ms: list[int] = field(default_factory=list)
    """When the last step of a workflow was undone, one for each that is whole."""
    repeated: int = 0
    _steps: set[tuple[str, str]] = field(default_factory=set)

    def note(self, fact: object, at_ms: int) -> None:
        if isinstance(fact, WorkflowEvent) and fact.status is WorkflowStatus.FAILED:
            if fact.workflow_id.startswith(PREFIX):
                self.failed_ms.append(at_ms)
        elif isinstance(fact, UndoEvent) and fact.status is UndoStatus.UNDONE:
            if not fact.workflow_id.startswith(PREFIX):
                return
            if (fact.workflow_id, fact.step_id) in self._steps:
                self.repeated += 1
                return
            self._steps.add((fact.workflow_id, fact.step_id))
            count = self.undone[fact.workflow_id] = self.undone.get(fact.workflow_id, 0) + 1
            if count == STEPS:
                self.undone_ms.append(at_ms)


def drained(settings: KafkaSettings, since: list[int], workflows: int) -> Drain:
    """Follow the ledger until every workflow is undone."""
    found = Drain()
    until = time.monotonic() + WITHIN_S
    for fact, at_ms in recovery.follow(settings, since):
        found.note(fact, at_ms)
        if len(found.undone_ms) == workflows:
            return found
        if time.monotonic() > until:
            break
    raise SystemExit(f"{len(found.undone_ms)} of {workflows} workflows were undone within {WITHIN_S} s")


def run(options: argparse.Namespace) -> Figures:
    with place("drain", options.partitions) as here:
        here.parts.amends("processor", "processor")
        here.parts.amends("compensator", "compensator", "bench.tools", "--lane", LANE)
        return _measure(options, here.settings, here.parts)


def _measure(options: argparse.Namespace, settings: KafkaSettings, parts: Parts) -> Figures:
    if options.warm:
        print(f"  warming {options.warm:g} s", flush=True)
        warm(parts, options.warm)
    names = [f"{PREFIX}{number}" for number in range(options.workflows)]
    publisher, topic = Publisher(settings, deadline_ms=60_000), settings.topics.ledger
    try:
        print(f"  {options.workflows} workflows begin", flush=True)
        write(publisher, topic, chain.from_iterable(begun(name) for name in names))
        load = f"{options.per_second}/s"
        quiet = Agent(parts, "quiet", load, BEFORE_S, warm_s=3.0)
        before_ms = steps_ms(quiet, BEFORE_S)
        busy = Agent(parts, "busy", load, max(BEFORE_S, options.workflows / options.target), warm_s=1.0)
        busy.wait_for("measuring", 60)
        since = recovery.ends_of(settings)
        print("  and fail", flush=True)
        write(publisher, topic, (WorkflowEvent(name, 0, WorkflowStatus.FAILED) for name in names))
    finally:
        publisher.close()
    found = drained(settings, since, options.workflows)
    took_s = (max(found.undone_ms) - min(found.failed_ms)) / 1_000
    print(f"  undone in {took_s:.1f} s: {options.workflows / took_s:.0f}/s", flush=True)
    during_ms = steps_ms(busy, WITHIN_S)
    return {
        "workflows": options.workflows,
        "failed_within_s": (max(found.failed_ms) - min(found.failed_ms)) / 1_000,
        "drained_s": took_s,
        "workflows_s": options.workflows / took_s,
        "undone_again": found.repeated,
        "step_before_p50_ms": percentile(before_ms, 0.5),
        "step_before_p99_ms": percentile(before_ms, 0.99),
        "step_during_p50_ms": percentile(during_ms, 0.5),
        "step_during_p99_ms": percentile(during_ms, 0.99),
    }


def warm(parts: Parts, seconds: float, tries: int = 4) -> None:
    """Run load for a while. On a busy machine the parts may not be ready for it at first."""
    for left in reversed(range(tries)):
        try:
            Agent(parts, f"warm{left}", "32", seconds, 0.5).wait_for("{", seconds + 90)
        except SystemExit:
            if not left:
                raise
            time.sleep(5)
        else:
            return


def steps_ms(agent: Agent, within_s: float) -> list[float]:
    """Return how long the agent's steps took beyond their bodies, once it has ended."""
    said = json.loads(agent.wait_for("{", within_s + 90))
    return [max(0.0, us - said["bare_us"]) / 1_000 for us in said["step_us"]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench drain", description=__doc__)
    parser.add_argument("--workflows", type=int, default=10_000)
    parser.add_argument("--per-second", type=float, default=20.0, help="new workflows, before and meanwhile")
    parser.add_argument("--target", type=float, default=300.0, help="workflows drained a second, at least")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds of load first")
    options, figures = measure(parser, arguments, run)
    print(
        f"{figures['workflows']} workflows failed within {figures['failed_within_s']:.1f} s and were undone in "
        f"{figures['drained_s']:.1f} s: {figures['workflows_s']:.0f}/s (target {options.target:g}/s), "
        f"{figures['undone_again']} undone twice\n"
        f"a step of new work: p50 {figures['step_before_p50_ms']:.1f} ms, p99 {figures['step_before_p99_ms']:.1f} ms "
        f"before; p50 {figures['step_during_p50_ms']:.1f} ms, p99 {figures['step_during_p99_ms']:.1f} ms meanwhile"
    )
    return 0 if figures["workflows_s"] >= options.target and not figures["undone_again"] else 1
