"""Parts measured alone: the fold with its changelog, the restore of a million steps, a registry claim."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from dataclasses import dataclass

from amends.compensators.redis_registry import RedisRegistry, connect
from amends.compensators.registry import ClaimRequest
from amends.kafka.seldom import collect_seldom
from amends.processors import records
from amends.processors.emission import Headers
from amends.processors.partition import Partition
from amends.processors.state import Attempt, AttemptState, Header, Step
from amends.processors.terms import Terms
from amends.schemas.codec import encode
from amends.schemas.commands import Phase
from amends.schemas.contract import Contract, Effect, Idempotency, UndoTerms
from amends.schemas.facts import Fact, StepEvent, StepStatus, UndoEvent, UndoStatus, WorkflowEvent, WorkflowStatus

CONTRACT = encode(Contract("bench.step", Effect.COMPENSABLE, undo=UndoTerms("u", "bench", idempotency=Idempotency.KEY)))


@dataclass(frozen=True, slots=True)
class Entry:
    offset: int
    appended_at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def facts_of(name: str) -> list[Fact]:
    """Return the facts of one workflow of job S, in the order of the ledger."""
    facts: list[Fact] = [WorkflowEvent(name, 0, WorkflowStatus.STARTED, agent_id="bench", lease_ms=30_000)]
    for number in range(4):
        step_id = f"{name}-{number}".ljust(32, "0")
        facts.append(
            StepEvent(
                name,
                step_id,
                f"p-{number}",
                0,
                StepStatus.STARTED,
                "bench.step",
                side_effect_classification=Effect.COMPENSABLE,
                contract=CONTRACT,
                input_payload=b'{"number": 1}',
            )
        )
        ended = StepStatus.SUCCEEDED if number < 3 else StepStatus.FAILED
        facts.append(
            StepEvent(
                name,
                step_id,
                f"p-{number}",
                0,
                ended,
                "bench.step",
                output_payload=b"x" * 1_000,
                undo_arguments=b'{"id": "r"}',
            )
        )
    facts.append(WorkflowEvent(name, 0, WorkflowStatus.FAILED))
    for number in (2, 1, 0):
        step_id = f"{name}-{number}".ljust(32, "0")
        facts.append(UndoEvent(name, step_id, 0, 0, UndoStatus.STARTED, "o", lease_ms=30_000))
        facts.append(UndoEvent(name, step_id, 0, 0, UndoStatus.UNDONE, "o"))
    return facts


def fold(workflows: int = 4_000, in_flight: int = 64) -> float:
    """Return facts/s of the fold on one core: decode, fold, everything it sends encoded, changelog every 500 facts."""
    values: list[tuple[bytes, bytes]] = []
    for first in range(0, workflows, in_flight):
        stories = [facts_of(f"w-{n}") for n in range(first, min(first + in_flight, workflows))]
        for index in range(len(stories[0])):
            values.extend((s[index].workflow_id.encode(), encode(s[index])) for s in stories)
    entries = [Entry(i, 1_000_000 + i // 20, key, value) for i, (key, value) in enumerate(values)]
    partition = Partition(0, Terms(lanes=frozenset({"bench"})))
    thresholds = gc.get_threshold()
    collect_seldom()  # as a processor does
    try:
        began = time.process_time()
        for start in range(0, len(entries), 100):
            for entry in entries[start : start + 100]:
                partition.fold(entry)
            partition.outputs(entries[start].appended_at_ms)
            if start % 500 == 0:
                partition.changes()
        return len(entries) / (time.process_time() - began)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def restore(steps: int = 1_000_000, per_workflow: int = 4) -> tuple[float, float]:
    """Return (seconds, MB of memory grown) to take `steps` open step records and be ready to fold."""
    step = Step(
        0,
        "0" * 32,
        "payments.charge",
        0,
        1_000,
        1_000_000,
        contract="0123456789abcdef",
        effect=Effect.COMPENSABLE,
        attempts=(
            Attempt("host-1234-abcdef-17", AttemptState.SUCCEEDED, 0, 1_000, 1_000, 1_000_000, 60_000, 1_001, 1),
        ),
        outcome_offset=1_001,
        undo_arguments=b'{"payment_intent": "pi_0123456789abcdef0123456789"}',
        call_id="0" * 32,
    )
    header = Header("w", 1, 1_000_000, Phase.RUNNING, lease_ms=30_000, steps=per_workflow)
    header_value, step_value = records.encode_header(header), records.encode_step(step)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    partition = Partition(0, Terms())
    for number in range(steps // per_workflow):
        key = f"workflow-{number:012}".encode()
        partition.restore(key, bytes(bytearray(header_value)))  # a copy of its own, as a client hands it over
        for index in range(per_workflow):
            partition.restore(records.step_key(key, index), bytes(bytearray(step_value)))
    partition.restored(10_000_000)
    took_s = time.perf_counter() - began
    return took_s, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1_024


async def claims(url: str, count: int = 2_000) -> list[int]:
    """Return how long a claim takes alone, in microseconds."""
    registry = RedisRegistry(connect(url))
    took_us: list[int] = []
    for number in range(count):
        request = ClaimRequest(f"bench-{time.time_ns()}-{number}", 0, "owner", 30_000)
        began = time.perf_counter_ns()
        await registry.claim((request,))
        took_us.append((time.perf_counter_ns() - began) // 1_000)
    await registry.close()
    return took_us


def claims_now(url: str) -> list[int]:
    return asyncio.run(claims(url))
