"""A call as it is asked for, and as its intent on the ledger. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from amends.producers.effects import Admit, Admitted, Standing
from amends.producers.fencing import is_strict
from amends.producers.outcome import Call, Limits, undo_arguments_known_before
from amends.schemas.contract import STRICT, Contract
from amends.schemas.contract import Effect as EffectClass
from amends.schemas.data_flow import RULES, call_digest, ids_in
from amends.schemas.facts import FENCE, Failure, StepEvent, StepStatus, WorkflowEvent, WorkflowStatus
from amends.tools.touches import touches_of

APPROVAL_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class ScopeTerms:
    """What all calls of a workflow share. Waits are bounds, in milliseconds."""

    workflow_id: str
    agent_id: str = ""
    lease_ms: int = 30_000
    call_max_ms: int = 3_600_000  # a call that is under way for longer hangs
    standing_within_ms: int = 10_000
    owed_within_ms: int = 10_000
    confirm_within_ms: int = 10_000
    limits: Limits = field(default_factory=Limits)
    traceparent: str | None = None
    requested_by: str = ""  # the person on whose behalf the agent acts: he can't approve its calls
    approval_within_ms: int = 60_000
    approve_irreversible: bool = False  # whatever a tool declares
    instance: str = ""  # of the process: only the one that runs the workflow claims its success or its failure

    def approval_ms(self, contract: Contract) -> int | None:
        """Return for how long a call is to be asked for, None if nobody needs to approve it."""
        if contract.approval_ms is None and self.approve_irreversible and contract.effect is EffectClass.IRREVERSIBLE:
            return APPROVAL_MS
        return contract.approval_ms


def admit_of(
    call: Call, canonical: str, standing: Standing, *, repeatable: bool = False, approval: bool = False
) -> Admit:
    declared = call.contract.repeatable if call.repeatable is None else call.repeatable
    return Admit(
        contract=call.contract,
        canonical=canonical,
        call_id=call.call_id,
        repeatable=repeatable or declared,
        standing=standing,
        after=call.after,
        call_digest=call_digest(canonical),
        tool_call_id=call.tool_call_id,
        approval=approval,
    )


def started_of(
    call: Call,
    terms: ScopeTerms,
    standing: Standing,
    admit: Admit,
    admission: Admitted,
    payload: bytes | None,
    wall_ms: int,
) -> StepEvent:
    contract = call.contract
    return StepEvent(
        workflow_id=terms.workflow_id,
        step_id=admission.step_id,
        attempt=admission.attempt,
        epoch=standing.epoch,
        status=StepStatus.STARTED,
        tool_name=contract.tool_name,
        agent_id=terms.agent_id,
        tool_version=contract.tool_version,
        workflow_offset=standing.workflow_offset,
        side_effect_classification=contract.effect,
        call_id=admission.call_id,
        input_payload=payload,
        contract=call.contract_bytes,
        undo_arguments=undo_arguments_known_before(call, None),
        after=admission.after,
        lease_ms=contract.call.lease_ms if call.lease_ms is None else call.lease_ms,
        timestamp_ms=wall_ms,
        traceparent=terms.traceparent,
        attributes={FENCE: STRICT} if is_strict(contract, approved=admit.approval) else {},
        call_digest=admit.call_digest,
        data_flow=RULES,
        uses=ids_in(call.arguments),
        touches=touches_of(contract, call.arguments),
    )


def request_of(started: StepEvent) -> StepEvent:
    """Return the fact that asks a person for the call that `started` would begin."""
    return replace(started, status=StepStatus.REQUESTED, lease_ms=None, undo_arguments=None, attributes={})


def workflow_event(
    terms: ScopeTerms,
    standing: Standing,
    status: WorkflowStatus,
    wall_ms: int,
    error: Failure | None = None,
    *,
    lease_ms: int | None = None,
    instance: str = "",
    savepoint: str | None = None,
    reason: str = "",
) -> WorkflowEvent:
    """Return a fact about the workflow as a whole, by an agent that stands there.

    Args:
        instance: this agent's; where it is named, who reads what others wrote knows its own.
    """
    return WorkflowEvent(
        workflow_id=terms.workflow_id,
        epoch=standing.epoch,
        status=status,
        agent_id=terms.agent_id,
        workflow_offset=standing.workflow_offset,
        instance=instance,
        lease_ms=lease_ms,
        error=error,
        reason=reason,
        savepoint=savepoint,
        timestamp_ms=wall_ms,
        traceparent=terms.traceparent,
    )
