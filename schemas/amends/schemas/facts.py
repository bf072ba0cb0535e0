"""The facts of the ledger, one frozen class per Avro record (`avro/<Name>.avsc`; a test compares the two).

A fact names what it speaks of (attempt, generation or epoch, and `workflow_offset`, where the workflow's STARTED
stands on its partition, -1 if the writer does not know), so that a late or repeated one is never taken for another.
`timestamp_ms` is the writer's clock and is for people; order is by ledger offset, time is the broker's append time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from amends.schemas.contract import Effect
from amends.schemas.slots import quick

UNKNOWN_OFFSET = -1
"""`workflow_offset` of a writer that does not know it; 0 is a real offset."""

FENCE = "fence"
"""Attribute of a step's STARTED: "strict" where the agent waits until the fold has seen it."""


class StepStatus(StrEnum):
    REQUESTED = "REQUESTED"
    STARTED = "STARTED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    NOT_EXECUTED = "NOT_EXECUTED"
    HEARTBEAT = "HEARTBEAT"


class WorkflowStatus(StrEnum):
    STARTED = "STARTED"
    HEARTBEAT = "HEARTBEAT"
    SAVEPOINT = "SAVEPOINT"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CHILD_STARTED = "CHILD_STARTED"
    ROLLBACK_REQUESTED = "ROLLBACK_REQUESTED"
    CHILD_CLOSED = "CHILD_CLOSED"


class UndoStatus(StrEnum):
    STARTED = "STARTED"
    UNDONE = "UNDONE"
    NOTHING_TO_UNDO = "NOTHING_TO_UNDO"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    RELEASED = "RELEASED"
    DEFERRED = "DEFERRED"


class Decision(StrEnum):
    """What a Resolution says: the first three are evidence of a probe or a person, the others a person's ruling."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"
    RETRY = "retry"
    MARK_UNDONE = "mark_undone"
    MARK_ABSENT = "mark_absent"
    ACCEPT_LOSS = "accept_loss"
    APPROVE = "approve"
    REJECT = "reject"
    EDIT_ARGS = "edit_args"
    REPLAY_PLAN = "replay_plan"


class Party(StrEnum):
    """Who wrote a fact, or on whose behalf."""

    AGENT = "agent"
    COMPENSATOR = "compensator"
    PROCESSOR = "processor"
    PERSON = "person"
    PARENT = "parent"


class TimeoutKind(StrEnum):
    HEARTBEAT = "heartbeat"  # the workflow's lease
    DEADLINE = "deadline"
    STEP = "step"  # the lease of an open attempt of a step
    UNDO = "undo"  # the lease of an open attempt of an undo
    LADDER = "ladder"  # a step is unknown, has settled, and no rung is left to climb
    WINDOW = "window"  # the time in which a step can be undone is nearly over, or over


@quick
@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a record: the type's qualified name and a message without secrets."""

    type: str
    message: str


@quick
@dataclass(frozen=True, slots=True)
class ApprovalTerms:
    """What a person is asked to approve: one call, with these arguments."""

    argument_digest: str  # of the tool's name and its canonical arguments, whole
    requested_by: str = ""  # the person on whose behalf the agent asks, else the agent: he can't approve it
    stands_ms: int = 86_400_000  # how long the request stands


SCOPE = "scope"
"""Attribute of a workflow's STARTED: a mark that its scope alone has. A client that recovers may write it twice."""

BEHIND = "behind"
"""Attribute of a SAVEPOINT: the last place of the ledger that its agent had been acknowledged. One of the same name
that stands behind that is this fact, written before: an agent that takes a savepoint again knows where it was."""

ACCEPTED = "amends.Accepted"
"""`Failure.type` of an attempt that ended UNKNOWN because the remote took the request and does it later (202)."""

CHANGED_SINCE = "amends.ChangedSince"
"""`Failure.type` of an undo that was not begun: the world shows what its call did not write."""


@quick
@dataclass(frozen=True, slots=True)
class StepEvent:
    """One attempt (one send) of a step starts, ends, or is alive."""

    workflow_id: str
    step_id: str
    attempt: str  # process instance + count; no two sends share one
    epoch: int
    status: StepStatus
    tool_name: str
    agent_id: str = ""
    tool_version: str = ""
    workflow_offset: int = UNKNOWN_OFFSET
    side_effect_classification: Effect = Effect.UNCLASSIFIED
    writer: Party = Party.AGENT  # COMPENSATOR for a re-send: it does not renew the agent's lease
    call_id: str = ""
    input_payload: bytes | None = None
    output_payload: bytes | None = None
    payload_digest: str | None = None  # of the whole output where it was cut
    external_resource_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    error: Failure | None = None
    contract: bytes | None = None  # on a step's STARTED: an encoded Contract
    undo_arguments: bytes | None = None  # JSON object, as soon as it can be resolved; at most 4 kB
    captured: bytes | None = None  # the before-image
    after: tuple[str, ...] = ()  # step ids this one was built on, as told
    lease_ms: int | None = None  # overrides the contract's for this attempt
    timestamp_ms: int = 0
    traceparent: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    written: bytes | None = None  # SUCCEEDED: the after-image, what the capture read once the call had happened
    call_digest: str = ""  # STARTED: of the tool's name and its canonical arguments; equal calls have equal ones
    data_flow: int = 0  # rules by which `uses`, `touches`, `makes` were found (`data_flow.RULES`); 0: nobody looked
    uses: tuple[str, ...] = ()  # STARTED: digests of what in the input could be an id
    touches: tuple[str, ...] = ()  # STARTED: digests of the keys that the contract's `resources` find in the input
    makes: tuple[str, ...] = ()  # SUCCEEDED: digests of the declared ids and of what in the output could be one
    approval: ApprovalTerms | None = None  # REQUESTED, and STARTED of a call that was approved


@quick
@dataclass(frozen=True, slots=True)
class WorkflowEvent:
    """Something about the workflow as a whole."""

    workflow_id: str
    epoch: int
    status: WorkflowStatus
    agent_id: str = ""
    workflow_offset: int = UNKNOWN_OFFSET
    writer: Party = Party.AGENT
    instance: str = ""  # the process that wrote it; a second STARTED by another instance is a resume
    lease_ms: int | None = None  # how long the agent may be silent; on STARTED and HEARTBEAT
    deadline_ms: int | None = None  # longest run, from STARTED
    by: str = ""  # the person or parent behind a request
    reason: str = ""
    error: Failure | None = None
    savepoint: str | None = None  # SAVEPOINT: its name; ROLLBACK_REQUESTED: the scope, None for the whole
    parent_workflow_id: str | None = None
    parent_workflow_offset: int = UNKNOWN_OFFSET
    child_workflow_id: str | None = None
    child_started_at_ms: int | None = None  # append time of CHILD_STARTED, in a parent's request
    detached: bool = False
    closed_as: str | None = None  # CHILD_CLOSED: the child's last phase
    timestamp_ms: int = 0
    traceparent: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    policy: bytes | None = None  # STARTED: an encoded policy (`policy.py`); None is the default one


@quick
@dataclass(frozen=True, slots=True)
class UndoEvent:
    """One attempt of an undo, in one generation, starts or ends."""

    workflow_id: str
    step_id: str
    generation: int
    attempt: int
    status: UndoStatus
    owner: str  # one delivery, not a host
    workflow_offset: int = UNKNOWN_OFFSET
    tool_name: str = ""
    retryable: bool = True  # FAILED only: False is "for good"
    key_refused: bool = False  # FAILED only: the remote will answer this key with this refusal for ever
    verified: bool = False
    evidence: str = ""
    lease_ms: int | None = None  # STARTED only
    output_payload: bytes | None = None
    error: Failure | None = None
    timestamp_ms: int = 0
    traceparent: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])


@quick
@dataclass(frozen=True, slots=True)
class Resolution:
    """Evidence of a probe, or a person's ruling."""

    workflow_id: str
    decision: Decision
    writer: Party
    by: str  # the person, or the compensator's instance
    step_id: str | None = None
    workflow_offset: int = UNKNOWN_OFFSET
    version: int | None = None  # of the incident a person decided on; it does nothing to another
    attempts: tuple[str, ...] = ()  # evidence speaks only for the attempts it names
    probe_number: int | None = None
    approved_by: str | None = None  # the second person, where policy wants one
    reason: str = ""
    evidence: str = ""
    output_payload: bytes | None = None
    undo_arguments: bytes | None = None
    external_resource_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    unread_offset: int | None = None  # rules on the unreadable record that stands there
    error: Failure | None = None
    timestamp_ms: int = 0
    traceparent: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    data_flow: int = 0  # present: the rules by which `makes` was found; 0: nobody looked
    makes: tuple[str, ...] = ()  # present: digests of what in the output could be an id
    step_epoch: int | None = None  # approve, reject: the epoch in which the call was asked for
    argument_digest: str = ""  # approve, reject: what it was asked for with
    expires_at_ms: int | None = None  # approve: the call may be started until then, by the broker's clock


@quick
@dataclass(frozen=True, slots=True)
class Timeout:
    """A proposal: a lease or deadline ran out. The fold accepts it if it is past due and nothing renewed it."""

    workflow_id: str
    kind: TimeoutKind
    epoch: int
    armed_offset: int  # the fact that armed the timer
    due_at_ms: int
    workflow_offset: int = UNKNOWN_OFFSET
    step_id: str | None = None
    attempt: str | None = None  # STEP: the attempt
    generation: int | None = None  # UNDO
    undo_attempt: int | None = None  # UNDO
    timestamp_ms: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])


@quick
@dataclass(frozen=True, slots=True)
class Carry:
    """The state of an open workflow, written before the ledger forgets its start."""

    workflow_id: str
    workflow_offset: int
    folded_to: int
    state: bytes
    timestamp_ms: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])


Fact = StepEvent | WorkflowEvent | UndoEvent | Resolution | Timeout | Carry
