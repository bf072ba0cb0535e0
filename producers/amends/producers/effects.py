"""What a flow asks of the world, and what the world may answer.

A flow (`flow.py`, `scope_flow.py`) is a generator that yields one of these and is sent the answer. Whoever drives it
(a thread, a task, the simulation) does what is asked and nothing else, so that every crash point of the producer lies
between two of them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from amends.schemas.commands import EndedEpoch, Phase, ToldApproval, ToldStep
from amends.schemas.contract import Contract
from amends.schemas.facts import UNKNOWN_OFFSET, Fact, StepEvent, WorkflowEvent
from amends.schemas.slots import quick
from amends.tools.handlers import Handler

# --- answers --------------------------------------------------------------------------------------------------------


@quick
@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The fact stands on the ledger, acknowledged by all in-sync replicas."""

    offset: int
    appended_at_ms: int = 0


@quick
@dataclass(frozen=True, slots=True)
class Unwritten:
    """The fact is certainly not on the ledger. `too_large`: nor will it ever be, it is larger than the ledger takes."""

    reason: str
    too_large: bool = False


@quick
@dataclass(frozen=True, slots=True)
class Uncertain:
    """The fact may be on the ledger, or may still come to stand there."""

    reason: str


Write = Acknowledged | Unwritten | Uncertain


@quick
@dataclass(frozen=True, slots=True)
class Standing:
    """What the echo last said of a workflow. Never older than the workflow's own STARTED."""

    workflow_offset: int
    epoch: int
    phase: Phase
    story: str = ""
    known: bool = True  # the agent has been told of this epoch; if not, its calls are of one that is over
    open_undos: int = 0  # condemned steps that are being undone
    dead_undos: int = 0  # condemned steps that wait for a person
    savepoint: str = ""  # what the last turn was to
    turns: tuple[EndedEpoch, ...] = ()
    steps: tuple[ToldStep, ...] = ()
    approvals: tuple[ToldApproval, ...] = ()  # of calls that a person was asked for and that were not made
    own: bool = False  # it began with this scope's STARTED, whichever copy of it counts


@quick
@dataclass(frozen=True, slots=True)
class Instant:
    """`elapsed_ms` only grows and counts sleep too; `wall_ms` is for people."""

    elapsed_ms: int
    wall_ms: int = 0


@quick
@dataclass(frozen=True, slots=True)
class Returned:
    """The body returned. `accepted` is what it said of a remote that only took the request and does it later."""

    value: Any
    accepted: str | None = None


@quick
@dataclass(frozen=True, slots=True)
class Raised:
    """The body raised, was cancelled, or ran out of time."""

    error: BaseException


Result = Returned | Raised


@quick
@dataclass(frozen=True, slots=True)
class Admitted:
    """The call is made, as this attempt of this step."""

    step_id: str
    call_id: str
    attempt: str
    after: tuple[str, ...] = ()  # ids of the steps it was built on, as told
    captured: bytes | None = None  # the before-image of an earlier attempt of the step
    again: bool = False  # an earlier attempt may have had the step's effect


@quick
@dataclass(frozen=True, slots=True)
class Recorded:
    """The call was made before and succeeded: its result. `payload` is None where it was too large to be recorded."""

    step_id: str
    payload: bytes | None


@quick
@dataclass(frozen=True, slots=True)
class Pending:
    """The same call is open (`open`) or its outcome unknown, and the remote would do it a second time."""

    step_id: str
    open: bool


@quick
@dataclass(frozen=True, slots=True)
class Repeated:
    """An equal call was made and succeeded, and its tool wants to hear of that. `payload` is None where the record does
    not hold the result."""

    step_id: str
    payload: bytes | None


@quick
@dataclass(frozen=True, slots=True)
class Closed:
    """The call would be a new one, and the workflow makes none any more: it has claimed success."""


NotMade = Recorded | Pending | Repeated | Closed
Admission = Admitted | NotMade

# --- effects --------------------------------------------------------------------------------------------------------


@quick
@dataclass(frozen=True, slots=True)
class AwaitStanding:
    """Wait, bounded, until the processor has answered our STARTED. Answer: Standing, or None."""


@quick
@dataclass(frozen=True, slots=True)
class AwaitEnd:
    """Wait, bounded, until the echo shows that the workflow no longer runs in `epoch` and is not FINISHING. Answer:
    Standing, or None."""

    epoch: int


@quick
@dataclass(frozen=True, slots=True)
class AwaitPlan:
    """Wait, bounded, until the echo shows an epoch after `epoch` in which no machine has anything left to undo, or that
    nobody goes on. It speaks as of `offset` (None: of all that this scope has written) or later: what stands before it
    may be condemned with that epoch. Answer: Standing, or None."""

    epoch: int
    offset: int | None
    within_ms: int


@quick
@dataclass(frozen=True, slots=True)
class MeetSavepoint:
    """Count a savepoint. Answer: True if an earlier instance of the agent took it at this place, so that it stands."""

    name: str
    standing: Standing


@quick
@dataclass(frozen=True, slots=True)
class KeepSavepoint:
    """A savepoint stands on the ledger. Answer: None."""

    name: str
    epoch: int
    offset: int


@quick
@dataclass(frozen=True, slots=True)
class NameSavepoints:
    """Answer: the names of the savepoints that may be undone to, oldest first."""

    standing: Standing


@quick
@dataclass(frozen=True, slots=True)
class GoOn:
    """The agent has been told what was undone, and goes on in this epoch. Answer: None."""

    standing: Standing


@quick
@dataclass(frozen=True, slots=True)
class AwaitOwed:
    """Wait, bounded, until every queued fact of the workflow is on the ledger. Answer: True, or False."""


@quick
@dataclass(frozen=True, slots=True)
class Admit:
    """Name the step and the attempt of a call. Answer: Admission."""

    contract: Contract
    canonical: str  # tool and arguments; a call without an id of its own is named by it and a count
    call_id: str | None
    repeatable: bool
    standing: Standing
    after: tuple[str, ...] = ()  # call ids or step ids of what it was built on
    call_digest: str = ""  # of `canonical`
    tool_call_id: str | None = None  # a model's: equal calls under other such ids are one
    approval: bool = False  # a person is asked first


@quick
@dataclass(frozen=True, slots=True)
class AdmitAgain:
    """Look once more whether another process makes this call, now that its intent stands at `offset`: the first there
    makes it. Answer: Admission."""

    asked: Admit
    admitted: Admitted
    offset: int
    wall_ms: int  # when the intent was written


@quick
@dataclass(frozen=True, slots=True)
class ReadClock:
    """Answer: Instant."""


@quick
@dataclass(frozen=True, slots=True)
class LookAtEcho:
    """Answer at once: the newest Standing, or None."""


@quick
@dataclass(frozen=True, slots=True)
class AwaitFold:
    """Wait, bounded, until the echo speaks as of `offset` or later. Answer: Standing, or None."""

    offset: int
    within_ms: int


@quick
@dataclass(frozen=True, slots=True)
class AwaitApproval:
    """Wait, bounded, until a person has decided on a call, or `epoch` is over. Answer: Standing, or None."""

    step_id: str
    argument_digest: str
    epoch: int
    within_ms: int


@quick
@dataclass(frozen=True, slots=True)
class WriteFact:
    """Append to the ledger and wait for the acknowledgement. Answer: Write."""

    fact: StepEvent | WorkflowEvent


@quick
@dataclass(frozen=True, slots=True)
class QueueFact:
    """Append to the ledger in the background, again and again until it stands there; until then the workflow owes it.
    Never waits. Answer: None."""

    fact: StepEvent | WorkflowEvent


@quick
@dataclass(frozen=True, slots=True)
class Invoke:
    """Run the body of the tool with this idempotency key. Answer: Result."""

    key: str
    step_id: str
    attempt: str
    lease_ms: int
    workflow_offset: int = UNKNOWN_OFFSET
    started_offset: int = UNKNOWN_OFFSET  # where the STARTED stands


@quick
@dataclass(frozen=True, slots=True)
class ReadImage:
    """Run the tool's capture. Answer: Result."""

    capture: Handler
    arguments: Mapping[str, Any]


@quick
@dataclass(frozen=True, slots=True)
class Withdraw:
    """Forget an attempt of which nothing was written and nothing was sent. Answer: None."""

    admitted: Admitted


@quick
@dataclass(frozen=True, slots=True)
class Follow:
    """Listen to the workflow's echo, from before whatever is written next. Answer: None."""


@quick
@dataclass(frozen=True, slots=True)
class ReadHistory:
    """Read the workflow's facts on [from_offset, to_offset]. Answer: tuple[tuple[int, Fact], ...]."""

    from_offset: int
    to_offset: int


@quick
@dataclass(frozen=True, slots=True)
class ReadOthers:
    """Read what other processes wrote for the workflow up to `to_offset`, as far as that is not known. At once if none
    runs it, unless the fold says that one does. Answer: tuple[tuple[int, Fact], ...]."""

    to_offset: int
    surely: bool = False


@quick
@dataclass(frozen=True, slots=True)
class Remember:
    """Take over what another instance of the agent did. Answer: None."""

    history: tuple[tuple[int, Fact], ...]


Effect = (
    AwaitStanding
    | AwaitEnd
    | AwaitPlan
    | AwaitOwed
    | AwaitFold
    | AwaitApproval
    | MeetSavepoint
    | KeepSavepoint
    | NameSavepoints
    | GoOn
    | Admit
    | AdmitAgain
    | ReadClock
    | LookAtEcho
    | WriteFact
    | QueueFact
    | Invoke
    | ReadImage
    | Withdraw
    | Follow
    | ReadHistory
    | ReadOthers
    | Remember
)

CallFlow = Generator[Effect, Any, Result]
