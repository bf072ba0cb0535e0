"""How a tool is declared and undone: decorators, `Step`, answers, and where handlers are found. Pure; no Kafka."""

from amends.tools.answers import (
    Absent,
    AlreadyUndone,
    NothingToUndo,
    NotUndone,
    Present,
    ProbeAnswer,
    StillThere,
    UndoAnswer,
    Undone,
    Unknown,
    VerifyAnswer,
)
from amends.tools.declaration import Tool
from amends.tools.decorators import (
    DeclaredTool,
    compensable,
    irreversible,
    options,
    read_only,
    reversible,
    unclassified,
)
from amends.tools.errors import (
    AlreadyRunning,
    AmendsError,
    ContractError,
    LedgerUnavailable,
    LedgerUncertain,
    NotApproved,
    NotConfirmed,
    OutcomeUnknown,
    OutsideWorkflow,
    Rejected,
    WorkflowTurned,
)
from amends.tools.handlers import Handler, Role
from amends.tools.registry import HandlerRegistry, needs_step
from amends.tools.runner import BoundCall, CallOptions, Runner, RunningStep, current_step, set_outside, set_testing
from amends.tools.secrecy import Secret, secret
from amends.tools.shape import KEY
from amends.tools.step import Step, step_from_facts

__all__ = [
    "KEY",
    "Absent",
    "AlreadyRunning",
    "AlreadyUndone",
    "AmendsError",
    "BoundCall",
    "CallOptions",
    "ContractError",
    "DeclaredTool",
    "Handler",
    "HandlerRegistry",
    "LedgerUnavailable",
    "LedgerUncertain",
    "NotApproved",
    "NotConfirmed",
    "NotUndone",
    "NothingToUndo",
    "OutcomeUnknown",
    "OutsideWorkflow",
    "Present",
    "ProbeAnswer",
    "Rejected",
    "Role",
    "Runner",
    "RunningStep",
    "Secret",
    "Step",
    "StillThere",
    "Tool",
    "UndoAnswer",
    "Undone",
    "Unknown",
    "VerifyAnswer",
    "WorkflowTurned",
    "compensable",
    "current_step",
    "irreversible",
    "needs_step",
    "options",
    "read_only",
    "reversible",
    "secret",
    "set_outside",
    "set_testing",
    "step_from_facts",
    "unclassified",
]
