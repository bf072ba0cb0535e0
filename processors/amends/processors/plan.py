"""The plan: what is to be done next about the condemned steps of a workflow, computed from state and never stored.

A step whose undo is open or waits for its backoff, or that is open or unknown itself, holds what it was built on
(`dependencies`), and nothing else. A step that is an incident holds nothing: a failed undo never blocks.
Undos that follow one another in one lane are one command, a run (`runs`); what has nothing to do with one another is
commanded side by side. Probes change nothing in the world and wait for nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from amends.processors.agenda import NEVER, Due
from amends.processors.ladder import Rung, climb, span_of
from amends.processors.runs import BOUNDS, Bounds, Run, ready
from amends.processors.state import (
    CLOSED_PHASES,
    CLOSED_UNDO,
    NOWHERE,
    UNDO_DUE,
    Standing,
    Step,
    Undo,
    arguments_of,
    is_key_remembered,
    owed,
    standing,
)
from amends.processors.undos import forgotten_at_ms, shows_whether_undone
from amends.processors.workflow import Workflow
from amends.schemas.commands import Command, Phase, ProbeCommand, ResendCommand, UndoCommand, UndoEntry
from amends.schemas.contract import COMPARE, Contract, Idempotency, UndoTerms, lane_of
from amends.schemas.keys import forward_key, undo_key

COMMANDED_MAX = 32
"""Of more steps that are owed the order is asked, which costs each fact only what it changed."""
NONE: Mapping[tuple[object, ...], int] = MappingProxyType({})


@dataclass(slots=True)
class Plan:
    """What can be commanded at `now_ms`, and when the next of it can be."""

    commands: list[Command]
    as_of: int
    wake_at_ms: int | None = None
    children: list[Step] = field(default_factory=list[Step])  # to be asked to be undone

    def wake(self, at_ms: int) -> None:
        if self.wake_at_ms is None or at_ms < self.wake_at_ms:
            self.wake_at_ms = at_ms


def plan(
    workflow: Workflow, as_of: int, now_ms: int, bounds: Bounds = BOUNDS, fresh: Mapping[tuple[object, ...], int] = NONE
) -> Plan:
    """Return the commands of a workflow.

    Args:
        as_of: the partition's offset up to which everything is folded: where a compensator begins to read back.
        fresh: until when what was commanded need not be again, by step, generation and attempt. While that holds of all
            that is owed, or it is under way, nothing is ordered or returned: most facts of an undo cost no more.
    """
    made = Plan([], as_of)
    header = workflow.header
    if header.observe:
        return made
    asked = _asked(workflow, fresh, now_ms, made) if workflow.probes.known else []
    if asked and header.phase is Phase.FINISHING:
        made.commands.extend(_probe(workflow, s, c, as_of, now_ms) for s, c in asked if s.number not in workflow.owing)
    if workflow.owing and not _is_commanded(workflow, fresh, now_ms, made):
        made.commands.extend(_probe(workflow, s, c, as_of, now_ms) for s, c in asked if s.number in workflow.owing)
        _plan_undos(workflow, bounds, now_ms, made)
    return made


def _asked(
    workflow: Workflow, fresh: Mapping[tuple[object, ...], int], now_ms: int, made: Plan
) -> list[tuple[Step, Contract]]:
    """Return the steps that are to be probed now, in the order of first sight."""
    phase, probes = workflow.header.phase, workflow.probes
    probes.refresh(now_ms, phase, lambda number: _probe_due(workflow, workflow.steps[number], now_ms))
    asked: list[tuple[Step, Contract]] = []
    for number in sorted(probes.due(now_ms)):
        step = workflow.steps[number]
        contract = workflow.contract_of(step)
        assert contract is not None
        until_ms = 0 if phase in CLOSED_PHASES else fresh.get(_name_of(step), 0)
        if until_ms > now_ms:  # of many that are unknown each fact would make each command anew
            probes.put_off(number, until_ms)
        else:
            asked.append((step, contract))
    next_ms = probes.next_ms(now_ms)
    if next_ms is not None:
        made.wake(next_ms)
    return asked


def _is_commanded(workflow: Workflow, fresh: Mapping[tuple[object, ...], int], now_ms: int, made: Plan) -> bool:
    """Whether all that is owed is under way, was commanded and need not be again yet, or is an incident; where steps
    stand in one order, all that is not held by a later one. What became ready by the last fact and was not a member of
    a run that was commanded, or was held back, is not in `fresh`."""
    if len(workflow.owing) > COMMANDED_MAX or workflow.header.phase in CLOSED_PHASES:
        return False
    if not workflow.unsure.isdisjoint(workflow.owing):
        return False
    if workflow.is_in_one_order:
        first = workflow.first_in_order()
        owed_now = [] if first is None else [first]
    else:
        owed_now = [workflow.steps[number] for number in workflow.owing]
    soonest_ms: int | None = None
    for step in owed_now:
        undo = step.undo
        if undo is None or undo.state in CLOSED_UNDO:
            return False
        if undo.state is UNDO_DUE:
            until_ms = fresh.get((step.step_id, undo.generation, undo.attempt), 0)
            if until_ms <= now_ms:
                return False
            soonest_ms = until_ms if soonest_ms is None else min(soonest_ms, until_ms)
    if soonest_ms is not None:
        made.wake(soonest_ms)
    return True


def _probe_due(workflow: Workflow, step: Step, now_ms: int) -> Due:
    """Return when a step can be probed next: one that is owed, or that a claim of success waits for."""
    contract = workflow.contract_of(step)
    if contract is None or contract.probe is None or step.number not in workflow.unsure:
        return NEVER
    condemned = step.number in workflow.condemned
    if step.number not in workflow.owing and (condemned or workflow.header.phase is not Phase.FINISHING):
        return NEVER
    what = owed(step, contract) if condemned else standing(step)
    if what is not Standing.UNKNOWN:
        return NEVER
    next_rung = climb(step, what, contract, condemned=condemned, now_ms=now_ms)
    return Due(next_rung.at_ms if next_rung.rung is Rung.PROBE else None, *span_of(step, contract, now_ms))


def _plan_undos(workflow: Workflow, bounds: Bounds, now_ms: int, made: Plan) -> None:
    found = ready(workflow, bounds, now_ms, made.wake)
    made.children = found.children
    for step, contract in found.unsure:
        _plan_resend(workflow, step, contract, now_ms, made)
    made.commands.extend(_run(workflow, run, made.as_of, now_ms) for run in found.runs)


def _plan_resend(workflow: Workflow, step: Step, contract: Contract, now_ms: int, made: Plan) -> None:
    what = owed(step, contract)
    next_rung = climb(step, what, contract, condemned=True, now_ms=now_ms)
    if next_rung.rung is not Rung.RESEND:
        return
    if next_rung.at_ms > now_ms:
        made.wake(next_rung.at_ms)
    else:
        made.commands.append(_resend(workflow, step, contract, made.as_of, now_ms))


def _name_of(step: Step) -> tuple[object, ...]:
    return probe_name(step.step_id, step.probes, tuple(a.name for a in step.attempts))


def probe_name(step_id: str, number: int, attempts: tuple[str, ...]) -> tuple[object, ...]:
    """Return what a probe is about: the name under which it is remembered as commanded."""
    return ("probe", step_id, number, attempts)


# --- commands ---------------------------------------------------------------------------------------------------------


def _run(workflow: Workflow, run: Run, as_of: int, now_ms: int) -> UndoCommand:
    header = workflow.header
    entries = tuple(entry(step, contract, now_ms) for step, contract in run)
    safe = all(e.idempotency is not Idempotency.NEITHER for e in entries)
    return UndoCommand(
        workflow_id=header.workflow_id,
        workflow_offset=header.started_offset,
        epoch=header.epoch,
        lane=lane_of(run[0][1]),
        as_of=as_of,
        entries=entries,
        at_once=safe and len(entries) > 1,
        timestamp_ms=now_ms,
        traceparent=header.traceparent,
        whole=any(turn.final and turn.offset == NOWHERE for turn in header.turns),
    )


def entry(step: Step, contract: Contract, now_ms: int) -> UndoEntry:
    """Return one undo of a command, for the attempt that is granted."""
    undo = step.undo or Undo()
    terms = contract.undo or UndoTerms(handler=step.tool_name, lane="default")
    idempotency = terms.idempotency
    is_used = idempotency is Idempotency.KEY and undo.first_opened_at_ms > 0
    if is_used and not is_key_remembered(terms, undo.first_opened_at_ms, now_ms):
        idempotency = Idempotency.NEITHER
    return UndoEntry(
        step_id=step.step_id,
        tool_name=step.tool_name,
        tool_version=step.tool_version,
        handler=terms.handler,
        kind=terms.kind,
        generation=undo.generation,
        attempt=undo.attempt,
        key=undo_key(step.step_id, undo.generation),
        arguments=arguments_of(step) or b"{}",
        lease_ms=terms.lease_ms,
        settle_ms=terms.settle_ms,
        idempotency=idempotency,
        verify=contract.verify.handler if contract.verify is not None else None,
        verify_first=undo.doubt and shows_whether_undone(contract),
        started_offset=step.first_offset,
        outcome_offset=step.outcome_offset,
        compares=contract.restores == COMPARE,
        polls=now_ms < undo.accepted_until_ms and shows_whether_undone(contract),
        not_after_ms=forgotten_at_ms(undo, contract),
    )


def _probe(workflow: Workflow, step: Step, contract: Contract, as_of: int, now_ms: int) -> ProbeCommand:
    assert contract.probe is not None
    header = workflow.header
    return ProbeCommand(
        workflow_id=header.workflow_id,
        workflow_offset=header.started_offset,
        epoch=header.epoch,
        lane=lane_of(contract),
        as_of=as_of,
        step_id=step.step_id,
        tool_name=step.tool_name,
        tool_version=step.tool_version,
        handler=contract.probe.handler,
        kind=contract.probe.kind,
        number=step.probes,
        attempts=tuple(a.name for a in step.attempts),
        lease_ms=contract.probe.lease_ms,
        key=forward_key(step.step_id),
        started_offset=step.first_offset,
        timestamp_ms=now_ms,
        traceparent=header.traceparent,
        outcome_offset=step.outcome_offset,
    )


def _resend(workflow: Workflow, step: Step, contract: Contract, as_of: int, now_ms: int) -> ResendCommand:
    header = workflow.header
    return ResendCommand(
        workflow_id=header.workflow_id,
        workflow_offset=header.started_offset,
        epoch=header.epoch,
        lane=lane_of(contract),
        as_of=as_of,
        step_id=step.step_id,
        tool_name=step.tool_name,
        tool_version=step.tool_version,
        number=step.resends,
        attempts=tuple(a.name for a in step.attempts),
        key=forward_key(step.step_id),
        lease_ms=contract.call.lease_ms,
        settle_ms=contract.call.settle_ms,
        idempotency=contract.call.idempotency,
        started_offset=step.first_offset,
        timestamp_ms=now_ms,
        traceparent=header.traceparent,
        not_after_ms=_forgets_at_ms(step, contract),
    )


def _forgets_at_ms(step: Step, contract: Contract) -> int | None:
    """When the remote of a call forgets its key; None: never, or it needs none."""
    reusable_ms = contract.call.key_reusable_ms
    if contract.call.idempotency is not Idempotency.KEY or reusable_ms is None:
        return None
    return step.first_at_ms + reusable_ms
