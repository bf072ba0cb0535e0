"""What the processor emits: commands on undo lanes, the echo, incidents, dead letters.

All of it is a function of state. A command names generation, attempt and `as_of` (the last offset folded when it was
computed), so that a stale copy loses the read back and does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from amends.schemas.contract import Idempotency
from amends.schemas.slots import quick


@quick
@dataclass(frozen=True, slots=True)
class UndoEntry:
    """One undo of a run."""

    step_id: str
    tool_name: str
    handler: str
    generation: int
    attempt: int
    key: str  # the idempotency key of the undo, and its key in the registry
    arguments: bytes  # JSON object
    lease_ms: int
    settle_ms: int
    idempotency: Idempotency
    tool_version: str = ""
    kind: str = "python"
    verify: str | None = None  # handler of the verify, where there is one
    verify_first: bool = False  # an attempt before this one ended UNKNOWN: ask before doing
    started_offset: int = -1  # where the step's STARTED stands: contract and input
    outcome_offset: int = -1  # where its output stands, -1 if none is known
    compares: bool = False  # undo only if the world still shows what the step wrote
    polls: bool = False  # the remote took the undo and may still be at it: ask `verify`, run nothing
    not_after_ms: int | None = None  # by the lane's wall clock: after it the remote has forgotten the key; None: never


@quick
@dataclass(frozen=True, slots=True)
class UndoCommand:
    """A run: undos of one workflow and lane in plan order. A single undo is a run of one."""

    workflow_id: str
    workflow_offset: int
    epoch: int
    lane: str
    as_of: int
    entries: tuple[UndoEntry, ...]
    at_once: bool = False  # every remote takes a key or is naturally idempotent: all may be STARTED at once
    timestamp_ms: int = 0
    traceparent: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    whole: bool = False  # all of the workflow is condemned, so that no trigger condemns more


@quick
@dataclass(frozen=True, slots=True)
class ProbeCommand:
    """Ask the world whether the named attempts of a step happened. Answered by a Resolution that echoes them."""

    workflow_id: str
    workflow_offset: int
    epoch: int
    lane: str
    as_of: int
    step_id: str
    tool_name: str
    handler: str
    number: int
    attempts: tuple[str, ...]
    lease_ms: int
    key: str  # the forward key
    started_offset: int
    tool_version: str = ""
    kind: str = "python"
    timestamp_ms: int = 0
    traceparent: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    outcome_offset: int = -1  # where the answer of a remote that took the request stands, -1 if there is none


@quick
@dataclass(frozen=True, slots=True)
class ResendCommand:
    """Send the call of a condemned step again with the same key, as a new attempt (STARTED, read back, outcome)."""

    workflow_id: str
    workflow_offset: int
    epoch: int
    lane: str
    as_of: int
    step_id: str
    tool_name: str
    number: int
    attempts: tuple[str, ...]  # all attempts known at as_of
    key: str  # the forward key
    lease_ms: int
    settle_ms: int
    idempotency: Idempotency
    started_offset: int
    tool_version: str = ""
    timestamp_ms: int = 0
    traceparent: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    not_after_ms: int | None = None  # by the lane's wall clock: after it the remote has forgotten the key; None: never


class Phase(StrEnum):
    """Where a workflow stands."""

    NONE = "NONE"  # no STARTED was seen: only strays or unreadable records
    RUNNING = "RUNNING"
    FINISHING = "FINISHING"
    SUCCEEDED = "SUCCEEDED"
    TURNED = "TURNED"
    COMPENSATED = "COMPENSATED"
    CLOSED_WITH_LOSS = "CLOSED_WITH_LOSS"


@quick
@dataclass(frozen=True, slots=True)
class EndedEpoch:
    """A turn, as its agent has to know it: which calls it condemned."""

    epoch: int  # the last epoch it ended
    offset: int  # condemned are those STARTED behind it; -1 is the whole workflow


@quick
@dataclass(frozen=True, slots=True)
class ToldStep:
    """A step in a story: what became of it, for code."""

    step_id: str
    tool_name: str
    call_id: str
    fate: str  # in words: "undone", "did not happen", "NOT undone: a person must decide"
    is_open: bool  # something is still owed of it
    residue: str = ""  # what a perfect undo of it leaves behind


@quick
@dataclass(frozen=True, slots=True)
class ToldApproval:
    """How it stands with the approval of a call that was not made yet."""

    step_id: str
    state: str  # of `approvals.ApprovalState`
    epoch: int
    argument_digest: str
    version: int
    by: str = ""  # who decided; where it is used, the attempt that did
    reason: str = ""
    until_ms: int = 0  # the request, or the grant, stands until then, by the broker's clock


@quick
@dataclass(frozen=True, slots=True)
class WorkflowEcho:
    """What the fold decided about a workflow, for its agent and for people. Readers drop a lower `folded_to`."""

    workflow_id: str
    workflow_offset: int
    epoch: int
    phase: Phase
    folded_to: int
    story: str = ""
    incidents_open: int = 0
    agent_id: str = ""
    started_at_ms: int = 0
    answers_offset: int = -1  # the workflow STARTED this echo answers, last one seen
    timestamp_ms: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    open_undos: int = 0  # condemned steps that are being brought to their end by machines
    dead_undos: int = 0  # condemned steps that wait for a person
    savepoint: str = ""  # what the last turn was to, "" for the whole workflow
    turns: tuple[EndedEpoch, ...] = ()
    steps: tuple[ToldStep, ...] = ()  # what the last turn condemned, newest first, while the workflow goes on
    approvals: tuple[ToldApproval, ...] = ()  # of calls that a person was asked for and that were not made
    scope: str = ""  # the mark of the scope whose STARTED began the workflow


class IncidentState(StrEnum):
    OPEN = "OPEN"
    CLOSED = "CLOSED"


@quick
@dataclass(frozen=True, slots=True)
class Incident:
    """Something a person must decide."""

    incident_id: str
    kind: str
    state: IncidentState
    version: int  # a Resolution names it
    summary: str  # one line
    detail: str  # what ran, what was undone, what is unknown, what to do
    workflow_id: str = ""
    workflow_offset: int = -1
    step_id: str | None = None
    tool_name: str = ""
    lane: str = ""
    agent_id: str = ""
    partition: int = -1
    folded_to: int = -1
    opened_at_ms: int = 0
    closed_at_ms: int | None = None
    closed_by: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])


@quick
@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An undo given up on. `text` is for a person; `original` is the last command, byte for byte."""

    workflow_id: str
    workflow_offset: int
    step_id: str
    tool_name: str
    lane: str
    incident_id: str
    reason: str
    text: str
    generation: int
    attempt: int
    attempts_spent: int
    key: str
    arguments: bytes
    original: bytes
    last_error: str = ""
    folded_to: int = -1
    timestamp_ms: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])


Command = UndoCommand | ProbeCommand | ResendCommand
Output = Command | WorkflowEcho | Incident | DeadLetter
